"""Cuts loops over layers into stages: judged trip by trip, then joined again.

With every trip written out the step is priced and cut as any other. Trips in a row that lie in one
stage become one loop again, so that their code is there once; a trip that is cut inside is written
out. Loops that go back over the layers follow: what they do for a layer is done where its trip is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, permutations

from hloipu_compiler.ir.graph import Instruction, Module, with_computation
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.partition.scans.pieces import InPieces, step_in_pieces
from hloipu_compiler.partition.scans.plain_stacks import (
    LayerLoop,
    Source,
    layer_loops,
    with_plain_stacks,
)
from hloipu_compiler.partition.scans.rows_apart import each_row_apart, rows_apart
from hloipu_compiler.partition.scans.splitting import Boundaries, Split, split_loops
from hloipu_compiler.partition.stages.cutting import annotated
from hloipu_compiler.partition.stages.pipelining import Cutting, phases_and_kind
from hloipu_compiler.partition.training.errors import StagingError
from hloipu_compiler.partition.training.step_phases import Phases
from hloipu_compiler.passes.framework.rewriting import Rewriting, with_operands
from hloipu_compiler.plan.pipelining import PipelineRequest
from hloipu_compiler.plan.wrapping import Wrapping

_NEARLY_ALL = 15 / 16
"""Of a trip's cycles: a stage that has as much of them has it whole. Assumed."""
_CUT = -1


@dataclass(frozen=True)
class StagedStep:
    """A step whose loops over layers have been cut."""

    pieces: InPieces
    request: PipelineRequest
    """By the numbers of the step in pieces."""
    known: Mapping[str, int]
    """The stage of forward ops, by name; empty: nothing was cut."""
    lines: tuple[str, ...] = ()
    """What was done, for people."""


@dataclass(frozen=True)
class PeeledStep:
    """A step with every trip of its loops over layers written out, in pieces."""

    pieces: InPieces
    phases: Phases
    trains: bool
    whole: Module
    """Before its loops were written out."""
    loops: tuple[LayerLoop, ...] = ()
    split: Split | None = None

    @property
    def trips(self) -> Mapping[str, tuple[str, int, int]]:
        """What trips ops were of, by name."""
        return self.split.parts if self.split is not None else {}


@dataclass(frozen=True)
class StepApart:
    """A flat step as its stages are looked for, and as it was before."""

    module: Module
    wrapping: Wrapping
    request: PipelineRequest
    """By the numbers of the step as it was."""
    pieces: InPieces | None = None
    """In which stages are looked for; None: the step stays as it is."""
    peeled: PeeledStep | None = None
    """Of a step with loops over layers; of others, it is the rows that are in pieces."""

    @property
    def trips(self) -> Mapping[str, tuple[str, int, int]]:
        """What trips ops were of, by name."""
        return self.peeled.trips if self.peeled is not None else {}


@dataclass(frozen=True)
class LoopCuts:
    """Where loops over layers are cut into parts."""

    trips: Mapping[str, list[int]]
    """The stage of each trip of each loop."""
    boundaries: Mapping[str, Boundaries]

    @property
    def key(self) -> frozenset[tuple[str, tuple[int, ...]]]:
        """What those have in common that make the same parts."""
        return frozenset((name, tuple(cuts)) for name, cuts in self.boundaries.items())

    @property
    def is_written_out(self) -> bool:
        """Whether no part has several trips."""
        pairs = (pair for cuts in self.boundaries.values() for pair in pairwise(cuts))
        return all(b - a == 1 for a, b in pairs)


def peeled_step(module: Module, wrapping: Wrapping, request: PipelineRequest) -> PeeledStep:
    """Return a flat step with every trip of its loops over layers written out, in pieces.

    Loops stay as they are where ops are annotated with stages; a step without such loops has rows
    that are read one by one in pieces. Raises what `phases_of` raises.
    """
    loops = [] if annotated(module.entry) else layer_loops(module, wrapping)
    if not loops:
        return _without_loops(module, wrapping, request)
    whole, module = module, with_own_broadcasts(with_plain_stacks(module, loops))
    if module is not whole:
        loops = layer_loops(module, wrapping)
    every = {loop.loop.name: range(loop.loop.trips + 1) for loop in loops}
    split = split_loops(module, [loop.loop for loop in loops], every)
    cut_step = step_in_pieces(split.module, wrapping, split.cuts)
    try:
        phases = phases_and_kind(
            cut_step.module.entry, cut_step.wrapping, cut_step.request(request)
        )
    except StagingError as error:
        if error.code != "E0501":  # which takes a loop that makes new state for one over steps
            phases_and_kind(whole.entry, wrapping, request)  # says it in the user's numbers
        raise
    return PeeledStep(cut_step, *phases, module, tuple(loops), split)


