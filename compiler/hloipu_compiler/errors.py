"""Errors of the compiler: faults of a text or a graph, as values.

`explanations.toml` beside this file has, for each code, what it means and what to do
(`hloipu explain E0102`); a test holds the two together.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from hloipu_compiler.source import Span
from hloipu_runtime.errors import HloipuError, UnsupportedError
from hloipu_runtime.frozen import dataclass

MOST_FAULTS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Note:
    """A second place that a fault points to, with what is to be seen there."""

    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with an input: code, place, what was found and expected, what to do."""

    code: str
    message: str
    span: Span | None = None
    expected: str = ""
    hint: str = ""
    notes: tuple[Note, ...] = ()

    def __str__(self) -> str:
        where = f"{self.span}: " if self.span else ""
        lines = [f"{where}error[{self.code}]: {self.message}"]
        if self.span and (shown := self.span.caret_lines()):
            lines.append(shown)
        if self.expected:
            lines.append(f"  expected: {self.expected}")
        for note in self.notes:
            lines += [f"  note: {note.text} ({note.span})", note.span.caret_lines()]
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


class InvalidHloError(HloipuError):
    """The input is not valid HLO; carries every fault found, in text order."""

    exit_code: ClassVar[int] = 3

    def __init__(self, faults: Sequence[Fault]) -> None:
        first = faults[0]
        super().__init__(first.code, first.message, hint=first.hint)
        self.faults: tuple[Fault, ...] = tuple(faults)
        self.span: Any = first.span

    def __str__(self) -> str:
        shown = [str(fault) for fault in self.faults[:MOST_FAULTS_SHOWN]]
        if len(self.faults) > MOST_FAULTS_SHOWN:
            shown.append(f"… and {len(self.faults) - MOST_FAULTS_SHOWN} more faults")
        if len(self.faults) > 1:
            shown.append(f"{len(self.faults)} faults found")
        return "\n".join(shown)


class ParseError(InvalidHloError):
    """The text is not HLO: XLA's parser would refuse it as well, or crash on it."""


class VerifyError(InvalidHloError):
    """The text parses, but what it says is inconsistent: XLA's HLO verifier would refuse it."""


class GraphError(InvalidHloError):
    """A networkx graph describes no module: its nodes and edges cannot be written as a text."""


class CodegenError(UnsupportedError):
    """An instruction that the compiler has no program for."""


class PassError(HloipuError):
    """A pass left a module invalid, a bug of the pass: which one, and what the verifier says."""

    def __init__(self, pass_name: str, error: VerifyError) -> None:
        super().__init__(
            "E9001",
            f"the module is not valid any more after the pass {pass_name}: {error.message}",
            hint="the pass is wrong, not your module; leave it out, or report it with the module",
        )
        self.pass_name = pass_name
        self.faults: tuple[Fault, ...] = error.faults
