"""Cuts the forward pass into stages, as annotated or in parts of like cost.

Forward ops are taken in their order; `balancing` finds the best places between them.
"""

from bisect import bisect_right
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from types import MappingProxyType

from hloipu_compiler.ir.dimension_rules import rule_in
from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.ir.ops import PRODUCTS
from hloipu_compiler.ir.shapes import element_count
from hloipu_compiler.partition.stages.balancing import cuts_of
from hloipu_compiler.partition.stages.cut_tables import Budget
from hloipu_compiler.partition.stages.loads import layers_of, loads_of
from hloipu_compiler.partition.stages.recomputing import NONE
from hloipu_compiler.partition.training.errors import StagingError
from hloipu_compiler.partition.training.marks import marked_stages
from hloipu_compiler.partition.training.step_phases import FORWARD, Phases
from hloipu_compiler.plan.pipelining import PipelineRequest
from hloipu_compiler.plan.schedule import SEQUENTIAL, Schedule


@dataclass(frozen=True)
class Costing:
    """What ops cost and what stages have: `cycles` of every op of the entry."""

    cycles: Sequence[float]
    budget: Budget


ASSUMED_BUDGET = Budget(0.25, inf)
"""Where no machine is known: what a byte that crosses a cut costs beside an element multiplied."""


def annotated(entry: Computation) -> dict[int, int]:
    """Return the stage of every op whose attribute `ipu_stage` says so."""
    return marked_stages(entry)


def cut(
    entry: Computation,
    phases: Phases,
    schedule: Schedule,
    constants: Sequence[int],
    costing: Costing,
    *,
    recompute: str = NONE,
    trips: Mapping[str, Hashable] = MappingProxyType({}),
    ipus: Sequence[int] = (),
) -> dict[int, int]:
    """Return the stage of every forward op, so that IPUs have as much to do and little crosses.

    `constants`: parameters that stay on the device and are no state; `trips`: of ops that were in a
    loop, by name; `ipus`: of each stage, empty: each has its own. Raises StagingError E0506 where
    there are fewer forward ops than stages.
    """
    stages = schedule.stages
    ahead = [n for n, phase in enumerate(phases.phase) if phase == FORWARD]
    require_forward_ops(len(ahead), stages)
    if stages == 1:
        return dict.fromkeys(ahead, 0)
    trips = trips or layers_of(entry, phases)
    loads = loads_of(entry, phases, constants, costing.cycles, trips)
    cuts = cuts_of(loads, schedule, costing.budget, recompute=recompute, ipus=ipus)
    return by_cuts(loads.ahead, cuts)


def require_forward_ops(count: int, stages: int) -> None:
    """Raise StagingError E0506 where there are fewer forward ops than stages."""
    if not count:
        raise StagingError(
            "E0506",
            "no op depends on data that differs by micro-batch: every parameter is loaded once",
            hint="say which parameters are data: --feed NAME=N,… by number; a step that reads none "
            "is run with --loop N instead",
        )
    if count < stages:
        raise StagingError(
            "E0506",
            f"{count} forward ops cannot make up {stages} stages",
            hint="ask for fewer stages",
        )


def at_places(phases: Phases, stages: int, places: Sequence[int]) -> dict[int, int]:
    """Return the stage of every forward op, stages but the first from `places` on; empty: none.

    Raises StagingError E0506 for places that do not cut the step into so many stages.
    """
    if not places:
        return {}
    ahead = [n for n, phase in enumerate(phases.phase) if phase == FORWARD]
    if [*places] != sorted({*places}) or places[-1] >= len(ahead) or len(places) != stages - 1:
        raise StagingError(
            "E0506",
            f"{len(ahead)} forward ops cannot be cut into {stages} stages at "
            + ",".join(map(str, places)),
            hint="give --cut-at a growing number of forward ops for each stage but the first, such "
            "as --plan auto prints",
        )
    return by_cuts(ahead, places)


def by_cuts(ahead: Sequence[int], cuts: Sequence[int]) -> dict[int, int]:
    """Return the stage of every forward op; stages begin at the places `cuts`."""
    return {position: bisect_right(cuts, place) for place, position in enumerate(ahead)}


def assumed_costing(entry: Computation) -> Costing:
    """Return a costing where nothing is known of the machine."""
    return Costing([work(entry, op) for op in entry.instructions], ASSUMED_BUDGET)


def work(entry: Computation, op: Instruction) -> float:
    """Return about what an op costs: elements made, times what each of them is summed from."""
    size = float(element_count(op.shape))
    if op.opcode in PRODUCTS:
        return size * max(1, rule_in(entry, op).summed()) / 8
    if op.opcode in ("while", "conditional", "custom-call", "sort", "fft", "scatter", "gather"):
        return size + sum(element_count(entry.instructions[i].shape) for i in op.operands)
    if op.opcode == "reduce":
        return float(element_count(entry.instructions[op.operands[0]].shape))
    return size


def schedule_of(request: PipelineRequest, stages: int, *, trains: bool) -> Schedule:
    """Return the schedule that is asked for.

    Raises StagingError E0555 for groups of micro-batches on another schedule than the sequential.
    """
    group = request.batch_serialization
    if group > 1 and request.schedule != SEQUENTIAL:
        raise StagingError(
            "E0555",
            f"stages are to do {group} micro-batches one after the other, on the "
            f"{request.schedule} schedule, which has them work side by side",
            hint="give --schedule sequential with --batch-serialization",
        )
    return Schedule(stages, request.schedule, request.micro_batches, trains, group)
