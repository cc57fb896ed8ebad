"""Test candidates of `hloipu reduce`: in a forked process or by a command, in bounded time."""

import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from time import monotonic
from typing import Protocol

from hloipu_runtime.errors import UsageError

USUAL_SECONDS = 60.0
"""For one candidate, where nobody says otherwise."""
_TIMES_THE_FIRST = 2.0
"""As many times what the first module takes a candidate may take, too."""


class TooLateError(Exception):
    """A test was ended because its time was up."""


class Tester(Protocol):
    """Runs a test on texts."""

    def holds(self, text: str, seconds: float | None) -> bool:
        """Whether the test holds for a text; TooLateError after so many seconds, None: never."""

    def close(self) -> None:
        """Release its resources."""


class Trials:
    """Asks a test about texts within a time for each and one for all."""

    def __init__(self, tester: Tester, timeout: float | None, time_limit: float | None) -> None:
        self.too_late: int = 0
        """Candidates that were given up because they took too long."""
        self._tester = tester
        self._timeout = timeout
        self._end = None if time_limit is None else monotonic() + time_limit
        self._is_first = True

    def is_over(self) -> bool:
        """Whether the time for all of them is up."""
        return self._end is not None and monotonic() >= self._end

    def holds(self, text: str) -> bool:
        """Whether the test holds for a text, in time.

        The first text takes as long as it takes, unless the caller said a time for each; twice as
        long and a minute is then what the others may take.
        """
        begin = monotonic()
        left = None if self._end is None else max(self._end - begin, 0.0)
        allowed = [seconds for seconds in (self._timeout, left) if seconds is not None]
        try:
            does_hold = self._tester.holds(text, min(allowed, default=None))
        except TooLateError:
            if self._is_first:
                raise UsageError(
                    "E3115",
                    "the test of the original module timed out",
                    hint="give it more: --time-limit for all tests, --timeout for each",
                ) from None
            self.too_late += not self.is_over()
            return False
        if self._is_first and self._timeout is None:
            self._timeout = max(USUAL_SECONDS, _TIMES_THE_FIRST * (monotonic() - begin))
        self._is_first = False
        return does_hold


class ForkedTest:
    """Asks a predicate in a child process, which goes on to the next text while all is well.

    A candidate that takes too long is ended with its process, and one that ends the process itself
    (a crash below Python, no memory) is not interesting; the next text gets a new process.
    """

    def __init__(self, predicate: Callable[[str], bool]) -> None:
        self._predicate = predicate
        self._child: ForkProcess | None = None
        self._pipe: Connection | None = None

    def holds(self, text: str, seconds: float | None) -> bool:
        """Whether the predicate holds for a text; TooLateError after so many seconds."""
        pipe = self._pipe or self._started()
        try:
            pipe.send_bytes(text.encode("utf-8", "surrogateescape"))
            if pipe.poll(seconds):
                return pipe.recv_bytes() == _YES
        except (EOFError, OSError):
            self.close()
            return False
        self.close()
        raise TooLateError

    def close(self) -> None:
        """End the child."""
        if self._child is not None and self._pipe is not None:
            self._pipe.close()
            self._child.kill()
            self._child.join()
            self._child = self._pipe = None

    def _started(self) -> Connection:
        context = get_context("fork")
        ours, theirs = context.Pipe()
        self._child = context.Process(target=_answer, args=(self._predicate, theirs, ours))
        self._child.start()
        theirs.close()
        self._pipe = ours
        return ours


_YES, _NO = b"1", b"0"


def _answer(predicate: Callable[[str], bool], pipe: Connection, parents: Connection) -> None:
    """Answer texts until the parent is gone; it is the one that an interrupt is for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parents.close()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    with suppress(EOFError, OSError):
        while True:
            text = pipe.recv_bytes().decode("utf-8", "surrogateescape")
            try:
                does_hold = predicate(text)
            except Exception:  # another fault than the one that is looked for
                does_hold = False
            pipe.send_bytes(_YES if does_hold else _NO)


def words_of(test: str) -> list[str]:
    """Split a command as a shell does; raises UsageError where a quote is left open."""
    try:
        words = shlex.split(test)
    except ValueError as error:
        raise unusable(test, str(error)) from error
    if not words:
        raise unusable(test, "it is empty")
    return words


def unusable(test: str, why: str) -> UsageError:
    """Return the error of a test that cannot be run at all."""
    return UsageError(
        "E3116",
        f"the test {test!r} cannot be run: {why}",
        hint="give a program on the PATH or a path to one, and its arguments",
    )


class CommandTest:
    """Runs a command on texts, in a file of its own."""

    def __init__(self, words: list[str]) -> None:
        self._words = words
        self._folder = tempfile.TemporaryDirectory(prefix="hloipu-reduce-")
        self._path = str(Path(self._folder.name) / "candidate.hlo")

    def close(self) -> None:
        """Remove the file."""
        self._folder.cleanup()

    def holds(self, text: str, seconds: float | None) -> bool:
        """Whether the command exits with 0 on a text; TooLateError after so many seconds."""
        Path(self._path).write_text(text, encoding="utf-8", errors="surrogateescape")
        words = [word.replace("{}", self._path) for word in self._words]
        if words == self._words:
            words.append(self._path)
        try:
            child = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise unusable(shlex.join(self._words), error.strerror or str(error)) from error
        try:
            return child.wait(seconds) == 0
        except subprocess.TimeoutExpired:
            raise TooLateError from None
        finally:
            if child.poll() is None:
                # The whole session: the command may be a shell with children of its own.
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
