"""One trial: load a file as a user would, plan, estimate and run it, and say how that ended."""

import time
import traceback
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from math import prod

import numpy as np

from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.errors import HloipuError
from hloipu_runtime.executable import KIND, Executable, from_frame
from hloipu_runtime.kernels.core.storage import user_dtype
from hloipu_runtime.program.seen import seen_by_users
from hloipu_runtime.program.steps import Pipeline, Repeat, RepeatWhile, Step, inner_steps
from hloipu_runtime.program_io.frame.frame import parse_frame
from hloipu_runtime.report.verdict import verdict
from hloipu_runtime.simulate.participants import MOST_PARTICIPANTS
from tools.fuzz_ipux.running import run, run_resident
from tools.fuzzing.trial import Outcome
from tools.mapping import raised_after

SECONDS = 5.0
MOST_ELEMENTS = 2**20
"""Of all variables on all tiles, in a program that is run."""
MOST_ITERATIONS = 1000


class _StillRunningError(Exception):
    """A loop that data ends goes on and on: what a forged condition may well say."""


def try_file(data: bytes) -> Outcome:
    """Load and run; a refusal is an error of hloipu's own kind."""
    start = time.process_time()
    outcome = _attempt(data)
    seconds = time.process_time() - start
    if not outcome.failed and seconds > SECONDS:
        return Outcome("slow", f"{seconds:.1f} s for {len(data)} bytes, {outcome.detail}", seconds)
    return Outcome(outcome.kind, outcome.detail, seconds)


def _attempt(data: bytes) -> Outcome:
    stage = "load"
    try:
        executable = from_frame(parse_frame(data, kind=KIND))
        if _size(executable) > MOST_ELEMENTS or _turns(executable) > MOST_ITERATIONS:
            return Outcome("accepted", "too large to run")
        stage = "plan"
        program = CompiledProgram(executable.program, executable.machine, over_memory="allow")
        verdict(program.profile()).encode("utf-8")
        if executable.program.is_resident:
            stage = "session"
            _open(program)
        stage = "run"
        limit = SECONDS / 4 if _has_endless(executable) else None
        with raised_after(limit, _StillRunningError) if limit else nullcontext():
            is_resident = executable.program.is_resident
            difference = run_resident(executable) if is_resident else run(program)
        if difference:
            return Outcome("wrong", difference)
    except _StillRunningError:
        return Outcome("accepted", "still running")
    except HloipuError as error:
        kind = "refused" if stage == "load" else "accepted"
        return Outcome(kind, f"{stage} {error.code}")
    except Exception as error:  # what the fuzzer looks for
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else "?"
        detail = f"{stage} {type(error).__name__} at {place}: {str(error)[:200]}"
        return Outcome("traceback", detail)
    return Outcome("accepted", "run")


def _open(program: CompiledProgram) -> None:
    """Open a session and close it again; one that is refused is opened by nobody."""
    participants = min(program.program.participants, MOST_PARTICIPANTS)
    kept = seen_by_users(program.program).state
    if participants * sum(prod(port.shape) for port in kept) > MOST_ELEMENTS:
        return
    state = {
        port.name: np.zeros(port.shape, user_dtype(port.element_type))
        for port in kept
        if port.parameter >= 0
    }
    with suppress(HloipuError), program.session(state=state or None):
        pass


def _size(executable: Executable) -> int:
    return sum(
        variable.mapping.tiles.count * prod(variable.mapping.block) + prod(variable.shape)
        for variable in executable.program.variables
    )


def _turns(executable: Executable) -> int:
    """Return how often the innermost steps run, loops without a count taken to run 30 times."""
    return max(turns for _, turns in _steps(executable))


def _has_endless(executable: Executable) -> bool:
    return any(isinstance(step, RepeatWhile) for step, _ in _steps(executable))


def _steps(executable: Executable) -> Iterator[tuple[Step, int]]:
    """Yield every step and how often it runs each time that its function does."""
    program = executable.program
    waiting: list[tuple[Step, int]] = [(program.body, 1)]
    waiting += [(body, 1) for body in program.functions.values()]
    while waiting:
        step, turns = waiting.pop()
        yield step, turns
        if isinstance(step, RepeatWhile):
            turns *= 30
        elif isinstance(step, Repeat | Pipeline):
            turns *= step.count
        waiting += [(inner, turns) for inner in inner_steps(step)]
