"""Loops over layers cut into stages: first all trips are looked at one by one, then put together.

With every trip written out the step is priced and cut as any other. Trips in a row that lie in one
stage become one loop again, so that their code is there once; a trip that is cut inside is written
out. Loops that go back over the layers follow: what they do for a layer is done where its trip is.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from hloipu_compiler.ir.graph import Module
from hloipu_compiler.plan.pipelining import PipelineRequest
from hloipu_compiler.plan.wrapping import Wrapping
from hloipu_compiler.stacking.pieces import InPieces, step_in_pieces
from hloipu_compiler.stacking.splitting import Boundaries, Split, split_loops
from hloipu_compiler.stacking.weight_loops import LayerLoop, layer_loops
from hloipu_compiler.staging.cutting import Costing, annotated
from hloipu_compiler.staging.phases import FORWARD
from hloipu_compiler.staging.pipelining import Cutting, cutting_of, phases_and_kind

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


def peeled_step(module: Module, wrapping: Wrapping) -> InPieces:
    """Return a flat step with every trip of its loops over layers written out, in pieces.

    It comes back as it is where ops are annotated with stages.
    """
    if annotated(module.entry):
        return InPieces(module, wrapping, (), None)
    return _peeled(module, wrapping, layer_loops(module, wrapping))[0]


def staged_step(
    module: Module,
    wrapping: Wrapping,
    request: PipelineRequest,
    costing: Callable[[Module], Costing] | None = None,
) -> StagedStep:
    """Return a flat step with its loops over layers cut into the stages asked for.

    It comes back as it is where one stage is asked for, or ops are annotated with stages. Raises
    what `cutting_of` raises.
    """
    as_it_is = StagedStep(InPieces(module, wrapping, (), None), request, {})
    if (request.stages or 1) == 1 or annotated(module.entry):
        return as_it_is
    loops = layer_loops(module, wrapping)
    if not loops:
        return as_it_is
    phases, _ = phases_and_kind(module.entry, wrapping, request)
    peeled, split = _peeled(module, wrapping, loops)
    found = cutting_of(peeled.module, peeled.wrapping, peeled.request(request), costing)
    ahead = [x for x in loops if phases.phase[x.loop.position] == FORWARD]
    stages = {x.loop.name: _trip_stages(x, found, split) for x in ahead}
    for each in loops:
        if each not in ahead:
            stages[each.loop.name] = _following(each, ahead, stages)
    boundaries = {name: _boundaries(of) for name, of in stages.items() if of}
    parts = split_loops(module, [x.loop for x in loops], boundaries)
    made = step_in_pieces(parts.module, wrapping, parts.cuts)
    entry = found.module.entry
    known = {entry.instructions[n].name: stage for n, stage in found.ahead.items()}
    for name, of in stages.items():
        if of and min(of) == max(of) != _CUT:
            known[name] = of[0]
    for name, (loop, begin, _) in parts.parts.items():
        if stages[loop][begin] != _CUT:
            known[name] = stages[loop][begin]
    lines = tuple(_line(name, of) for name, of in stages.items())
    return StagedStep(made, made.request(request), known, lines)


def _peeled(module: Module, wrapping: Wrapping, loops: list[LayerLoop]) -> tuple[InPieces, Split]:
    every = {x.loop.name: range(x.loop.trips + 1) for x in loops}
    split = split_loops(module, [x.loop for x in loops], every)
    return step_in_pieces(split.module, wrapping, split.cuts), split


def _trip_stages(each: LayerLoop, found: Cutting, split: Split) -> list[int]:
    """Return the stage of each trip of a forward loop; _CUT: several have a part of it."""
    work: list[dict[int, float]] = [{} for _ in range(each.loop.trips)]
    for position, stage in found.ahead.items():
        part = split.parts.get(found.module.entry.instructions[position].name)
        if part is not None and part[0] == each.loop.name:
            cycles = found.cycles[position] if found.cycles else 0.0
            trip = work[part[1]]
            trip[stage] = trip.get(stage, 0.0) + cycles
    return [_most(trip) for trip in work]


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
                found = [_CUT] * each.loop.trips
                for row, trip in trips.items():
                    found[trip] = stages[other.loop.name][rows[row]]
                return found
    return []


def _boundaries(stages: list[int]) -> Boundaries:
    """Return where a part ends: where the stage changes, and around each trip that is cut."""
    inner = [n for n, (a, b) in enumerate(pairwise(stages), 1) if a != b or b == _CUT]
    return [0, *inner, len(stages)]


def _line(name: str, stages: list[int]) -> str:
    if not stages:
        return f"  loop {name} stays whole"
    bounds = _boundaries(stages)
    told = ", ".join(
        f"{_trips(a, b)} {'between stages' if stages[a] == _CUT else f'in stage {stages[a]}'}"
        for a, b in pairwise(bounds)
    )
    return f"  loop {name}: {told}"


def _trips(begin: int, end: int) -> str:
    return f"trip {begin}" if end - begin == 1 else f"trips {begin}-{end - 1}"
