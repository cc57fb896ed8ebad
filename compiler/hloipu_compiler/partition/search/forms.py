"""Forms of a step to compile: loops over layers whole, in parts, or unrolled.

Where a step is cut says which trips of such loops stay one loop. What that costs differs from trips
written out: rows are copied, and nothing is fused from trip to trip. So each form is looked at by
itself, when a cut first asks for it.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

from hloipu_compiler.cost_survey.stage_memory import Reads, reads_of
from hloipu_compiler.cost_survey.survey import Survey, with_weights_beside
from hloipu_compiler.ir.graph import Module, with_computation
from hloipu_compiler.partition.scans.pieces import InPieces
from hloipu_compiler.partition.scans.splitting import Split
from hloipu_compiler.partition.scans.staged_loops import (
    LoopCuts,
    PeeledStep,
    in_parts,
    known_stages,
    loop_cuts,
    with_carried,
)
from hloipu_compiler.partition.search.surveying import PricedOps
from hloipu_compiler.partition.stages.backward_places import with_forward_reads
from hloipu_compiler.partition.stages.handing import written_out
from hloipu_compiler.partition.stages.loads import Loads, loads_of
from hloipu_compiler.partition.stages.pipelining import Cutting, phases_and_kind
from hloipu_compiler.partition.training.reach import parameter_positions
from hloipu_compiler.partition.training.step_phases import BACKWARD, FORWARD, Phases
from hloipu_compiler.plan.pipelining import PipelineRequest
from hloipu_compiler.plan.wrapping import Wrapping

MOST_INSTRUCTIONS = 8_000
"""That are looked at in parts of loops; about as long as it takes to look at them written out."""

StageOf = Mapping[int, int]
"""The stages of forward ops, by position."""


@dataclass(frozen=True, eq=False)
class Form:
    """A step in one form, and what is known of its program."""

    module: Module
    phases: Phases
    wrapping: Wrapping
    survey: Survey
    reads: Reads
    loads: Loads
    """Bytes of weights and gradients alone."""
    known: "dict[int, Form]" = field(default_factory=dict, repr=False)
    """The same by the IPUs of each participant."""

    def on_ipus(self, count: int) -> "Form":
        """Return the form if each participant has so many IPUs."""
        if count == 1 or not self.survey.meetings:
            return self
        if count not in self.known:
            self.known[count] = replace(self, survey=self.survey.on_ipus(count), known={})
        return self.known[count]

    def with_forward_reads(self, reads: Mapping[tuple[int, int], int]) -> "Form":
        """Return the form in which backward ops read forward values that are at hand."""
        entry = with_forward_reads(self.module.entry, reads)
        module = with_computation(self.module, entry)
        return replace(self, module=module, reads=reads_of(entry, self.phases, self.reads.fed))

    @cached_property
    def survey_of_beside(self) -> Survey:
        """As `survey`, if weights are on tiles only while they are read."""
        return with_weights_beside(self.survey)

    @cached_property
    def written_out(self) -> bytearray:
        """Which values are computed wherever they are read."""
        return written_out(self.module.entry, self.phases)

    @cached_property
    def others(self) -> tuple[int, ...]:
        """Positions of the ops that are of no micro-batch, and of parameters."""
        phase = self.phases.phase
        return tuple(n for n, x in enumerate(phase) if x not in (FORWARD, BACKWARD))


@dataclass(frozen=True, eq=False)
class Given:
    """A flat step before its arrays were cut into pieces, and the request for its pipeline."""

    module: Module
    wrapping: Wrapping
    request: PipelineRequest


class Forms:
    """The forms of one step, as far as they have been asked for."""

    def __init__(
        self, given: Given, peeled: PeeledStep, priced: PricedOps, most: int = MOST_INSTRUCTIONS
    ) -> None:
        """`priced`: the step with all trips written out.

        `most`: instructions that are looked at in parts of loops, in all forms together.
        """
        self.given = given
        self.peeled = peeled
        self.priced = priced
        self.cycles: list[float] = [price.cycles for price in priced.prices]
        self.left: int = most
        self._made: dict[Hashable, Form] = {}
        self._in_parts: dict[Hashable, tuple[Split, InPieces]] = {}
        self._lengths: dict[str, dict[int, float]] = {}
        """Loop -> trips in one loop -> cycles of such a trip."""

    def at(self, ahead: StageOf, stages: int) -> tuple[Form, StageOf]:
        """Return the form that a cut asks for, and the stages of its forward ops.

        `ahead`: stages of the forward ops of the step with all trips written out. Once much has
        been looked at, what trips take that stay in one loop is taken from forms that are known.
        """
        peeled = self.peeled
        if peeled.split is None:
            return self._written_out(), ahead
        if stages == 1:
            form = self._whole()
            return form, dict.fromkeys(form.loads.ahead, 0)
        entry = peeled.pieces.module
        cutting = Cutting(entry, peeled.phases, peeled.trains, stages, ahead, self.cycles)
        cuts = loop_cuts(peeled, cutting)
        if cuts.is_written_out:
            return self._written_out(), ahead
        if cuts.key not in self._in_parts and not self._may_look_at(cuts):
            return self._scaled(cuts), ahead
        split, pieces = self._parts(cuts)
        form = self._form(cuts.key, pieces, split)
        known = known_stages(cutting, cuts, split)
        instructions = form.module.entry.instructions
        return form, {
            n: known[instructions[n].name]
            for n in form.loads.ahead
            if instructions[n].name in known
        }

    def _may_look_at(self, cuts: LoopCuts) -> bool:
        """Whether a form is small enough for what is left; if so, take it from that."""
        module = self.peeled.whole
        count = len(module.entry.instructions)
        for each in self.peeled.loops:
            x = module.entry.instructions[each.loop.position]
            body = module.computation[x.attributes.text("body")]
            count += (len(cuts.boundaries[each.loop.name]) - 1) * len(body.instructions)
        if count > self.left:
            return False
        self.left -= count
        return True

    def _parts(self, cuts: LoopCuts) -> tuple[Split, InPieces]:
        if cuts.key not in self._in_parts:
            self._in_parts[cuts.key] = in_parts(self.peeled, self.given.wrapping, cuts)
        return self._in_parts[cuts.key]

    def _written_out(self) -> Form:
        return self._form("written out", self.peeled.pieces)

    def _whole(self) -> Form:
        return self._form("whole", InPieces(self.given.module, self.given.wrapping, (), None))

    def _form(self, key: Hashable, pieces: InPieces, split: Split | None = None) -> Form:
        if key not in self._made:
            form = self._made[key] = self._looked_at(pieces)
            parts = split.parts if split is not None else {}
            if key == "whole":
                parts = {x.loop.name: (x.loop.name, 0, x.loop.trips) for x in self.peeled.loops}
            self._learn(form, parts)
        return self._made[key]

    def _looked_at(self, pieces: InPieces) -> Form:
        module, wrapping = pieces.module, pieces.wrapping
        request = self.given.request
        if self.peeled.split is not None:
            request = with_carried(self.peeled, request)
        request = pieces.request(request)
        entry, phases = module.entry, self.peeled.phases
        if pieces is not self.peeled.pieces:
            phases, _ = phases_and_kind(entry, wrapping, request)
        survey = self.priced.survey(module, phases, wrapping, request)
        places = parameter_positions(entry)
        fed = [i for feed in wrapping.feeds for number in feed.places for i in places[number]]
        return Form(
            module, phases, wrapping, survey, reads_of(entry, phases, fed),
            loads_of(entry, phases, (), [0.0] * len(entry.instructions)),
        )  # fmt: skip

    # --- what was not looked at -------------------------------------------------------------------

    def _learn(self, form: Form, parts: Mapping[str, tuple[str, int, int]]) -> None:
        """Note what trips take that stay in one loop."""
        work: dict[tuple[str, int, int], float] = {}
        for name, part in parts.items():
            position = form.module.entry.position.get(name)
            if position is not None:
                work[part] = work.get(part, 0.0) + form.survey.cycles[position]
        for (loop, begin, end), cycles in work.items():
            if end - begin > 1:
                self._lengths.setdefault(loop, {})[end - begin] = cycles / (end - begin)

    def _scaled(self, cuts: LoopCuts) -> Form:
        """Return the form with trips written out, those of one loop as dear as others known."""
        if cuts.key not in self._made:
            self._whole()
            form = self._written_out()
            position = form.module.entry.position
            cycles, code = list(form.survey.cycles), list(form.survey.op_code)
            ops: dict[tuple[str, int], list[int]] = {}
            for name, (loop, trip, _) in self.peeled.trips.items():
                if name in position:
                    ops.setdefault((loop, trip), []).append(position[name])
            for loop, boundaries in cuts.boundaries.items():
                for begin, end in pairwise(boundaries):
                    known = self._lengths.get(loop, {})
                    if end - begin == 1 or not known:
                        continue
                    each = known[min(known, key=lambda n: abs(n - (end - begin)))]
                    mine = [n for trip in range(begin, end) for n in ops.get((loop, trip), ())]
                    times = each * (end - begin) / max(sum(cycles[n] for n in mine), 1.0)
                    for n in mine:
                        cycles[n] *= times
                        code[n] /= end - begin
            survey = replace(form.survey, cycles=cycles, op_code=code)
            self._made[cuts.key] = replace(form, survey=survey)
        return self._made[cuts.key]
