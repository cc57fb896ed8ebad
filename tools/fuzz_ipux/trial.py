"""One trial: load a file as a user would, plan, estimate and run it, and say how that ended."""

import signal
import time
import traceback
from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from hloipu_runtime.artefact.frame import parse_frame
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.errors import HloipuError
from hloipu_runtime.executable import KIND, Executable, from_frame
from hloipu_runtime.kernels.storage import from_storage, storage_dtype
from hloipu_runtime.program.program import Port
from hloipu_runtime.program.steps import Repeat, RepeatWhile, Step
from hloipu_runtime.program_file.groups import inner_steps
from tools.fuzzing.trial import Outcome

SECONDS = 5.0
MOST_ELEMENTS = 2**20
"""Of all variables on all tiles, in a program that is run."""
MOST_TURNS = 1000


class _StillRunningError(Exception):
    """A loop that data ends goes on and on: what a forged condition may well say."""


def _stop(*_: object) -> None:
    raise _StillRunningError


def run(data: bytes) -> Outcome:
    """Load and run; a refusal is an error of hloipu's own kind."""
    signal.signal(signal.SIGALRM, _stop)
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
        if _size(executable) > MOST_ELEMENTS or _turns(executable) > MOST_TURNS:
            return Outcome("accepted", "too large to run")
        stage = "plan"
        program = CompiledProgram(executable.program, executable.machine, over_memory="allow")
        program.profile()
        stage = "run"
        if _has_endless(executable):
            signal.setitimer(signal.ITIMER_REAL, SECONDS / 4)
        inputs = [_input(port) for port in executable.program.parameters]
        functional = program.run(*inputs, mode="functional")
        exact = program.run(*inputs, mode="exact", poison=True)
        if functional.cycles != exact.cycles:
            return Outcome("wrong", f"cycles {functional.cycles} and {exact.cycles}")
        if not all(map(_agree, functional.outputs, exact.outputs)):
            return Outcome("wrong", "values differ between modes")
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
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return Outcome("accepted", "run")


def _agree(one: Any, other: Any) -> bool:
    """Whether results agree as far as another order of additions allows."""
    wide = np.complex128 if one.dtype.kind == "c" else np.float64
    a, b = np.asarray(one).astype(wide), np.asarray(other).astype(wide)
    scale = np.abs(a[np.isfinite(a)]).max(initial=0.0)
    return bool(np.allclose(a, b, rtol=1e-2, atol=1e-2 * scale + 1e-30, equal_nan=True))


def _size(executable: Executable) -> int:
    return sum(
        x.mapping.tiles.count * prod(x.mapping.block) + prod(x.shape)
        for x in executable.program.variables
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
        elif isinstance(step, Repeat):
            turns *= step.count
        waiting += [(inner, turns) for inner in inner_steps(step)]


def _input(port: Port) -> Any:
    rng = np.random.default_rng(prod(port.shape))
    dtype = storage_dtype(port.element_type)
    return from_storage(rng.integers(0, 2, port.shape).astype(dtype), port.element_type)
