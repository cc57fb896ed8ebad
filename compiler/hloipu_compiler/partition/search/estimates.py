"""Cost model of candidates, from a survey of the step and closed forms of slots.

    update = slots of the slowest IPUs + ends of slots + update + remote memory + all-reduce
    memory = state + accumulators + what waits + copies of weights + what is made + code

Nothing is compiled: see `pricing.survey` for what is known of the step.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from hloipu_compiler.compilation import CompileRequest, Phase
from hloipu_compiler.cost_survey.costing import Needs, budget_of, needs_of
from hloipu_compiler.cost_survey.op_prices import FREE, source_of
from hloipu_compiler.cost_survey.stage_memory import FIRST
from hloipu_compiler.driver import compile_module, op_prices
from hloipu_compiler.ir.graph import Computation, Module
from hloipu_compiler.ir.shapes import byte_count
from hloipu_compiler.partition.scans.staged_loops import peeled_step
from hloipu_compiler.partition.search.candidate import OFF, OFFLOADABLE, ON, Candidate, Estimate
from hloipu_compiler.partition.search.channels import channels_of
from hloipu_compiler.partition.search.cut import Cut, cut_of
from hloipu_compiler.partition.search.forms import MOST_INSTRUCTIONS, Forms, Given
from hloipu_compiler.partition.search.joining import joined, pieces_of
from hloipu_compiler.partition.search.memory_needs import GAPS, NeededBytes, bytes_of
from hloipu_compiler.partition.search.remote import RemoteCycles
from hloipu_compiler.partition.search.slots import Work, sums
from hloipu_compiler.partition.search.surveying import PricedOps
from hloipu_compiler.partition.stages.assignment import whole_stages
from hloipu_compiler.partition.stages.balancing import burdens, cuts_of
from hloipu_compiler.partition.stages.block_recomputing import made_again_before
from hloipu_compiler.partition.stages.cut_tables import Budget, CutTables
from hloipu_compiler.partition.stages.cutting import annotated, by_cuts
from hloipu_compiler.partition.stages.loads import Loads, layers_of, loads_of
from hloipu_compiler.partition.stages.recomputing import BLOCKS, made_again
from hloipu_compiler.partition.training.step_phases import BACKWARD, FORWARD
from hloipu_compiler.plan.pipelining import PipelineRequest
from hloipu_compiler.plan.plan import Plan
from hloipu_compiler.plan.schedule import SEQUENTIAL, Schedule
from hloipu_compiler.plan.wrapping import Wrapping
from hloipu_runtime.costs.collecting import folded
from hloipu_runtime.costs.deciding import branches
from hloipu_runtime.costs.exchange_form import copy_charge
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.costs import sync
from hloipu_runtime.machine.links import Flow, link_transfer
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.machine.transfers import host_transfer
from hloipu_runtime.memory.plan import available_bytes


class _Known:
    """What was found before: it does not depend on how many micro-batches there are."""

    def __init__(self) -> None:
        self.cuts: dict[tuple[object, ...], tuple[int, ...]] = {}
        self.made: dict[tuple[object, ...], Cut] = {}
        self.work: dict[tuple[object, ...], Work] = {}
        self.sums: dict[tuple[Work, int], tuple[float, float]] = {}
        self.copying: dict[int, int] = {}
        self.bytes: dict[tuple[object, ...], NeededBytes] = {}
        self.updates: dict[tuple[object, ...], float] = {}
        self.together: dict[tuple[object, ...], float] = {}


@dataclass(frozen=True)
class Step:
    """A step that has been priced on a machine."""

    machine: Machine
    loads: Loads
    """With loops over layers written out."""
    needs: Needs
    forms: Forms
    marked: Mapping[int, int] = field(default_factory=dict)
    """Stages of ops that are annotated."""
    can_fit: bool = True
    """Whether any IPU has room for what single ops read."""
    partitions: int = 1
    """That the arrays of a replica are divided over; the step is that of one of them."""
    known: _Known = field(default_factory=_Known, repr=False)

    @cached_property
    def remote(self) -> RemoteCycles:
        """What transfers between IPUs and the memory beside them take."""
        return RemoteCycles(self.machine)

    @property
    def stage_count(self) -> int:
        """Stages that ops are annotated with; 0: none are."""
        return max(self.marked.values(), default=-1) + 1

    @property
    def has_remote(self) -> bool:
        """Whether state can lie beside the IPUs."""
        return self.machine.remote.remote_bytes > 0

    def may_lie_beside(self, kind: str) -> bool:
        """Whether there is anything of a kind, of `OFFLOADABLE`, that can lie beside the IPUs."""
        return self.has_remote and (self.loads.trains or kind != "offload_accumulators")

    def estimate(self, candidate: Candidate) -> Estimate:
        """Return what a candidate would cost; the step has a forward op or more a stage."""
        machine = self.machine
        schedule = self._schedule(candidate)
        cut = self._cut(candidate, schedule)
        memory = self._bytes(candidate, schedule, cut)
        work = self._work(candidate, schedule, cut, memory.copies_kept)
        known = (work, candidate.micro_batches)
        if known not in self.known.sums:
            self.known.sums[known] = sums(schedule, work, candidate.ipu_of_stage)
        span, between = self.known.sums[known]
        meeting = sync(machine, candidate.ipus).cycles + branches(machine, 1).total.cycles
        update = span + between + schedule.timetable.slots * meeting + self._update(candidate, cut)
        update += self.remote.of_groups(candidate, cut)
        if work.offloading is not None and schedule.timetable.slots == 1:
            update = max(update - span + float(work.cycles.sum()), float(work.offloading.sum()))
        whole = candidate.ipus * span
        bubble = 1 - candidate.micro_batches * float(work.cycles.sum()) / whole if whole else 0.0
        budget_bytes = machine.chip.tiles_per_ipu * available_bytes(machine)
        return Estimate(
            candidate,
            round(update),
            candidate.replicas * candidate.micro_batches * machine.chip.clock_hz / max(update, 1.0),
            round(memory.kept),
            round(memory.needed),
            budget_bytes,
            memory.needed <= budget_bytes,
            bubble,
        )

    def rate_of_copies(self, ipus: int, micro_batches: int, efficiency: float = 1.0) -> float:
        """Return the micro-batches a second of so many IPUs with all of a step on each.

        Whether it fits or not, and if nothing had to be combined between them. No way to use the
        IPUs is faster by much: work is the same, and so is what the host gives and takes.
        `efficiency`: with which micro-batches are computed, host and update apart.
        """
        copies = Candidate(micro_batches=micro_batches, replicas=ipus)
        estimate = self.estimate(copies)
        cut = self._cut(copies, self._schedule(copies))
        alone = estimate.update_cycles - self._together(copies, cut)
        alone += (1 / efficiency - 1) * micro_batches * float(cut.parts.cycles.sum())
        return estimate.per_second * estimate.update_cycles / max(alone, 1.0)

    def _schedule(self, candidate: Candidate) -> Schedule:
        return Schedule(
            candidate.stages,
            candidate.schedule,
            candidate.micro_batches,
            self.loads.trains and candidate.stages > 1,
            candidate.batch_serialization,
        )

    # --- where it is cut --------------------------------------------------------------------------

    def budget(self, candidate: Candidate) -> Budget:
        """Return what the machine gives each stage, as the compiler will find."""
        request = PipelineRequest(
            2,
            candidate.stages,
            offload=candidate.offload,
            **{name: getattr(candidate, name) for name in OFFLOADABLE},
        )
        return budget_of(self.machine, request, self.needs)

    def _cut(self, candidate: Candidate, schedule: Schedule) -> Cut:
        budget, stages = self.budget(candidate), candidate.stages
        recompute, cuts = candidate.recompute, candidate.cut_at
        if not self.marked and not cuts:
            group = min(candidate.batch_serialization, candidate.micro_batches)
            ipus = candidate.device_map
            key = (stages, candidate.schedule, group, budget, recompute, ipus)
            if key not in self.known.cuts:
                self.known.cuts[key] = self._cuts(schedule, budget, recompute, ipus)
            cuts = self.known.cuts[key]
        apart = candidate.ipus if self.partitions > 1 else 1
        key_of_cut = (stages, cuts, candidate.recompute, apart)
        if key_of_cut not in self.known.made:
            ahead = self.marked or by_cuts(self.loads.ahead, cuts)
            self.known.made[key_of_cut] = self._made(candidate, schedule, ahead, apart)
        return self.known.made[key_of_cut]

    def _cuts(
        self, schedule: Schedule, budget: Budget, recompute: str, ipus: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Return the cuts that the compiler finds: those of any memory, if they need no more."""

        def found(budget: Budget) -> tuple[int, ...]:
            return cuts_of(self.loads, schedule, budget, recompute=recompute, ipus=ipus)

        # On the sequential schedule cuts do not go by where stages are, unless all are on one IPU.
        where = (schedule.kind == SEQUENTIAL and len(set(ipus)) != 1) or ipus
        key = (schedule.stages, schedule.trains, recompute, where)
        if key not in self.known.cuts:
            self.known.cuts[key] = found(replace(budget, memory_bytes=np.inf))
        cuts = self.known.cuts[key]
        kept: Counter[int] = Counter()
        needed = burdens(self.loads, schedule, budget, cuts, recompute=recompute)
        for stage, each in enumerate(needed):
            kept[ipus[stage] if ipus else stage] += round(each.memory_bytes)
        return cuts if max(kept.values()) <= budget.memory_bytes else found(budget)

    def cut_anew(self, candidate: Candidate) -> list[Candidate]:
        """Return a candidate with other cuts, found by what pieces of the step need by estimate.

        None of a step with loops over layers, which would have to be looked at in pieces.
        """
        is_flat = self.forms.peeled.split is None and not self.marked
        places = pieces_of(self.loads, candidate.stages) if is_flat else ()
        if not places:
            return []
        pieces = replace(candidate, stages=len(places) + 1, device_map=(), cut_at=places)
        cut = self._cut(pieces, self._schedule(pieces))
        ends = np.array([0, *places, len(self.loads.ahead)])
        schedule, budget = self._schedule(candidate), self.budget(candidate)
        tables = CutTables(self.loads, schedule, budget, ends, candidate.recompute)
        usual = self._cuts(schedule, budget, candidate.recompute, candidate.device_map)
        found = joined(
            cut, tables, candidate.ipu_of_stage,
            self.machine.chip.tiles_per_ipu * available_bytes(self.machine),
            GAPS * cut.form.survey.fullest_to_mean, self.machine.chip.tiles_per_ipu,
        )  # fmt: skip
        return [replace(candidate, cut_at=cuts) for cuts in dict.fromkeys(found) if cuts != usual]

    def _made(
        self, candidate: Candidate, schedule: Schedule, ahead: Mapping[int, int], apart: int
    ) -> Cut:
        """Return what a cut comes to; `apart`: IPUs from one participant to the next."""
        stages = candidate.stages
        form, ahead = self.forms.at(ahead, stages)
        form = form.on_ipus(apart)
        entry, phases = form.module.entry, form.phases
        of_op, forward_reads, _ = whole_stages(entry, phases, ahead, stages)
        if forward_reads:
            form = form.with_forward_reads(forward_reads)
            entry = form.module.entry
        again: dict[int, dict[int, int]] = {}
        if candidate.recompute == BLOCKS and self.loads.trains:
            for op, reader in made_again_before(entry, phases, of_op, stages).items():
                again.setdefault(of_op[op], {})[op] = reader
        else:
            some = made_again(entry, phases, of_op, stages, candidate.recompute)
            again = {stage: dict.fromkeys(ops, FIRST) for stage, ops in some.items()}
        return cut_of(form, of_op, stages, again, has_backward=schedule.trains)

    # --- cycles -----------------------------------------------------------------------------------

    def _work(
        self, candidate: Candidate, schedule: Schedule, cut: Cut, copies_kept: tuple[float, ...]
    ) -> Work:
        """Return what positions do in a slot.

        `copies_kept`: of each IPU, the share of copies of weights that are not made in slots.
        """
        group = min(candidate.batch_serialization, candidate.micro_batches)
        key = (
            cut,
            candidate.schedule,
            candidate.replicas,
            candidate.device_map,
            candidate.offloaded_kinds,
            group,
            copies_kept,
        )
        if key not in self.known.work:
            self.known.work[key] = self._work_of(candidate, schedule, cut, copies_kept)
        return self.known.work[key]

    def _work_of(
        self, candidate: Candidate, schedule: Schedule, cut: Cut, copies_kept: tuple[float, ...]
    ) -> Work:
        cycles = cut.parts.cycles + np.array(self.remote.in_slots(candidate, cut))
        kept = [
            copies_kept[candidate.ipu_of_stage[schedule.stage_of(n)]]
            for n in range(schedule.positions)
        ]
        cycles -= np.minimum(cut.parts.copy_cycles, cut.parts.cycles) * np.array(kept)
        io_tiles, hosted = cut.form.wrapping.io_tiles, np.zeros(schedule.positions)
        for stage in range(candidate.stages):
            host = sum(
                self._host_cycles(candidate, stage, int(sizes[stage]), to_device, io_tiles)
                for sizes, to_device in ((cut.fed, True), (cut.given, False))
                if sizes[stage]
            )
            # Tiles set apart hand over first, and go on with transfers while the others compute.
            handing = self._copying(round(cut.fed[stage] + cut.given[stage])) if host else 0
            cycles[stage] += handing if io_tiles else host
            hosted[stage] = handing + host
        copies, links, stored = (np.zeros(schedule.positions) for _ in range(3))
        fetched, away = np.zeros(schedule.positions), np.zeros(schedule.positions)
        ipu = [candidate.ipu_of_stage[schedule.stage_of(n)] for n in range(schedule.positions)]
        flows: dict[int, Counter[tuple[int, int]]] = {}
        channels = channels_of(candidate, schedule, cut)
        rows = (
            channels.bytes, channels.maker, channels.reader, channels.has_places,
            channels.is_offloaded, channels.is_read_where_made,
        )  # fmt: skip
        for size, maker, reader, has_places, is_offloading, is_read_where_made in zip(
            *(row.tolist() for row in rows), strict=True
        ):
            if is_read_where_made:
                continue
            if is_offloading:
                fetched[reader] += size
                away[maker] += size
                if ipu[maker] == ipu[reader]:
                    continue
            each = self._copying(round(size))
            if ipu[maker] != ipu[reader]:
                flows.setdefault(maker, Counter())[ipu[maker], ipu[reader]] += round(size)
            else:
                copies[maker] += each
            if has_places:
                cycles[reader] += each
        for maker, sent in flows.items():
            all_of = [Flow(*ends, size) for ends, size in sent.items()]
            links[maker] = link_transfer(self.machine, all_of, candidate.ipus).cycles
        for position in range(schedule.positions):
            cycles[position] += self.remote.one(round(fetched[position]), write=False)
            stored[position] = self.remote.one(round(away[position]), write=True)
        chassis = self.machine.links.ipus_per_machine
        return Work(cycles, copies, links, stored, hosted if io_tiles else None, chassis)

    def _copying(self, size: int) -> int:
        """Return the cycles of a copy of an array on its own tiles."""
        on_tile = over(size, self.machine.chip.tiles_per_ipu)
        known = self.known.copying
        if on_tile not in known:
            known[on_tile] = copy_charge(self.machine, on_tile, 1).cycles
        return known[on_tile]

    def _host_cycles(
        self, candidate: Candidate, stage: int, size: int, to_device: bool, io_tiles: int
    ) -> int:
        by_ipu = [0] * candidate.ipus
        by_ipu[candidate.ipu_of_stage[stage]] = size
        return host_transfer(
            self.machine,
            by_ipu * candidate.replicas * self.partitions,
            to_device=to_device,
            busiest_tile_bytes=over(size, io_tiles or self.machine.chip.tiles_per_ipu),
            is_connected=True,
        ).cycles

    def _update(self, candidate: Candidate, cut: Cut) -> float:
        """Return the cycles of an update: what is computed, remote memory, and all-reduces.

        IPUs are at work at the same time, but for what collectives keep apart.
        """
        # A part of the state is as much work as all of it, as long as tiles have little to do.
        offloading, parts = (
            self.is_offloading(candidate),
            candidate.replicas if candidate.shard_optimizer else 0,
        )
        key = (cut, candidate.device_map, candidate.offloaded_kinds, offloading, parts)
        if key not in self.known.updates:
            each = cut.update_cycles + self.remote.of_update(
                candidate, cut, is_offloading=offloading
            )
            of_ipu = np.zeros(candidate.ipus)
            np.add.at(of_ipu, np.array(candidate.ipu_of_stage), each)
            self.known.updates[key] = float(of_ipu.sum() if parts else of_ipu.max())
        cycles = cut.common_cycles + self.known.updates[key]
        return cycles + self._together(candidate, cut)

    def _bytes(self, candidate: Candidate, schedule: Schedule, cut: Cut) -> NeededBytes:
        """Return what `bytes_of` does, which how many micro-batches there are does not change."""
        key = (
            cut,
            candidate.schedule,
            candidate.device_map,
            candidate.offloaded_kinds,
            self.is_offloading(candidate),
            candidate.replicas if candidate.shard_optimizer else 0,
            min(candidate.batch_serialization, candidate.micro_batches),
        )
        if key not in self.known.bytes:
            offloading = self.is_offloading(candidate)
            self.known.bytes[key] = bytes_of(
                self.machine, candidate, schedule, cut, is_offloading=offloading
            )
        return self.known.bytes[key]

    def is_offloading(self, candidate: Candidate) -> bool:
        """Whether what only the update reads lies in remote memory."""
        several = candidate.micro_batches > 1 or candidate.stages > 1
        return self.has_remote and candidate.offload != OFF and (several or candidate.offload == ON)

    def _together(self, candidate: Candidate, cut: Cut) -> float:
        """Return the cycles in which replicas combine gradients in a ring.

        2 (R - 1) / R of the bytes go over each link (Patarasuk and Yuan, 2009).
        """
        count = candidate.replicas
        if count == 1 or not self.loads.trains:
            return 0.0
        key = (cut, count, candidate.device_map, candidate.shard_optimizer)
        if key in self.known.together:
            return self.known.together[key]
        sizes = np.zeros(candidate.ipus)
        np.add.at(sizes, np.array(candidate.ipu_of_stage), cut.gradients)
        sizes = np.tile(sizes, self.partitions)
        each = min(
            self._ring_phase(ring, sizes.tolist(), apart=candidate.shard_optimizer)
            for ring in (range(count), folded(range(count)))
        )
        cycles = self.known.together[key] = float(2 * (count - 1) * each)
        return cycles

    def _ring_phase(self, ring: Sequence[int], sizes: Sequence[float], *, apart: bool) -> int:
        """Return the cycles in which each replica hands its part of gradients on to the next.

        `sizes`: bytes on each IPU of a replica. `apart`: the update calls for the halves of a
        sharded optimizer, one IPU after the other.
        """
        count, ipus = len(ring), len(sizes)
        system = ipus * count
        pairs = list(zip(ring, [*ring[1:], ring[0]], strict=True))
        flows = [
            [Flow(a * ipus + ipu, b * ipus + ipu, round(size / count)) for a, b in pairs]
            for ipu, size in enumerate(sizes)
        ]
        if not apart:
            flows = [[flow for several in flows for flow in several]]
        each = sum(link_transfer(self.machine, several, system).cycles for several in flows)
        return each + len(flows) * sync(self.machine, system).cycles


