"""One trial: load a file as a user would, plan, estimate and run it, and say how that ended."""

import time
import traceback
from math import prod
from typing import Any

import numpy as np

from hloipu_runtime.artefact.frame import parse_frame
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.errors import HloipuError
from hloipu_runtime.executable import KIND, Executable, from_frame
from hloipu_runtime.kernels.storage import from_storage, storage_dtype
from hloipu_runtime.program.program import Port
from hloipu_runtime.program.steps import Repeat, RepeatWhile
from hloipu_runtime.program_file.groups import inner_steps
from tools.fuzzing.trial import Outcome

SECONDS = 5.0
MOST_ELEMENTS = 2**20
"""Of all variables on all tiles, in a program that is run."""
MOST_TURNS = 1000


def run(data: bytes) -> Outcome:
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
        if _size(executable) > MOST_ELEMENTS or _turns(executable) > MOST_TURNS:
            return Outcome("accepted", "too large to run")
        stage = "plan"
        program = CompiledProgram(executable.program, executable.machine, over_memory="allow")
        program.profile()
        stage = "run"
        inputs = [_input(port) for port in executable.program.parameters]
        program.run(*inputs, mode="functional")
        program.run(*inputs, mode="exact", poison=True)
    except HloipuError as error:
        kind = "refused" if stage == "load" else "accepted"
        return Outcome(kind, f"{stage} {error.code}")
    except Exception as error:  # what the fuzzer looks for
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else "?"
        detail = f"{stage} {type(error).__name__} at {place}: {str(error)[:200]}"
        return Outcome("traceback", detail)
    return Outcome("accepted", "run")


def _size(executable: Executable) -> int:
    return sum(
        x.mapping.tiles.count * prod(x.mapping.block) + prod(x.shape)
        for x in executable.program.variables
    )


def _turns(executable: Executable) -> int:
    """Return how often the innermost steps run, loops without a count taken to run 30 times."""
    program, most = executable.program, 0
    waiting: list[tuple[Any, int]] = [(program.body, 1)]
    waiting += [(body, 1) for body in program.functions.values()]
    while waiting:
        step, turns = waiting.pop()
        if isinstance(step, RepeatWhile):
            turns *= 30
        elif isinstance(step, Repeat):
            turns *= step.count
        most = max(most, turns)
        waiting += [(inner, turns) for inner in inner_steps(step)]
    return most


def _input(port: Port) -> Any:
    rng = np.random.default_rng(prod(port.shape))
    dtype = storage_dtype(port.element_type)
    return from_storage(rng.integers(0, 2, port.shape).astype(dtype), port.element_type)
