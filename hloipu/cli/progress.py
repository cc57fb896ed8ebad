"""What commands tell of how far they are, beside what compiling tells itself."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType

from hloipu_runtime.arguments import Progress
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.watching import Search, doing, is_heard, searching, telling


def turns_told(mode: str, program: CompiledProgram) -> Progress | None:
    """Return what a run is to report its steps and turns of loops to; None where nobody listens."""
    if not is_heard():
        return None
    cycles, total = program.estimate().total_cycles, steps_of(program)
    what = f"{mode}: steps and turns of loops" + ("" if cycles is None else f" ({cycles:,} cycles)")
    return lambda done: telling(what, done, total or 0)


def steps_of(program: CompiledProgram) -> int | None:
    """Return how many steps and iterations a run takes, None where data decides."""
    found = program.estimate()
    if found.total_cycles is None:
        return None
    return len(program.program.body.steps) + sum(found.counts.counts)


class Working:
    """Tells what a command does, and knows it when the command is stopped."""

    def __init__(self) -> None:
        self.what = ""
        """What is being done, or was when it was stopped."""

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        """Tell that so much is being done, until the end of the block."""
        self.what = what
        with doing(what):
            yield


_ENDING = b"\ninterrupted: ending with the best so far; once more stops at once\n"


@contextmanager
def interruptible() -> Iterator[None]:
    """Have the first interrupt end a search that has something already; every other one stops.

    Leaves alone how a signal is met that Python does not make KeyboardInterrupt of.
    """
    search, before = Search(), signal.getsignal(signal.SIGINT)

    def met(number: int, frame: FrameType | None) -> None:
        if not search.improves or search.ended:
            signal.default_int_handler(number, frame)
        search.end("interrupted")
        os.write(2, _ENDING)  # what else writes there may be in the middle of it

    with searching(search):
        if before is not signal.default_int_handler or current_thread() is not main_thread():
            yield
            return
        signal.signal(signal.SIGINT, met)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
