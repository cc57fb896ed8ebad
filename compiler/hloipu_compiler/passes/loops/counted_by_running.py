"""Finds trip counts by running the loop condition for a few trips."""

from functools import cached_property
from typing import TYPE_CHECKING

from hloipu_compiler.analysis.order import effectful_computations
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.passes.algebra.fold_constants import FOLDABLE
from hloipu_compiler.passes.framework.constant_values import scalar_constant
from hloipu_compiler.passes.loops.loop_state import (
    elements_read,
    is_divisible,
    state_needed,
    with_narrow_parameter,
    with_narrow_root,
    without_dead,
)
from hloipu_runtime.errors import UnsupportedError
from hloipu_runtime.kernels.computing import computing

if TYPE_CHECKING:
    from hloipu_compiler.interpret.planning.plan import Array
    from hloipu_compiler.interpret.planning.planner import Planner

MOST_INSTRUCTIONS = 256
"""Of a body or condition, as far as it decides the end."""
MOST_TRIPS_IN_ALL = 4096
"""Of all loops of a module together: at about 30 us a trip, a tenth of a second."""

_RUN = FOLDABLE | {"parameter", "constant", "tuple", "get-tuple-element", "iota"}


class LoopRunner:
    """Runs loops of one module."""

    def __init__(self, module: Module, most_trips: int) -> None:
        self.module = module
        self.most_trips = most_trips
        self._left = MOST_TRIPS_IN_ALL

    @cached_property
    def _planner(self) -> "Planner":
        from hloipu_compiler.interpret.planning.planner import Planner
        from hloipu_compiler.interpret.planning.site import Effects

        return Planner(self.module, Effects())

    @cached_property
    def _effectful(self) -> frozenset[str]:
        return effectful_computations(self.module)

    def trips(self, caller: Computation, at: int) -> int | None:
        """Return how often a loop runs, found by running it; None where that cannot be told so.

        The state that its condition depends on must start from constants, and be computed by
        straight-line code on scalars.
        """
        op = caller.instructions[at]
        condition = self.module.computation[op.attributes.text("condition")]
        body = self.module.computation[op.attributes.text("body")]
        narrow = None if condition.name in self._effectful else deciding_part(condition, body, op)
        if narrow is None:
            return None
        kept, condition, body = narrow
        state = _starts(caller, op, kept)
        if state is None or not (_is_small(condition) and _is_small(body)):
            return None
        most = min(self.most_trips, self._left)
        trips, ended = _counted(self._planner, condition, body, state, most)
        self._left -= trips
        return trips if ended else None


def deciding_part(
    condition: Computation, body: Computation, op: Instruction
) -> tuple[tuple[int, ...] | None, Computation, Computation] | None:
    """Return the elements that decide the end, and condition and body for these alone."""
    if isinstance(op.shape, ArrayShape):
        return None, condition, body
    if not is_divisible(op):
        return None
    read = elements_read(condition, condition.parameters[0])
    if read is None:
        return None
    needed = state_needed(condition, body, read, None)
    if needed is None:
        return None
    kept = tuple(sorted(needed))
    body = _cleaned(with_narrow_root(body, kept))
    return (
        kept,
        with_narrow_parameter(_cleaned(condition), kept),
        with_narrow_parameter(body, kept),
    )


def _cleaned(computation: Computation) -> Computation:
    """Return what the root needs; effects decide nothing where no value comes from them."""
    instructions = computation.instructions
    live = [op.parameter_number >= 0 for op in instructions]
    live[computation.root] = True
    for at in range(len(live) - 1, -1, -1):
        if live[at]:
            for operand in instructions[at].operands:
                live[operand] = True
    return without_dead(computation, live)


def _starts(
    caller: Computation, op: Instruction, kept: tuple[int, ...] | None
) -> "list[Array] | None":
    """Return the constants that the state starts from, or None where it does not."""
    source = caller.instructions[op.operands[0]]
    if kept is None:
        positions = [op.operands[0]]
    elif source.opcode == "tuple":
        positions = [source.operands[i] for i in kept]
    else:
        return None
    starts: list[Array] = []
    for position in positions:
        start = caller.instructions[position]
        value = scalar_constant(start)
        if value is None or value.ndim:
            return None
        starts.append(value)
    return starts


def _is_small(computation: Computation) -> bool:
    if len(computation.instructions) > MOST_INSTRUCTIONS:
        return False
    return all(
        op.opcode in _RUN
        and not op.attributes.called
        and (not isinstance(op.shape, ArrayShape) or op.shape.is_scalar)
        for op in computation.instructions
    )


def _counted(
    planner: "Planner",
    condition: Computation,
    body: Computation,
    state: "list[Array]",
    most_trips: int,
) -> tuple[int, bool]:
    """Return how often the body was run, and whether the loop had ended by then."""
    try:
        test, step = planner.region_at(condition), planner.region_at(body)
    except UnsupportedError:
        return 0, False
    with computing():
        for trips in range(most_trips + 1):
            if not test(*state)[0]:
                return trips, True
            before, state = state, list(step(*state))
            if all(a.tobytes() == b.tobytes() for a, b in zip(before, state, strict=True)):
                return trips, False  # nothing will ever change again
    return most_trips, False
