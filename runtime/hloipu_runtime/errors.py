"""The root of every error that hloipu raises, and the codes' families.

An error is made of data; its text is made when it is shown.
Code families: E0 input text, E1 memory, E2 streams, E3 targets and configuration, E4 artefacts,
E5 limits, E6 values, E9 our own bugs.
"""

from typing import Any, ClassVar

from hloipu_runtime.plain_text import plain_lines


class HloipuError(Exception):
    """Root of all errors: an E-code, what was found, what to do about it."""

    exit_code: ClassVar[int] = 1

    def __init__(self, code: str, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.span: Any = None
        """Where in an input text (`hloipu_compiler.source.Span`), or None."""

    def __str__(self) -> str:
        text = f"error[{self.code}]: {self.message}"
        if self.span is not None:
            text = f"{self.span}: {text}\n{self.span.caret_lines()}"
        return plain_lines(f"{text}\n  hint: {self.hint}" if self.hint else text)


class UsageError(HloipuError):
    """The caller's arguments do not fit: wrong count, shape or type of an input."""

    exit_code = 2


class MachineError(HloipuError):
    """A machine description that cannot be used: which key, in which line of which file."""

    exit_code = 2

    def __init__(
        self, code: str, message: str, *, key: str = "", place: str = "", hint: str = ""
    ) -> None:
        super().__init__(code, f"{place}: {message}" if place else message, hint=hint)
        self.key = key
        self.place = place


class UnsupportedError(HloipuError):
    """Valid input that this machine or this version cannot run; names what and why."""

    exit_code = 4


class MismatchError(HloipuError):
    """Computed values differ from the reference by more than the stated budget."""

    exit_code = 6


class StreamError(HloipuError):
    """A host stream cannot go on: which queue, at which element, what was expected and found.

    What a source or a sink raised itself is its `__cause__`.
    """

    exit_code = 7

    def __init__(
        self,
        code: str,
        message: str,
        *,
        queue: str = "",
        step: int = -1,
        expected: str = "",
        found: str = "",
        hint: str = "",
    ) -> None:
        super().__init__(code, message, hint=hint)
        self.queue = queue
        self.step = step
        """Number of the element, counted from 0 over all runs; -1: no element is concerned."""
        self.expected = expected
        self.found = found


class StreamEndedError(StreamError):
    """A source has no more elements and the program asked for one."""


class StreamInterruptedError(StreamError, KeyboardInterrupt):
    """The user interrupted the program while it waited for a stream."""


class HostError(HloipuError):
    """Hosts of a run in several processes are missing or gone: which, and where the others are."""

    exit_code = 7

    def __init__(
        self, code: str, message: str, *, hosts: tuple[int, ...] = (), hint: str = ""
    ) -> None:
        super().__init__(code, message, hint=hint)
        self.hosts = hosts


class RunInterruptedError(HloipuError, KeyboardInterrupt):
    """The user interrupted a program while it ran."""

    exit_code = 130


class LimitError(HloipuError):
    """A documented resource limit was reached; `--limit` raises it."""

    exit_code = 8

    def __init__(
        self, code: str, message: str, *, limit: str, allowed: int, found: int, hint: str = ""
    ) -> None:
        super().__init__(code, message, hint=hint)
        self.limit = limit
        self.allowed = allowed
        self.found = found


class ArtefactError(HloipuError):
    """A saved file is not what was written: another format, another version, or damaged."""

    exit_code = 9

    def __init__(self, code: str, message: str, *, name: str = "", hint: str = "") -> None:
        super().__init__(code, f"{name}: {message}" if name else message, hint=hint)
        self.name = name
