"""Partitions a flat step: a module of stage calls, and the plan of its pipeline."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

from hloipu_compiler.ir.graph import Computation, Instruction, Module, with_computation
from hloipu_compiler.ir.shapes import ArrayShape, array_shape
from hloipu_compiler.memo import Memo, Same
from hloipu_compiler.partition.stages.assignment import (
    Stages,
    owners,
    split_gradients,
    whole_stages,
)
from hloipu_compiler.partition.stages.backward_places import BackwardPlaces, with_forward_reads
from hloipu_compiler.partition.stages.block_recomputing import with_blocks_again
from hloipu_compiler.partition.stages.branch_places import Spots, needs_cycles, spots_of
from hloipu_compiler.partition.stages.branches import (
    branch_counts,
    marked_branches,
    require_map,
    stage_ipus,
)
from hloipu_compiler.partition.stages.concurrent_cutting import with_branches
from hloipu_compiler.partition.stages.cutting import (
    Costing,
    annotated,
    assumed_costing,
    at_places,
    cut,
    schedule_of,
)
from hloipu_compiler.partition.stages.forming import (
    PRE,
    STEP,
    Formed,
    Place,
    formed,
    with_passed_copies,
)
from hloipu_compiler.partition.stages.gradient_copies import with_gradient_copies, with_state_copies
from hloipu_compiler.partition.stages.independent_parts import JOIN
from hloipu_compiler.partition.stages.recomputing import BLOCKS, made_again
from hloipu_compiler.partition.training.block_weights import with_weights_in_blocks
from hloipu_compiler.partition.training.errors import StagingError
from hloipu_compiler.partition.training.evidence import check_forward, compared_samples, evidence_of
from hloipu_compiler.partition.training.inference import inference_phases, updates_nothing
from hloipu_compiler.partition.training.late_sums import with_late_sums
from hloipu_compiler.partition.training.phases import phases_of
from hloipu_compiler.partition.training.reach import (
    data_of,
    parameter_positions,
    result_positions,
)
from hloipu_compiler.partition.training.step_phases import (
    BACKWARD,
    FORWARD,
    UPDATE,
    Gradient,
    Pair,
    Phases,
    Roles,
)
from hloipu_compiler.plan.pipelining import (
    BATCH,
    Accumulation,
    Part,
    PipelineRequest,
    Pipelining,
    Position,
)
from hloipu_compiler.plan.schedule import Schedule
from hloipu_compiler.plan.wrapping import Wrapping


@dataclass(frozen=True)
class UncutStep:
    """A step whose phases are known, and its stages where nothing is to be found out for them."""

    module: Module
    phases: Phases
    trains: bool
    count: int
    """Stages."""
    ahead: Mapping[int, int] | None
    """The stage of each forward op, by position, as annotated or known; None: not known."""

    @property
    def needs_costs(self) -> bool:
        """Whether stages are to be found by what ops cost."""
        return self.ahead is None and self.count > 1


@dataclass(frozen=True)
class Cutting:
    """A step whose forward ops have stages."""

    module: Module
    phases: Phases
    trains: bool
    count: int
    """Stages."""
    ahead: Mapping[int, int]
    """The stage of each forward op, by position, and of backward ops that are annotated."""
    cycles: Sequence[float]
    """Of each op, where that was asked for; empty otherwise."""
    device_map: tuple[tuple[int, ...], ...] = ()
    """The IPUs of each stage, where they are asked for."""

    @cached_property
    def placed(self) -> BackwardPlaces:
        """The stage of each op, and what it reads there."""
        return whole_stages(self.module.entry, self.phases, self.ahead, self.count)

    @property
    def stages(self) -> Stages:
        """The stage of each op."""
        return self.placed.places

    @cached_property
    def branches(self) -> Mapping[int, int]:
        """The branch that ops are annotated with."""
        return marked_branches(self.module.entry)

    @cached_property
    def ipus(self) -> tuple[tuple[int, ...], ...]:
        """The IPUs of each stage; StagingError E0507, E0560 and E0561 for what does not fit."""
        counts = branch_counts(self.phases, self.stages, self.branches, self.count)
        return stage_ipus(self.device_map, counts)

    @property
    def needs_cycles(self) -> bool:
        """Whether `cycles` are still to be found, for the branches of a stage."""
        if self.cycles:
            return False
        return needs_cycles(self.phases, self.stages, self.ipus, self.branches)


def uncut_step(
    module: Module,
    wrapping: Wrapping,
    request: PipelineRequest,
    known: Mapping[str, int] = MappingProxyType({}),
) -> UncutStep:
    """Return what is known of a flat step before it is cut; `known`: stages by the names of ops.

    Raises what `phases_of` raises, and StagingError E0506 for stages that cannot be.
    """
    _require_arrays(module.entry)
    module = with_passed_copies(module, wrapping)
    phases, trains = phases_and_kind(module.entry, wrapping, request)
    copied = with_state_copies(with_gradient_copies(module, phases), phases)
    if copied is not module:
        module = copied
        phases, trains = phases_and_kind(module.entry, wrapping, request)
    if request.micro_batches > 1 and trains:
        once = request.gather_weights == BATCH
        module, phases = with_late_sums(module, phases, scatters=once)
        if not once:
            module, phases = with_weights_in_blocks(module, phases)
    entry = module.entry
    marked = annotated(entry)
    count = _stage_count(request, phases, marked)
    ahead = {n: s for n, s in marked.items() if phases.phase[n] in (FORWARD, BACKWARD)}
    if not ahead and known:
        ahead = {
            n: known[op.name]
            for n, op in enumerate(entry.instructions)
            if op.name in known and phases.phase[n] == FORWARD
        }
    return UncutStep(module, phases, trains, count, ahead if ahead or known else None)


def cutting_of(
    step: UncutStep,
    wrapping: Wrapping,
    request: PipelineRequest,
    costs: Costing | None = None,
    trips: Mapping[str, Hashable] = MappingProxyType({}),
) -> Cutting:
    """Return where a step is cut: as is known, or else in parts of like cost.

    `costs`: of its ops, where it needs them; None: by what ops make and read. `trips`: of ops that
    were in a loop, by name; a trip stays whole where that costs little. Raises StagingError E0506
    for stages that cannot be, E0507 for a device map that does not fit them, and what `schedule_of`
    raises.
    """
    entry, phases = step.module.entry, step.phases
    if step.ahead is not None:
        return Cutting(
            step.module, phases, step.trains, step.count, step.ahead, (), request.device_map
        )
    schedule = schedule_of(request, step.count, trains=step.trains)
    if costs is None or not step.needs_costs:
        costs = assumed_costing(entry)
    require_map(request.device_map, step.count)
    ahead = at_places(phases, step.count, request.cut_at) or with_branches(
        entry, phases, schedule, wrapping.lasting, costs, request.device_map
    )
    ahead = ahead or cut(
        entry, phases, schedule, wrapping.lasting, costs, recompute=request.recompute, trips=trips,
        ipus=[ipus[0] for ipus in request.device_map],
    )  # fmt: skip
    return Cutting(
        step.module, phases, step.trains, step.count, ahead, costs.cycles, request.device_map
    )


def pipelined(
    cutting: Cutting, wrapping: Wrapping, request: PipelineRequest
) -> tuple[Module, Pipelining]:
    """Return a step in calls of its stages, and the plan of its pipeline.

    Where nobody has found the cycles that branches need, they go by what ops make and read. Raises
    StagingError E0507 for a device map that does not fit.
    """
    cutting = reading_forward_values(cutting)
    module, count, entry = cutting.module, cutting.count, cutting.module.entry
    if request.micro_batches > 1:
        apart = split_gradients(entry, cutting.phases, cutting.stages)
        cutting = replace(cutting, phases=apart) if apart is not cutting.phases else cutting
    if request.recompute == BLOCKS and cutting.trains:
        cutting = _with_blocks(cutting)
        module, entry = cutting.module, cutting.module.entry
    phases, stages, ipus, marked = cutting.phases, cutting.stages, cutting.ipus, cutting.branches
    cycles = assumed_costing(entry).cycles if cutting.needs_cycles else cutting.cycles
    spots = spots_of(entry, phases, stages, ipus, marked, cycles)
    last = request.lacks_memory
    again = made_again(entry, phases, stages, count, request.recompute, last=last)
    step_in_calls = formed(module, phases, stages, count, again, spots, ipus)
    planning = _Planning(module, step_in_calls, phases, stages, spots, ipus, request)
    plan = planning.plan(trains=cutting.trains)
    if not cutting.trains or request.micro_batches == 1:
        return step_in_calls.module, plan
    data = [place for feed in wrapping.feeds for place in feed.places]
    return step_in_calls.module, replace(plan, compared=compared_samples(module, data))


def reading_forward_values(cutting: Cutting) -> Cutting:
    """Return a step in which backward ops read what forward values are at hand, placed as it was.

    Placed anew, ops might go where others of these values are at hand, which nobody reads there.
    """
    placed, phase = cutting.placed, cutting.phases.phase
    if not placed.forward_reads:
        return cutting
    entry = with_forward_reads(cutting.module.entry, placed.forward_reads)
    ahead = {n: s for n, s in enumerate(placed.places) if phase[n] in (FORWARD, BACKWARD)}
    return replace(cutting, module=with_computation(cutting.module, entry), ahead=ahead)


def _with_blocks(cutting: Cutting) -> Cutting:
    """Return a step in which backward ops have blocks of forward ones made again."""
    again = with_blocks_again(cutting.module, cutting.phases, cutting.stages, cutting.count)
    cycles = [cutting.cycles[i] for i in again.origin] if cutting.cycles else ()
    return replace(
        cutting, module=again.module, phases=again.phases, ahead=again.ahead, cycles=cycles
    )


def _require_arrays(entry: Computation) -> None:
    """Raise StagingError E0500 for a parameter that is a tuple."""
    for position in entry.parameters:
        op = entry.instructions[position]
        if not isinstance(op.shape, ArrayShape):
            raise StagingError(
                "E0500",
                f"parameter {op.name!r} is a tuple; steps are cut that take arrays",
                hint="print the step with its arguments flattened, as JAX does",
            )


def phases_and_kind(
    entry: Computation, wrapping: Wrapping, request: PipelineRequest
) -> tuple[Phases, bool]:
    """Return the phases of a step, and whether it trains: whether it makes new state.

    Raises what `phases_of` raises, StagingError E0513 for a step that shows signs of training and
    has no gradients.
    """
    state = tuple(Pair(x.parameter, x.result) for x in wrapping.state)
    roles = Roles(state, data_of(entry, wrapping), request.carried, request.loss)
    return PHASES_MEMO.of((Same(entry), roles), lambda: _phases_of(entry, roles, request))


PHASES_MEMO: Memo[tuple[Phases, bool]] = Memo(1)
"""The last answer, for who prepares a step and then cuts it."""


def _phases_of(entry: Computation, roles: Roles, request: PipelineRequest) -> tuple[Phases, bool]:
    trains = not updates_nothing(entry, roles)
    if not trains:
        check_forward(entry, roles, request.assumed_carried)
    return phases_of(entry, roles) if trains else inference_phases(entry, roles), trains


def _stage_count(request: PipelineRequest, phases: Phases, marked: Mapping[int, int]) -> int:
    used = [s for n, s in marked.items() if phases.phase[n] in (FORWARD, BACKWARD)]
    count = max(used, default=-1) + 1
    if count and request.cut_at:
        raise StagingError(
            "E0506",
            "--cut-at says where stages begin, and so do ops' annotations",
            hint="leave --cut-at out, or take the annotations out",
        )
    if count and request.stages not in (None, count):
        raise StagingError(
            "E0506",
            f"{request.stages} stages are asked for, and ops are annotated with {count}",
            hint="leave --stages out, or take the annotations out",
        )
    missing = sorted(set(range(count)) - set(used))
    if missing:
        raise StagingError(
            "E0506",
            f"no op is annotated with stage {missing[0]}, and some with stage {count - 1}",
            hint="number the stages from 0 without gaps",
        )
    return count or request.stages or 1


class _Planning:
    """What is looked up in the old entry to describe the new one."""

    def __init__(
        self,
        module: Module,
        step_in_calls: Formed,
        phases: Phases,
        stages: Stages,
        spots: Spots,
        ipus: tuple[tuple[int, ...], ...],
        request: PipelineRequest,
    ) -> None:
        self.entry = module.entry
        self.step_in_calls = step_in_calls
        self.phases = phases
        self.stages = stages
        self.spots = spots
        self.ipus = ipus
        self.request = request
        self.parameters = parameter_positions(module.entry)
        self.results = result_positions(module.entry)
        self.calls = {place.phase: name for place, name in step_in_calls.calls}

    def plan(self, *, trains: bool) -> Pipelining:
        request = self.request
        schedule = schedule_of(request, len(self.ipus), trains=trains)
        return Pipelining(
            schedule,
            tuple(self._positions(schedule)),
            self.ipus,
            tuple(self._accumulations()),
            tuple((pair.parameter, pair.result) for pair in self.phases.per_micro_batch),
            self.request.reduction,
            self.calls.get(PRE, ""),
            self.calls.get(UPDATE, ""),
            self._homes(),
            evidence=evidence_of(self.entry, self.phases, trains=trains),
        )

    def _positions(self, schedule: Schedule) -> list[Position]:
        """Return every position of the schedule; one without ops calls nothing."""
        parts: dict[tuple[str, int], list[Part]] = {}
        for place, name in self.step_in_calls.calls:
            part = Part(name, self._ipu_of(place), max(place.spot.level, 0))
            parts.setdefault((place.phase, place.stage), []).append(part)
        if (STEP, 0) in parts:
            return [Position(STEP, 0, self.ipus[0], tuple(parts[STEP, 0]))]
        positions = []
        for number in range(schedule.positions):
            stage = schedule.stage_of(number)
            phase = FORWARD if number < schedule.stages else BACKWARD
            here = tuple(parts.get((phase, stage), ()))
            positions.append(Position(schedule.name_of(number), stage, self.ipus[stage], here))
        return positions

    def _ipu_of(self, place: Place) -> int:
        return self.ipus[max(place.stage, 0)][max(place.spot.branch, 0)]

    def _accumulations(self) -> list[Accumulation]:
        ipus = {name: self._ipu_of(place) for place, name in self.step_in_calls.calls}
        accumulations = []
        for gradient in self.phases.gradients:
            element = self.step_in_calls.elements.get(gradient.position)
            if element is None:
                continue  # the gradient of nothing that is updated, or what a queue feeds
            kind = self._accumulator(gradient)
            accumulations.append(
                Accumulation(*element, kind, gradient.parameters, ipus[element[0]], gradient.total)
            )
        self._require_accumulators(accumulations)
        return accumulations

    def _accumulator(self, gradient: Gradient) -> str:
        """Return the element type in which a gradient is added up."""
        asked = self.request.accumulators
        kinds = {asked[n] for n in gradient.parameters if n in asked}
        op = self.entry.instructions[gradient.position]
        if len(kinds) > 1:
            raise StagingError(
                "E0514",
                f"{op.name!r} is the gradient of parameters {_listed(gradient.parameters)}, whose "
                f"accumulators are to be {' and '.join(sorted(kinds))}",
                hint="give what shares a gradient one type",
            )
        return kinds.pop() if kinds else self.request.accumulator_type or _type_of(op)

    def _require_accumulators(self, accumulations: Sequence[Accumulation]) -> None:
        """Raise StagingError E0514 where a parameter is to have an accumulator and has none."""
        there = {n for accumulation in accumulations for n in accumulation.parameters}
        left = sorted(self.request.accumulators.keys() - there)
        if left:
            raise StagingError(
                "E0514",
                f"parameter {left[0]} has no gradient that is added up, and is given an "
                f"accumulator of {self.request.accumulators[left[0]]}",
                hint=f"weights with gradients: parameters {_listed(sorted(there))}",
            )

    def _homes(self) -> dict[int, int]:
        """Return the IPU of each array of the parameters.

        State that only the update reads is where the weight is that has its shape and is updated
        together with it, as the update's ops say.
        """
        ranks = [self._rank(position) for position in range(len(self.stages))]
        rank = owners(self.entry, self.phases, ranks, self.parameters)
        known = {n: self._ipu(r) for n, r in enumerate(rank) if r >= 0}
        positions = {p: known[n] for n, at in enumerate(self.parameters) if n in known for p in at}
        for gradient in self.phases.gradients:
            if ranks[gradient.position] >= 0:
                positions[gradient.position] = self._ipu(ranks[gradient.position])
        only_update = [
            positions.get(n, -1) if phase in (UPDATE, "free", "") or n in positions else -1
            for n, phase in enumerate(self.phases.phase)
        ]
        by_result = self._by_results(only_update)
        for number in range(len(self.parameters)):
            if number not in known:
                known[number] = by_result.get(number, 0)
        return known

    def _rank(self, position: int) -> int:
        """Return a number for where an op runs, by which earlier stages and branches come first."""
        stage = self.stages[position]
        if stage < 0:
            return -1
        spot, width = self.spots.get(position), 1 + max(map(len, self.ipus))
        branch = width - 1 if spot is None or spot.branch == JOIN else spot.branch
        return stage * width + branch

    def _ipu(self, rank: int) -> int:
        stage, branch = divmod(rank, 1 + max(map(len, self.ipus)))
        ipus = self.ipus[stage]
        return ipus[branch] if branch < len(ipus) else ipus[0]

    def _by_results(self, stage_by_position: list[int]) -> dict[int, int]:
        """Return where state is that only the update reads: where its new value is made."""
        for position, op in enumerate(self.entry.instructions):
            if stage_by_position[position] < 0 and self.phases.phase[position] in (UPDATE, "free"):
                here = [stage_by_position[i] for i in op.operands if stage_by_position[i] >= 0]
                if here:
                    stage_by_position[position] = max(here, key=here.count)
        stage_by_parameter = {}
        for pair in self.phases.updated:
            result = self.results[pair.result]
            if result is not None and stage_by_position[result] >= 0:
                stage_by_parameter[pair.parameter] = stage_by_position[result]
        return stage_by_parameter


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _type_of(op: Instruction) -> str:
    return array_shape(op.shape).element_type.name
