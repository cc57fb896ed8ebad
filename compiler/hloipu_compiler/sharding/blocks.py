"""Ops of a plain step in blocks, one for each IPU: alike in cycles and memory, with little between.

Cuts are those of a pipeline of one micro-batch (`staging.balancing`): forward and backward ops of a
block are on one IPU, and so are its weights with what updates them.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf

from hloipu_compiler.ir.graph import Computation
from hloipu_compiler.plan.pipelining import PipelineRequest
from hloipu_compiler.plan.schedule import SEQUENTIAL, Schedule
from hloipu_compiler.plan.wrapping import Wrapping
from hloipu_compiler.sharding.cells import OpKey
from hloipu_compiler.sharding.request import ShardingError
from hloipu_compiler.staging.assignment import whole_stages
from hloipu_compiler.staging.balancing import Budget, cuts_of
from hloipu_compiler.staging.cutting import Costing, by_cuts
from hloipu_compiler.staging.errors import StagingError
from hloipu_compiler.staging.inference import inference_phases
from hloipu_compiler.staging.loads import Loads, loads_of
from hloipu_compiler.staging.pipelining import phases_and_kind
from hloipu_compiler.staging.reach import parameter_positions
from hloipu_compiler.staging.step_phases import FORWARD, Phases, Roles

_UNEVEN = 1.2
"""What the fullest block may keep beside the mean, where cuts can be found for that. Assumed."""
_MUCH_LESS = 0.95
"""Of the fullest IPU's bytes: where nothing fits, more blocks are worth it for less than that."""

NOT_CUT = PipelineRequest()
"""A step of one micro-batch and one stage."""

Filling = Callable[[Mapping[OpKey, int]], float]
"""Returns the share of the memory of the fullest IPU that is taken with ops in their blocks."""


def blocks_of(
    entry: Computation,
    wrapping: Wrapping | None,
    count: int | None,
    most: int,
    known: Costing,
    filling: Filling,
    request: PipelineRequest = NOT_CUT,
) -> dict[OpKey, int]:
    """Return the block of the forward and backward ops of a flat module's entry.

    `count`: of the blocks; None: the least power of two, up to `most`, with which all have room,
    by estimate, or with which the fullest is least full. `request`: how the step is cut beside.
    Raises ShardingError E0552 where there are fewer ops than blocks.
    """
    phases, trains = _phases(entry, wrapping, request)
    given = range(len(parameter_positions(entry)))
    constants = wrapping.constants if wrapping and trains else given
    loads = loads_of(entry, phases, constants, known.cycles)
    ops = len(loads.ahead)
    if count is not None and ops < count:
        raise ShardingError(
            "E0552",
            f"{ops} forward ops cannot be put on {count} IPUs",
            hint="ask for fewer shards",
        )

    def cut(blocks: int) -> dict[OpKey, int]:
        cuts = cuts_of(loads, Schedule(blocks, SEQUENTIAL, 1, trains), _even(loads, known, blocks))
        stages = whole_stages(entry, phases, by_cuts(loads.ahead, cuts), blocks)
        names = zip(entry.instructions, stages, strict=True)
        return {(entry.name, x.name): stage for x, stage in names if stage >= 0}

    if count is not None:
        return cut(count)
    best: dict[OpKey, int] = {}
    fullest = inf
    for blocks in _powers_of_two(min(most, ops)):
        found = cut(blocks)
        taken = filling(found)
        if taken < _MUCH_LESS * fullest:
            best, fullest = found, taken
        if taken <= 1:
            break
    return best


def _even(loads: Loads, known: Costing, blocks: int) -> Budget:
    """Return a budget with which blocks keep about the same."""
    budget = known.budget
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
        found, trains = phases_and_kind(entry, wrapping, request)
    except StagingError:
        return everything, False
    return (found, trains) if FORWARD in found.phase else (everything, False)
