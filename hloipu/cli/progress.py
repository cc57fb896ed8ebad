"""Progress reports of commands, beside those of compiling."""

from collections.abc import Iterator
from contextlib import contextmanager

from hloipu_runtime.arguments import Progress
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.watching import doing, is_heard, telling


def turns_told(mode: str, program: CompiledProgram) -> Progress | None:
    """Return where a run reports steps and loop iterations; None without a listener."""
    if not is_heard():
        return None
    cycles, total = program.estimate().total_cycles, steps_of(program)
    activity = f"{mode}: steps and turns of loops" + (
        "" if cycles is None else f" ({cycles:,} cycles)"
    )
    return lambda done: telling(activity, done, total or 0)


def steps_of(program: CompiledProgram) -> int | None:
    """Return how many steps and iterations a run takes, None where data decides."""
    estimate = program.estimate()
    if estimate.total_cycles is None:
        return None
    return len(program.program.body.steps) + sum(estimate.counts.counts)


class Working:
    """Tells what a command does, and knows it when the command is stopped."""

    def __init__(self) -> None:
        self.what: str = ""
        """What is being done, or was when it was stopped."""

    @contextmanager
    def __call__(self, activity: str) -> Iterator[None]:
        """Report an activity until the end of the block."""
        self.what = activity
        with doing(activity):
            yield