def _without_loops(module: Module, wrapping: Wrapping, request: PipelineRequest) -> PeeledStep:
    cut_step = each_row_apart(module, wrapping)
    try:
        phases = phases_and_kind(
            cut_step.module.entry, cut_step.wrapping, cut_step.request(request)
        )
    except StagingError:
        cut_step = InPieces(module, wrapping, (), None)  # whose errors are in the user's numbers
        phases = phases_and_kind(module.entry, wrapping, request)
    return PeeledStep(cut_step, *phases, module)


def step_apart(module: Module, wrapping: Wrapping, request: PipelineRequest) -> StepApart:
    """Return a flat step as its stages are looked for: its loops over layers trip by trip.

    Loops stay as they are where one stage is asked for, or ops are annotated with stages. Stacks
    whose rows no loop reads are in rows. Raises what `phases_of` raises.
    """
    as_it_is = StepApart(module, wrapping, request)
    count = request.stages or 1
    if annotated(module.entry):
        return replace(as_it_is, pieces=_in_rows(module, wrapping))
    if count == request.micro_batches == 1:
        return as_it_is
    peeled = peeled_step(module, wrapping, request)
    if peeled.split is None:
        return replace(as_it_is, pieces=_in_rows(module, wrapping)) if count > 1 else as_it_is
    as_it_is = replace(as_it_is, request=with_carried(peeled, request))
    return replace(as_it_is, pieces=peeled.pieces, peeled=peeled) if count > 1 else as_it_is


def staged_step(apart: StepApart, cutting: Cutting | None = None) -> StagedStep:
    """Return a flat step with its loops over layers cut into the stages asked for.

    Stacks whose rows no loop reads are cut as well. `cutting`: stages of the step apart; None: none
    were looked for, or could not be found, and it stays as it is.
    """
    module, wrapping, request = apart.module, apart.wrapping, apart.request
    as_it_is = StagedStep(InPieces(module, wrapping, (), None), request, {})
    if cutting is None:
        return as_it_is
    if apart.peeled is None:
        rows = rows_apart(module, wrapping, cutting)
        if rows is None:
            return as_it_is
        return StagedStep(rows.pieces, rows.pieces.request(request), rows.known, rows.lines)
    cuts = loop_cuts(apart.peeled, cutting)
    split, pieces = in_parts(apart.peeled, wrapping, cuts)
    lines = tuple(_line(name, stages) for name, stages in cuts.trips.items())
    return StagedStep(pieces, pieces.request(request), known_stages(cutting, cuts, split), lines)


def _in_rows(module: Module, wrapping: Wrapping) -> InPieces | None:
    """Return a step with every row that is read on its own a piece; None where there are none."""
    rows = each_row_apart(module, wrapping)
    return None if rows.numbers is None else rows


def loop_cuts(peeled: PeeledStep, cutting: Cutting) -> LoopCuts:
    """Return where a step's loops over layers are cut, whose ops have stages trip by trip."""
    trips = _stages_of_trips(peeled.loops, peeled.trips, cutting)
    own = {name: _boundaries(stages) for name, stages in trips.items()}
    return LoopCuts(trips, _shared(peeled.loops, own))


def in_parts(peeled: PeeledStep, wrapping: Wrapping, cuts: LoopCuts) -> tuple[Split, InPieces]:
    """Return a step with its loops over layers in parts; `wrapping`: of the step before."""
    split = split_loops(peeled.whole, [loop.loop for loop in peeled.loops], cuts.boundaries)
    return split, step_in_pieces(split.module, wrapping, split.cuts)


def with_carried(peeled: PeeledStep, request: PipelineRequest) -> PipelineRequest:
    """Return the request with the state that loops make anew for each micro-batch.

    A loop reads all that it carries, as far as one can tell from outside; only trip by trip one
    sees that the loss does not depend on moving averages, say.
    """
    moving = {pair.parameter for pair in peeled.phases.per_micro_batch}
    numbers = peeled.pieces.numbers
    if not peeled.trains or numbers is None:
        return request
    carried = {n for n, new in enumerate(numbers.parameters) if moving.intersection(new)}
    return replace(request, carried=request.carried | carried)


def known_stages(cutting: Cutting, cuts: LoopCuts, split: Split) -> dict[str, int]:
    """Return the stages of forward ops by name: as cut trip by trip, and of parts of loops."""
    entry, trips = cutting.module.entry, cuts.trips
    known = {entry.instructions[n].name: stage for n, stage in cutting.ahead.items()}
    for name, stages in trips.items():
        if stages and min(stages) == max(stages) != _CUT:
            known[name] = stages[0]
    for name, (loop, begin, _) in split.parts.items():
        if trips[loop][begin] != _CUT:
            known[name] = trips[loop][begin]
    return known


