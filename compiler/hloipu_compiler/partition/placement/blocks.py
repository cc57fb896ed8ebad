"""Cuts a plain step into blocks of like cycles and memory, one for each IPU.

Cuts are those of a pipeline of one micro-batch (`staging.balancing`): forward and backward ops of a
block are on one IPU, and so are its weights with what updates them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import inf

from hloipu_compiler.ir.graph import Computation, Module, with_computation
from hloipu_compiler.partition.placement.cells import OpKey
from hloipu_compiler.partition.placement.handing_down import saying
from hloipu_compiler.partition.placement.request import ShardingError, ShardRequest
from hloipu_compiler.partition.stages.assignment import whole_stages
from hloipu_compiler.partition.stages.balancing import cuts_of
from hloipu_compiler.partition.stages.cut_tables import Budget
from hloipu_compiler.partition.stages.cutting import Costing, by_cuts
from hloipu_compiler.partition.stages.loads import Loads, loads_of
from hloipu_compiler.partition.stages.pipelining import phases_and_kind
from hloipu_compiler.partition.training.errors import StagingError
from hloipu_compiler.partition.training.inference import inference_phases
from hloipu_compiler.partition.training.marks import marked_stages
from hloipu_compiler.partition.training.reach import parameter_positions
from hloipu_compiler.partition.training.step_phases import FORWARD, Phases, Roles
from hloipu_compiler.plan.pipelining import PipelineRequest
from hloipu_compiler.plan.schedule import SEQUENTIAL, Schedule
from hloipu_compiler.plan.wrapping import Wrapping

_UNEVEN = 1.2
"""What the fullest block may keep beside the mean, where cuts can be found for that. Assumed."""
_MUCH_LESS = 0.95
"""Of the fullest IPU's bytes: where nothing fits, more blocks are worth it for less than that."""

NOT_CUT = PipelineRequest()
"""A step of one micro-batch and one stage."""

Blocks = Mapping[OpKey, int]
"""The block of each forward and backward op of the entry."""


def require_one_stage(flat: Module, cut: PipelineRequest) -> None:
    """Raise ShardingError E0553 where a step is to be in blocks and in stages."""
    if (
        (cut.stages or 1) > 1
        or cut.device_map
        or max(marked_stages(flat.entry).values(), default=0)
    ):
        raise ShardingError(
            "E0553",
            "shards were asked for, and stages, which are on IPUs of their own",
            hint="leave --shards out; --schedule sequential runs stages one after the other",
        )


def block_candidates(
    entry: Computation,
    wrapping: Wrapping | None,
    shards: ShardRequest,
    costs: Costing,
    request: PipelineRequest = NOT_CUT,
) -> Iterator[Blocks]:
    """Yield the ops of a flat module's entry in blocks: as many as asked for, or ever more.

    Where nobody asks, these are powers of two, up to the IPUs of the system. `wrapping`: None where
    it is not known what the parameters are; `request`: how the step is cut beside. Raises
    ShardingError E0552 where there are fewer ops than blocks.
    """
    phases, trains = _phases(entry, wrapping, request)
    given = range(len(parameter_positions(entry)))
    constants = wrapping.lasting if wrapping and trains else given
    loads = loads_of(entry, phases, constants, costs.cycles)
    ops = len(loads.ahead)
    if shards.count is not None and ops < shards.count:
        raise ShardingError(
            "E0552",
            f"{ops} forward ops cannot be put on {shards.count} IPUs",
            hint="ask for fewer shards",
        )
    most = shards.ipus if shards.ipus > 1 else shards.most
    for count in _powers_of_two(min(most, ops)) if shards.count is None else [shards.count]:
        budget = _even(loads, costs, count)
        cuts = cuts_of(loads, Schedule(count, SEQUENTIAL, 1, trains), budget)
        stages = whole_stages(entry, phases, by_cuts(loads.ahead, cuts), count).places
        names = zip(entry.instructions, stages, strict=True)
        yield {(entry.name, op.name): stage for op, stage in names if stage >= 0}


def least_full(candidates: Iterable[tuple[Blocks, float]]) -> Blocks:
    """Return the first blocks that have room, or else those whose fullest IPU is least full.

    Each comes with the share of the memory of the fullest IPU that is taken.
    """
    best: Blocks = {}
    fullest = inf
    for blocks, taken in candidates:
        if taken < _MUCH_LESS * fullest:
            best, fullest = blocks, taken
        if taken <= 1:
            break
    return best


def with_blocks(flat: Module, blocks: Blocks) -> Module:
    """Return a flat module whose ops state the IPU of their block."""
    entry = flat.entry
    instructions = tuple(
        saying(op, blocks[entry.name, op.name]) if (entry.name, op.name) in blocks else op
        for op in entry.instructions
    )
    new = replace(entry, instructions=instructions)
    return with_computation(flat, new)


def _even(loads: Loads, costs: Costing, blocks: int) -> Budget:
    budget = costs.budget
    kept = (
        loads.state_until[-1]
        + loads.stash_until[-1]
        + budget.accumulators * loads.gradients_until[-1]
        + budget.optimizer * loads.optimizer_until[-1]
    )
    room = max(1.0, _UNEVEN * float(kept) / blocks)
    return replace(budget, memory_bytes=min(budget.memory_bytes, room))


def _powers_of_two(most: int) -> list[int]:
    return [1 << n for n in range(max(most, 1).bit_length())]


def _phases(
    entry: Computation, wrapping: Wrapping | None, request: PipelineRequest
) -> tuple[Phases, bool]:
    """Return the phases of a step; of one in which none are found, everything is forward."""
    everything = inference_phases(entry, Roles((), tuple(range(len(parameter_positions(entry))))))
    if wrapping is None:
        return everything, False
    try:
        phases, trains = phases_and_kind(entry, wrapping, request)
    except StagingError:
        return everything, False
    return (phases, trains) if FORWARD in phases.phase else (everything, False)
