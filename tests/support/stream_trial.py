"""One trial of a failing stream: it must end with the right error, in time, leaving nothing."""

import gc
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hloipu_runtime.errors import StreamError
from tests.support.stream_parts import TIMEOUT_SECONDS


@dataclass(frozen=True)
class Case:
    """A failing program and the error that it must end with; no code: it must not fail."""

    name: str
    run: Callable[[], None]
    code: str
    step: int
    cause: type[BaseException] | None = None


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0


def repeat_case(
    case: Case, stalled_since: Callable[[float], float] = lambda _: 0.0
) -> StreamError | None:
    """Run a case once; AssertionError unless it ends as it must, in time, leaving nothing.

    `stalled_since` says how long the machine did not run this process at all.
    """
    threads, files = set(threading.enumerate()), open_files()
    began = time.monotonic()
    found: StreamError | None = None
    try:
        case.run()
    except StreamError as error:
        found = error
    seconds = time.monotonic() - began
    code = found.code if found else ""
    assert code == case.code, f"{case.name}: {found!r}"
    if found is not None:
        assert found.queue in ("data", "loss"), case.name
        assert found.step == case.step or case.name in _VAGUE, f"{case.name}: step {found.step}"
        assert found.expected, case.name
        assert found.found, case.name
        assert found.exit_code == 7, case.name
        assert case.cause is None or isinstance(found.__cause__, case.cause), case.name
        found.__traceback__ = None
    assert seconds < TIMEOUT_SECONDS + 1 + stalled_since(began), f"{case.name}: {seconds:.2f} s"
    left = _left(threads)
    assert not left, f"{case.name}: threads left: {left}"
    if open_files() > files:
        gc.collect()  # a third of a second among thousands of tests
    assert open_files() <= files, f"{case.name}: files left"
    return found


_VAGUE = frozenset({"out stuck", "out raises early", "out exits", "out reader goes early"})
"""How many elements are under way when the other side fails depends on the threads."""


def _left(before: set[threading.Thread]) -> list[str]:
    """Return threads that are there and were not before; forgotten ones end a moment later."""
    deadline = time.monotonic() + 1
    while True:
        left = [thread.name for thread in threading.enumerate() if thread not in before]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.005)
