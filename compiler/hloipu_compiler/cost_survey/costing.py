"""Budgets for cutting stages: cycles of ops and links, and memory of the machine; leaf steps."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hloipu_compiler.cost_survey.op_prices import OpPrice
from hloipu_compiler.partition.stages.balancing import Budget
from hloipu_compiler.partition.stages.cutting import Costing
from hloipu_compiler.plan.pipelining import AUTO, ON, PipelineRequest
from hloipu_runtime.machine.links import Segment, segment_rate
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.memory.plan import available_bytes
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.program import Program

CODE_SHARE = 0.25
"""Most of an IPU's memory that code is taken to need, by the number of ops. Assumed."""
_LEAST_KEPT = 0.1
"""Of an IPU's memory, for what is kept from slot to slot, however much an op needs."""
_HANDED = 2.0
"""Bytes for each byte that waits: where it was made, and where it is read."""


class Needs(NamedTuple):
    """Bytes that the ops of a step need besides what is kept."""

    code_bytes: int = 0
    """On a tile, of all of them."""
    work_bytes: int = 0
    """On an IPU, of that which needs most."""


def needs_of(prices: Sequence[OpPrice]) -> Needs:
    """Return what ops need that take what `prices` say."""
    return Needs(
        sum(price.code_bytes for price in prices),
        max((price.work_bytes for price in prices), default=0),
    )


NOTHING_KNOWN = Needs()


def budget_of(machine: Machine, request: PipelineRequest, needs: Needs = NOTHING_KNOWN) -> Budget:
    """Return what a machine gives each stage of a step.

    What one op needs at most, and the code of an even part of the ops, leave no room for what is
    kept.
    """
    rate = segment_rate(machine, Segment("up", 0))
    tiles = machine.chip.tiles_per_ipu
    memory_bytes = tiles * available_bytes(machine)
    code = tiles * needs.code_bytes / (request.stages or 1)
    left = memory_bytes - min(code, CODE_SHARE * memory_bytes) - needs.work_bytes
    several = request.micro_batches > 1 or (request.stages or 1) > 1
    is_beside = request.offload == ON or (request.offload == AUTO and several)
    return Budget(
        machine.chip.clock_hz / rate,
        max(left, _LEAST_KEPT * memory_bytes) / _HANDED,
        0.0 if request.offload_accumulators else 1.0,
        0.0 if is_beside and machine.remote.remote_bytes else 1.0,
        0.0 if request.offload_weights else 1.0,
        0.0 if request.offload_activations else 1.0,
    )


def costing_of(prices: Sequence[OpPrice], machine: Machine, request: PipelineRequest) -> Costing:
    """Return what the cutting of stages has to know of ops that take what `prices` say."""
    cycles = [price.cycles for price in prices]
    return Costing(cycles, budget_of(machine, request, needs_of(prices)))


class Leaf(NamedTuple):
    """A step without others in it."""

    step: s.Step
    owner: int
    """The loop of the entry that it is in, or -1."""
    is_within: bool
    """Whether micro-batches run it."""


def primary(leaves: Sequence[s.Step]) -> frozenset[int]:
    """Return the variables in which exchanges make values, in place of copying one."""
    return frozenset(
        definition.variable
        for step in leaves
        if isinstance(step, s.Exchange)
        for definition in step.definitions
        if any(piece.value != definition.value for piece in definition.pieces)
    )


def leaves_of(program: Program, position: Mapping[str, int]) -> Iterator[Leaf]:
    """Yield the steps that have none in them, with the loops of the entry that they are in."""
    waiting: list[tuple[s.Step, int, bool]] = [(program.body, -1, False)]
    waiting += [(body, -1, False) for body in program.functions.values()]
    while waiting:
        step, owner, within = waiting.pop()
        if isinstance(step, s.Pipeline):
            within = True
        elif within and owner < 0 and isinstance(step, s.Repeat | s.RepeatWhile | s.Call):
            owner = position.get(getattr(step, "name", ""), -1)
        inner = list(s.inner_steps(step))
        if inner:
            waiting.extend((child, owner, within) for child in reversed(inner))
        else:
            yield Leaf(step, owner, within)


def names_of(step: s.Step) -> Sequence[str]:
    """Return the names of the ops that a step is of, as far as it says."""
    match step:
        case s.ComputeSet():
            return [group.name for group in step.groups]
        case s.StreamIn() | s.StreamOut():
            return ()
        case _:
            return [getattr(step, "name", "")]
