"""Ops of a plain step in blocks, one for each IPU: alike in cycles and memory, with little between.

Cuts are those of a pipeline of one micro-batch (`staging.balancing`): forward and backward ops of a
block are on one IPU, and so are its weights with what updates them.
"""

from collections.abc import Callable

from hloipu_compiler.ir.graph import Computation, Module
from hloipu_compiler.plan.pipelining import PipelineRequest
from hloipu_compiler.plan.schedule import SEQUENTIAL, Schedule
from hloipu_compiler.plan.wrapping import Wrapping
from hloipu_compiler.sharding.cells import OpKey
from hloipu_compiler.sharding.request import ShardingError
from hloipu_compiler.staging.assignment import whole_stages
from hloipu_compiler.staging.balancing import burdens, cuts_of
from hloipu_compiler.staging.cutting import Costing, by_cuts
from hloipu_compiler.staging.errors import StagingError
from hloipu_compiler.staging.inference import inference_phases
from hloipu_compiler.staging.loads import loads_of
from hloipu_compiler.staging.phases import Phases, Roles
from hloipu_compiler.staging.pipelining import phases_and_kind
from hloipu_compiler.staging.reach import parameter_positions


_MUCH_LESS = 0.95
"""Of the fullest IPU's bytes: where nothing fits, more blocks are worth it for less than that."""


def blocks_of(
    module: Module,
    wrapping: Wrapping | None,
    count: int | None,
    most: int,
    costing: Callable[[Module], Costing],
) -> dict[OpKey, int]:
    """Return the block of the forward and backward ops of a flat module's entry.

    `count`: of the blocks; None: the least power of two, up to `most`, with which all have room,
    by estimate, or with which the fullest is least full. Raises ShardingError E0552 where there are
    fewer ops than blocks.
    """
    entry = module.entry
    phases, trains = _phases(entry, wrapping)
    known = costing(module)
    loads = loads_of(entry, phases, wrapping.constants if wrapping else (), known.cycles)
    ops = len(loads.ahead)
    if count is not None and ops < count:
        raise ShardingError(
            "E0552",
            f"{ops} forward ops cannot be put on {count} IPUs",
            hint="ask for fewer shards",
        )
    counts = [count] if count is not None else _powers_of_two(min(most, ops))
    best: tuple[float, int, tuple[int, ...]] | None = None
    for blocks in counts:
        schedule = Schedule(blocks, SEQUENTIAL, 1, trains)
        cuts = cuts_of(loads, schedule, known.budget)
        fullest = max(x.memory_bytes for x in burdens(loads, schedule, known.budget, cuts))
        if best is None or fullest < _MUCH_LESS * best[0]:
            best = fullest, blocks, cuts
        if fullest <= known.budget.memory_bytes:
            break
    if best is None:
        return {}
    _, blocks, cuts = best
    stages = whole_stages(entry, phases, by_cuts(loads.ahead, cuts), blocks)
    return {
        (entry.name, x.name): stage
        for x, stage in zip(entry.instructions, stages, strict=True)
        if stage >= 0
    }


def _powers_of_two(most: int) -> list[int]:
    return [1 << n for n in range(max(most, 1).bit_length())]


def _phases(entry: Computation, wrapping: Wrapping | None) -> tuple[Phases, bool]:
    """Return the phases of a step; of one that has none, everything is forward."""
    if wrapping is not None:
        try:
            return phases_and_kind(entry, wrapping, PipelineRequest())
        except StagingError:
            pass
    everything = range(len(parameter_positions(entry)))
    return inference_phases(entry, Roles((), tuple(everything))), False