def priced_step(module: Module, request: CompileRequest) -> tuple[Step, Wrapping]:
    """Return a verified step priced on a machine, without I/O tiles, and how it is wrapped.

    It is priced as one replica, whatever is asked for. Raises what finding the phases of a step
    raises, UsageError E3150 to E3152 for its wrapping.
    """
    asked = replace(request.pipelining, stages=request.pipelining.stages or 1)
    compilation = compile_module(
        module, replace(request, pipeline="front", pipelining=asked, replicas=None), Phase.FLAT
    )
    flat, wrapped, pipelining = (
        compilation.module,
        compilation.wrapped,
        compilation.request.pipelining,
    )
    machine, tuning = request.computing, request.tuning
    marked = annotated(flat.entry)
    peeled = peeled_step(flat, wrapped, pipelining)
    entry, phases = peeled.pieces.module.entry, peeled.phases
    plan = Plan(replicas=compilation.plan.replicas, partitions=compilation.plan.partitions)
    prices = op_prices(peeled.pieces.module, machine, tuning, plan)
    priced = PricedOps(peeled.pieces.module, machine, tuning, prices, plan)
    cycles = [price.cycles for price in prices]
    constants = peeled.pieces.wrapping.lasting
    trips = peeled.trips or layers_of(entry, phases)
    loads = loads_of(entry, phases, constants, cycles, trips)
    stages = {n: s for n, s in marked.items() if phases.phase[n] in (FORWARD, BACKWARD)}
    can_fit = _most_read(entry) <= machine.chip.tiles_per_ipu * available_bytes(machine)
    most = MOST_INSTRUCTIONS if can_fit else 0
    forms = Forms(Given(flat, wrapped, pipelining), peeled, priced, most)
    step = Step(machine, loads, needs_of(prices), forms, stages, can_fit, plan.partitions)
    return step, wrapped


def _most_read(entry: Computation) -> int:
    """Return the most bytes of parameters that one op reads: they have to be on its IPU at once."""
    most = 0
    for x in entry.instructions:
        if x.opcode not in FREE:
            sources = {source_of(entry, i) for i in x.operands}
            given = (n for n in sources if entry.instructions[n].parameter_number >= 0)
            most = max(most, sum(byte_count(entry.instructions[n].shape) for n in given))
    return most
