"""What a way to cut a step would cost, from a survey of the step and the closed forms of slots.

    update = slots of the slowest IPUs + ends of slots + update + remote memory + all-reduce
    memory = state + accumulators + what waits + copies of weights + what is made + code

Nothing is compiled: see `pricing.survey` for what is known of the step.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from hloipu_compiler.choosing.slots import Floats, Work, sums
from hloipu_compiler.choosing.way import OFF, Outlook, Way
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.plan.pipelining import PipelineRequest
from hloipu_compiler.plan.schedule import Schedule
from hloipu_compiler.plan.wrapping import Wrapping
from hloipu_compiler.pricing.costing import Needs, budget_of
from hloipu_compiler.pricing.stage_memory import Parts, Reads, parts_of
from hloipu_compiler.pricing.survey import Survey
from hloipu_compiler.staging.assignment import whole_stages
from hloipu_compiler.staging.balancing import Budget, burdens, cuts_of
from hloipu_compiler.staging.cutting import by_cuts
from hloipu_compiler.staging.loads import Loads, size_of
from hloipu_compiler.staging.phases import Phases
from hloipu_compiler.staging.reach import parameter_positions, result_positions
from hloipu_compiler.staging.recomputing import FULL, made_again
from hloipu_runtime.costing.deciding import branches
from hloipu_runtime.costing.exchange_form import copy_charge
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.costs import sync
from hloipu_runtime.machine.links import Flow, link_transfer
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.machine.transfers import host_transfer, remote_transfer
from hloipu_runtime.memory.plan import available_bytes

_GAPS = 1.1
"""Bytes of the fullest tile to those of an average one, with what placement wastes. Assumed."""
_ALIKE = 1.02
"""Ways whose memory differs by no more, or whose bubbles by so many points, are shown as one."""
_AS_FAST = 1.01
"""Ways that differ by less in throughput are taken to be as fast: estimates tell no more."""
_SURELY = 0.8
"""Of the memory that there is: what needs less fits, however far estimates are off. Assumed."""
_ABOUT = 1.1
"""What may be needed beside the least that any way needs, for speed. Assumed."""


@dataclass(frozen=True, eq=False)
class _Cut:
    """A cut of the step, for any number of micro-batches and replicas."""

    parts: Parts
    state: Floats
    """Of each stage: weights and statistics, bytes."""
    gradients: Floats
    optimizer: Floats
    """What only the update reads."""
    fed: Floats
    """Bytes from the host for each micro-batch, by stage."""
    given: Floats
    """Bytes to the host."""


class _Known:
    """What was found before: it does not depend on how many micro-batches there are."""

    def __init__(self) -> None:
        self.cuts: dict[tuple[object, ...], tuple[int, ...]] = {}
        self.made: dict[tuple[object, ...], _Cut] = {}
        self.work: dict[tuple[object, ...], Work] = {}
        self.sums: dict[tuple[Work, int], tuple[float, float]] = {}
        self.remote: dict[int, float] = {}
        self.copying: dict[int, int] = {}
        self.together: dict[tuple[object, ...], float] = {}


@dataclass(frozen=True)
class Step:
    """A step that has been priced on a machine."""

    machine: Machine
    module: Module
    """Flat, with loops over layers written out."""
    phases: Phases
    wrapping: Wrapping
    loads: Loads
    needs: Needs
    survey: Survey
    reads: Reads
    weights: Loads
    """As `loads`, but of state: without what the survey knows."""
    aside: tuple[int, ...] = ()
    """Bytes of each array of state that only the update reads."""
    marked: Mapping[int, int] = field(default_factory=dict)
    """Stages of ops that are annotated."""
    known: _Known = field(default_factory=_Known, repr=False)

    @property
    def stage_count(self) -> int:
        """Stages that ops are annotated with; 0: none are."""
        return max(self.marked.values(), default=-1) + 1

    @property
    def has_remote(self) -> bool:
        """Whether state can lie beside the IPUs."""
        return self.machine.remote.remote_bytes > 0

    def outlook(self, way: Way) -> Outlook:
        """Return what a way would cost; the step has as many forward ops as stages at least."""
        machine = self.machine
        schedule = Schedule(
            way.stages, way.schedule, way.micro_batches, self.loads.trains and way.stages > 1
        )
        cut = self._cut(way, schedule)
        work = self._work(way, schedule, cut)
        known = (work, way.micro_batches)
        if known not in self.known.sums:
            self.known.sums[known] = sums(schedule, work, way.ipu_of_stage)
        span, between = self.known.sums[known]
        meeting = sync(machine, way.ipus).cycles + branches(machine, 1).total.cycles
        update = span + between + schedule.timetable.slots * meeting + self._update(way, cut)
        whole = way.ipus * span
        bubble = 1 - way.micro_batches * float(work.cycles.sum()) / whole if whole else 0.0
        kept, needed = self._bytes(way, schedule, cut)
        room = machine.chip.tiles_per_ipu * available_bytes(machine)
        return Outlook(
            way,
            round(update),
            way.replicas * way.micro_batches * machine.chip.clock_hz / max(update, 1.0),
            round(kept),
            round(needed),
            room,
            needed <= room,
            bubble,
        )

    # --- where it is cut --------------------------------------------------------------------------

    def budget(self, way: Way) -> Budget:
        """Return what the machine gives each stage, as the compiler will find."""
        request = PipelineRequest(2, way.stages, offload=way.offload)
        return budget_of(self.machine, request, self.needs)

    def _cut(self, way: Way, schedule: Schedule) -> _Cut:
        budget, stages = self.budget(way), way.stages
        recomputes = way.recompute == FULL
        if self.marked:
            cuts: tuple[int, ...] = ()
        else:
            key = (stages, way.schedule, budget, recomputes)
            if key not in self.known.cuts:
                self.known.cuts[key] = self._cuts(schedule, budget, recomputes)
            cuts = self.known.cuts[key]
        made = (stages, cuts, way.recompute)
        if made not in self.known.made:
            ahead = self.marked or by_cuts(self.loads.ahead, cuts)
            self.known.made[made] = self._made(way, schedule, ahead)
        return self.known.made[made]

    def _cuts(self, schedule: Schedule, budget: Budget, recomputes: bool) -> tuple[int, ...]:
        """Return the cuts that the compiler finds: those of any memory, if they need no more."""
        key = (schedule.stages, schedule.trains, recomputes)
        if key not in self.known.cuts:
            free = replace(budget, memory_bytes=np.inf)
            self.known.cuts[key] = cuts_of(self.loads, schedule, free, recomputes=recomputes)
        cuts = self.known.cuts[key]
        needed = burdens(self.loads, schedule, budget, cuts, recomputes=recomputes)
        if max(each.memory_bytes for each in needed) <= budget.memory_bytes:
            return cuts
        return cuts_of(self.loads, schedule, budget, recomputes=recomputes)

    def _made(self, way: Way, schedule: Schedule, ahead: Mapping[int, int]) -> _Cut:
        entry, loads, stages = self.module.entry, self.loads, way.stages
        of_op = whole_stages(entry, self.phases, ahead, stages)
        again = made_again(entry, self.phases, of_op, stages, way.recompute)
        parts = parts_of(
            self.survey, self.reads, self.phases.phase, of_op, stages, again,
            has_backward=schedule.trains,
        )  # fmt: skip
        at = np.array([of_op[position] for position in loads.ahead])

        def by_stage(until: Floats) -> Floats:
            found = np.zeros(stages)
            np.add.at(found, at, np.diff(until))
            return found

        return _Cut(
            parts,
            by_stage(self.weights.state_until),
            by_stage(loads.gradients_until),
            by_stage(loads.optimizer_until),
            *self._host(of_op, stages),
        )

    def _host(self, of_op: tuple[int, ...], stages: int) -> tuple[Floats, Floats]:
        """Return the bytes that go from and to the host for each micro-batch, by stage."""
        entry = self.module.entry
        fed, given = np.zeros(stages), np.zeros(stages)
        places = parameter_positions(entry)
        for number in (n for feed in self.wrapping.feeds for n in feed.places):
            for i in places[number]:
                readers = [of_op[user] for user in entry.users[i] if of_op[user] >= 0]
                fed[min(readers, default=0)] += size_of(entry.instructions[i].shape)
        results = result_positions(entry)
        for number in (n for each in self.wrapping.outfeeds for n in each.places):
            made = results[number]
            if made is not None and of_op[made] >= 0:
                given[of_op[made]] += size_of(entry.instructions[made].shape)
        return fed, given

    # --- cycles -----------------------------------------------------------------------------------

    def _work(self, way: Way, schedule: Schedule, cut: _Cut) -> Work:
        """Return what positions do in a slot."""
        key = (cut, way.schedule, way.replicas, way.device_map)
        if key not in self.known.work:
            self.known.work[key] = self._work_of(way, schedule, cut)
        return self.known.work[key]

    def _work_of(self, way: Way, schedule: Schedule, cut: _Cut) -> Work:
        cycles = cut.parts.cycles.copy()
        for stage in range(way.stages):
            for sizes, to_device in ((cut.fed, True), (cut.given, False)):
                if sizes[stage]:
                    cycles[stage] += self._host_cycles(way, stage, int(sizes[stage]), to_device)
        copies, links = np.zeros(schedule.positions), np.zeros(schedule.positions)
        ipu = [way.ipu_of_stage[schedule.stage_of(n)] for n in range(schedule.positions)]
        flows: dict[int, Counter[tuple[int, int]]] = {}
        handed = cut.parts.handed
        for size, maker, reader in zip(
            handed.bytes.tolist(), handed.maker.tolist(), handed.reader.tolist(), strict=True
        ):
            each = self._copying(round(size))
            if ipu[maker] != ipu[reader]:
                flows.setdefault(maker, Counter())[ipu[maker], ipu[reader]] += round(size)
            else:
                copies[maker] += each
            if reader - maker > schedule.interval:  # several wait: it is taken from its place
                cycles[reader] += each
        for maker, sent in flows.items():
            all_of = [Flow(*ends, size) for ends, size in sent.items()]
            links[maker] = link_transfer(self.machine, all_of, way.ipus).cycles
        return Work(cycles, copies, links)

    def _copying(self, size: int) -> int:
        """Return the cycles of a copy of an array on its own tiles."""
        on_tile = over(size, self.machine.chip.tiles_per_ipu)
        known = self.known.copying
        if on_tile not in known:
            known[on_tile] = copy_charge(self.machine, on_tile, 1).cycles
        return known[on_tile]

    def _host_cycles(self, way: Way, stage: int, size: int, to_device: bool) -> int:
        by_ipu = [0] * way.ipus
        by_ipu[way.ipu_of_stage[stage]] = size
        return host_transfer(
            self.machine,
            by_ipu * way.replicas,
            to_device=to_device,
            busiest_tile_bytes=over(size, self.machine.chip.tiles_per_ipu),
            is_connected=True,
        ).cycles

    def _update(self, way: Way, cut: _Cut) -> float:
        """Return the cycles of an update: what is computed, remote memory, and all-reduces."""
        if not self.loads.trains:
            return self.survey.update_cycles
        # A part of the state is as much work as all of it, as long as tiles have little to do.
        found = self.survey.update_cycles
        if self.is_beside(way):
            found += self._remote(way.replicas if way.shard_optimizer else 1)
        return found + self._together(way, cut)

    def _remote(self, parts: int) -> float:
        """Return the cycles of bringing state from remote memory and back, one part of so many."""
        known = self.known.remote
        if parts not in known:
            known[parts] = sum(
                remote_transfer(self.machine, over(size, parts), write=write).cycles
                for size in self.aside
                for write in (False, True)
            )
        return known[parts]

    def is_beside(self, way: Way) -> bool:
        """Whether what only the update reads lies in remote memory."""
        several = way.micro_batches > 1 or way.stages > 1 or self.loads.trains
        return self.has_remote and several and way.offload != OFF

    def _together(self, way: Way, cut: _Cut) -> float:
        """Return the cycles in which replicas combine gradients in a ring.

        2 (R - 1) / R of the bytes go over each link (Patarasuk and Yuan, 2009).
        """
        count, ipus = way.replicas, way.ipus
        if count == 1:
            return 0.0
        key = (cut, count, way.device_map)
        if key in self.known.together:
            return self.known.together[key]
        sizes = np.zeros(ipus)
        np.add.at(sizes, np.array(way.ipu_of_stage), cut.gradients)
        system = ipus * count
        flows = [
            Flow(p * ipus + ipu, (p + 1) % count * ipus + ipu, round(size / count))
            for p in range(count)
            for ipu, size in enumerate(sizes)
        ]
        each = link_transfer(self.machine, flows, system).cycles + sync(self.machine, system).cycles
        found = self.known.together[key] = float(2 * (count - 1) * each)
        return found

    # --- memory -----------------------------------------------------------------------------------

    def _bytes(self, way: Way, schedule: Schedule, cut: _Cut) -> tuple[float, float]:
        """Return what the fullest IPU keeps from slot to slot, and what it needs in all."""
        parts = cut.parts
        ipu = np.array(way.ipu_of_stage)
        share = 1 / way.replicas if way.shard_optimizer else 1.0
        optimizer = cut.optimizer * share
        waiting = self._waiting(schedule, parts)
        beside = self.is_beside(way)
        kept = cut.state + cut.gradients + waiting + parts.kept_bytes
        if not beside:
            kept = kept + optimizer
        total = max(float(cut.state.sum()), 1.0)
        update = self.survey.update_bytes * share * cut.state / total
        update += cut.state + cut.gradients + optimizer
        code = parts.code_bytes * self.machine.chip.tiles_per_ipu

        def on_ipus(sizes: Floats) -> Floats:
            found = np.zeros(way.ipus)
            np.add.at(found, ipu, sizes)
            return found

        working = np.zeros(way.ipus)
        np.maximum.at(working, ipu, parts.working_bytes)
        held = on_ipus(kept)
        needed = _GAPS * np.maximum(held + working, on_ipus(update)) + on_ipus(code)
        return float(held.max()), float(needed.max())

    def _waiting(self, schedule: Schedule, parts: Parts) -> Floats:
        """Return the bytes of each stage that channels take, whatever micro-batch is at work."""
        handed = parts.handed
        found = np.zeros(parts.stages)
        stage = np.array([schedule.stage_of(n) for n in range(schedule.positions)])
        held = -(-(handed.reader - handed.maker) // schedule.interval)
        np.add.at(found, stage[handed.reader], handed.bytes * np.where(held > 1, held + 1, 1))
        first = handed.is_first
        np.add.at(found, stage[handed.maker[first]], handed.bytes[first])
        return found


def best_of(outlooks: Iterable[Outlook]) -> list[Outlook]:
    """Return those that no other one beats in throughput, memory and bubble; the fastest first.

    What is hardly better than a faster one, in all of these, is left out.
    """
    order = sorted(outlooks, key=lambda x: (-x.per_second, x.needed_bytes, x.bubble))
    found: list[Outlook] = []
    for each in order:
        bytes_enough, bubble_enough = each.needed_bytes * _ALIKE, each.bubble + _ALIKE - 1
        if not any(x.needed_bytes <= bytes_enough and x.bubble <= bubble_enough for x in found):
            found.append(each)
    return found


def choice_of(outlooks: list[Outlook]) -> Outlook:
    """Return the fastest that fits, or where none does, of those that need about least.

    Of ways that are about as fast the plainest that surely fits, or that which needs least.
    """
    fitting = [x for x in outlooks if x.fits]
    least = min(x.needed_bytes for x in outlooks)
    some = fitting or [x for x in outlooks if x.needed_bytes <= _ABOUT * least]
    fastest = max(x.per_second for x in some)
    fast = [x for x in some if x.per_second * _AS_FAST >= fastest]
    least = min(x.needed_bytes for x in fast)
    return min(fast, key=lambda x: _preference(x, least))


def _preference(x: Outlook, least: int) -> tuple[int, int, float]:
    sure = x.fits and x.needed_bytes <= _SURELY * x.room_bytes
    return (0, x.way.extras, -x.per_second) if sure else (1, x.needed_bytes - least, -x.per_second)