def _stages_of_trips(
    loops: Sequence[LayerLoop], parts: Mapping[str, tuple[str, int, int]], cutting: Cutting
) -> dict[str, list[int]]:
    """Return the stage of each trip of each loop; none for a loop that stays whole."""
    work: dict[str, list[dict[int, float]]] = {}
    count = {loop.loop.name: loop.loop.trips for loop in loops}
    for position, stage in cutting.ahead.items():
        part = parts.get(cutting.module.entry.instructions[position].name)
        if part is not None:
            name, trip, _ = part
            trips = work.setdefault(name, [{} for _ in range(count[name])])
            cycles = cutting.cycles[position] if cutting.cycles else 0.0
            trips[trip][stage] = trips[trip].get(stage, 0.0) + cycles
    stages = {name: [_most(trip) for trip in trips] for name, trips in work.items()}
    ahead = [loop for loop in loops if loop.loop.name in stages]
    return {
        loop.loop.name: stages[loop.loop.name] if loop in ahead else _following(loop, ahead, stages)
        for loop in loops
    }


def _most(work: Mapping[int, float]) -> int:
    """Return the stage that has nearly all of a trip; _CUT where none has."""
    if not work:
        return _CUT
    stage = max(work, key=lambda s: work[s])
    return stage if len(work) == 1 or work[stage] >= _NEARLY_ALL * sum(work.values()) else _CUT


def _following(
    each: LayerLoop, ahead: list[LayerLoop], stages: Mapping[str, list[int]]
) -> list[int]:
    """Return the stages of trips that use the rows of forward loops; none where nothing tells."""
    for source, trips in each.reads.items():
        for other in ahead:
            rows = other.writes.get(source) or other.reads.get(source, {})
            if trips.keys() <= rows.keys():
                stage_by_trip = [_CUT] * each.loop.trips
                for row, trip in trips.items():
                    stage_by_trip[trip] = stages[other.loop.name][rows[row]]
                return stage_by_trip
    return []


def _boundaries(stages: list[int]) -> Boundaries:
    """Return where a part ends: where the stage changes, and around each trip that is cut.

    Nowhere for a loop of which nothing tells.
    """
    inner = [n for n, (a, b) in enumerate(pairwise(stages), 1) if a != b or b == _CUT]
    return [0, *inner, len(stages)] if stages else []


def _shared(loops: Sequence[LayerLoop], own: Mapping[str, Boundaries]) -> dict[str, Boundaries]:
    """Return boundaries such that loops over one stack cut it in the same places.

    A stack that one loop takes whole could not be in pieces for others.
    """
    boundaries_by_loop = {
        loop.loop.name: {0, loop.loop.trips, *own[loop.loop.name]} for loop in loops
    }
    readers: dict[Source, list[LayerLoop]] = {}
    for each in loops:
        for source in each.reads:
            readers.setdefault(source, []).append(each)
    for source, those in readers.items():
        for one, other in permutations(those, 2):
            at = other.reads[source]
            rows = {trip: row for row, trip in one.reads[source].items()}
            for n in own[one.loop.name][1:-1]:
                pair = at.get(rows[n - 1]), at.get(rows[n])
                if None not in pair:
                    boundaries_by_loop[other.loop.name].add(max(x for x in pair if x is not None))
    return {name: sorted(cuts) for name, cuts in boundaries_by_loop.items()}


def _line(name: str, stages: list[int]) -> str:
    if not stages:
        return f"  loop {name} stays whole"
    places = ["between stages" if stage == _CUT else f"in stage {stage}" for stage in stages]
    begins = [n for n, place in enumerate(places) if n == 0 or place != places[n - 1]]
    told = ", ".join(f"{_trips(a, b)} {places[a]}" for a, b in pairwise([*begins, len(places)]))
    return f"  loop {name}: {told}"


def _trips(begin: int, end: int) -> str:
    return f"trip {begin}" if end - begin == 1 else f"trips {begin}-{end - 1}"


def with_own_broadcasts(module: Module) -> Module:
    """Return the module with a broadcast of a number in the entry for each op that reads it.

    Rates and constants are spread once for all stacks that are of one size. Stacks that are cut in
    different places have nothing in common then, while one array can be cut in one way only.
    """
    entry = module.entry
    shared = {
        position
        for position, op in enumerate(entry.instructions)
        if op.opcode == "broadcast"
        and len(entry.users[position]) > 1
        and _is_number(entry.instructions[op.operands[0]])
        and not _is_number(op)
    }
    if not shared:
        return module
    draft = Rewriting(entry)
    made, place = draft.made, draft.place
    for position, op in enumerate(entry.instructions):
        own: dict[int, int] = {}
        for i in op.operands:
            if i in shared and position != entry.users[i][0]:
                name = draft.fresh_name(entry.instructions[i].name)
                own[i] = draft.append(made[place[i]]._replace(name=name))
        operands = tuple([own.get(i, place[i]) for i in op.operands])
        place.append(draft.append(with_operands(op, operands)))
    return with_computation(module, draft.finish())


def _is_number(op: Instruction) -> bool:
    return isinstance(op.shape, ArrayShape) and op.shape.element_count == 1
