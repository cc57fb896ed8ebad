"""Running a module on tiles in both modes, next to the evaluator, which knows no tiles."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.evaluator import Evaluator
from hloipu_compiler.lowering.core.lowering import lower
from hloipu_compiler.plan.plan import Plan
from hloipu_compiler.planners.tuning import DEFAULT_TUNING, Tuning
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.proof.verify import verify
from hloipu_runtime.simulate.exact.exact import ExactEngine
from hloipu_runtime.simulate.functional.functional import FunctionalEngine
from hloipu_runtime.simulate.run.host import Arrays

Array = np.ndarray[Any, Any]


class TileRun(NamedTuple):
    """A proved program and its results, in storage form."""

    program: Program
    evaluated: list[Array]
    functional: list[Array]
    exact: list[Array]
    """With memories poisoned before use."""


def run_on_tiles(
    text: str, machine: Machine, arguments: Sequence[Any], tuning: Tuning = DEFAULT_TUNING
) -> TileRun:
    """Lower a module, prove the program and run it in every way."""
    module = parse(text)
    program = lower(module, Plan(), machine, tuning)
    verify(program, machine.chip.tiles_per_ipu)
    evaluator = Evaluator(module)
    stored = evaluator.arguments_in_storage(tuple(arguments))
    found = []
    for engine in (FunctionalEngine(program), ExactEngine(program, poison=True)):
        host = Arrays({f"parameter.{n}": array for n, array in enumerate(stored)})
        engine.run(host)
        found.append([host.outputs[port.stream] for port in program.results])
    return TileRun(program, evaluator.run_stored(list(stored)), *found)


def same_on_tiles(
    text: str, machine: Machine, arguments: Sequence[Any], tuning: Tuning = DEFAULT_TUNING
) -> TileRun:
    """Run on tiles and compare, exactly, with the evaluator."""
    run = run_on_tiles(text, machine, arguments, tuning)
    for array, other, wanted in zip(run.functional, run.exact, run.evaluated, strict=True):
        np.testing.assert_array_equal(array, wanted)
        np.testing.assert_array_equal(other, wanted)
    return run
