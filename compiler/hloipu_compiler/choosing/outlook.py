"""What a way to cut a step would cost, from a survey of the step and the closed forms of slots.

    update = slots of the slowest IPUs + ends of slots + update + remote memory + all-reduce
    memory = state + accumulators + what waits + copies of weights + what is made + code

Nothing is compiled: see `pricing.survey` for what is known of the step.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from hloipu_compiler.choosing.slots import Floats, sums
from hloipu_compiler.choosing.way import OFF, Outlook, Way
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.plan.pipelining import PipelineRequest
from hloipu_compiler.plan.schedule import Schedule
from hloipu_compiler.plan.wrapping import Wrapping
from hloipu_compiler.pricing.costing import budget_of
from hloipu_compiler.pricing.op_prices import OpPrice
from hloipu_compiler.pricing.stage_memory import Parts, Reads, parts_of
from hloipu_compiler.pricing.survey import Survey
from hloipu_compiler.staging.assignment import whole_stages
from hloipu_compiler.staging.balancing import Budget, cuts_of
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

_GAPS = 1.08
"""Bytes of the fullest tile to those of an average one, with what placement wastes. Assumed."""
_ALIKE = 1.02
"""Ways whose memory differs by no more, or whose bubbles by so many points, are shown as one."""
_AS_FAST = 1.01
"""Ways that differ by less in throughput are taken to be as fast: estimates tell no more."""
_ABOUT = 1.1
"""What may be needed beside the least that any way needs, for speed. Assumed."""


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Step:
    """A step that has been priced on a machine."""

    machine: Machine
    module: Module
    """Flat, with loops over layers written out."""
    phases: Phases
    wrapping: Wrapping
    loads: Loads
    prices: list[OpPrice]
    survey: Survey
    reads: Reads
    weights: Loads
    """As `loads`, but of state: without what the survey knows."""
    marked: Mapping[int, int] = field(default_factory=dict)
    """Stages of ops that are annotated."""
    known: dict[tuple[object, ...], _Cut] = field(default_factory=dict, repr=False)
    """Cuts found before: they do not depend on how many micro-batches there are."""

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
        cycles, ends = self._cycles(way, schedule, cut)
        span, between = sums(schedule, cycles, way.ipu_of_stage, ends)
        meeting = sync(machine, way.ipus).cycles + branches(machine, 1).total.cycles
        update = span + between + schedule.timetable.slots * meeting + self._update(way, cut)
        whole = way.ipus * span
        bubble = 1 - way.micro_batches * float(cycles.sum()) / whole if whole else 0.0
        kept, needed = self._bytes(way, schedule, cut)
        room = machine.chip.tiles_per_ipu * available_bytes(machine)
        return Outlook(
            way,
            round(update),
            way.replicas * way.micro_batches * machine.chip.clock_hz / max(update, 1.0),
            round(kept),
            round(needed),
            needed <= room,
            bubble,
        )

    # --- where it is cut --------------------------------------------------------------------------

    def budget(self, way: Way) -> Budget:
        """Return what the machine gives each stage, as the compiler will find."""
        request = PipelineRequest(way.micro_batches, way.stages, offload=way.offload)
        return budget_of(self.machine, request, self.prices)

    def _cut(self, way: Way, schedule: Schedule) -> _Cut:
        budget = self.budget(way)
        key = (way.stages, way.schedule, budget, way.recompute)
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self._found(way, schedule, budget)
        return found

    def _found(self, way: Way, schedule: Schedule, budget: Budget) -> _Cut:
        entry, loads, stages = self.module.entry, self.loads, way.stages
        ahead = self.marked
        if not ahead:
            recomputes = way.recompute == FULL
            ahead = by_cuts(loads.ahead, cuts_of(loads, schedule, budget, recomputes=recomputes))
        of_op = whole_stages(entry, self.phases, ahead, stages)
        again = made_again(entry, self.phases, of_op, stages, way.recompute)
        parts = parts_of(
            self.survey, self.reads, self.phases.phase, of_op, stages, again, has_backward=schedule.trains
        )
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
            i = results[number]
            if i is not None and of_op[i] >= 0:
                given[of_op[i]] += size_of(entry.instructions[i].shape)
        return fed, given

    # --- cycles -----------------------------------------------------------------------------------

    def _cycles(self, way: Way, schedule: Schedule, cut: _Cut) -> tuple[Floats, Floats]:
        """Return the cycles of each position, and of the copies after it."""
        cycles = cut.parts.cycles.copy()
        for stage in range(way.stages):
            for sizes, to_device in ((cut.fed, True), (cut.given, False)):
                if sizes[stage]:
                    cycles[stage] += self._host_cycles(way, stage, int(sizes[stage]), to_device)
        machine, handed = self.machine, cut.parts.handed
        ends = np.zeros(schedule.positions)
        tiles = machine.chip.tiles_per_ipu
        ipu = [way.ipu_of_stage[schedule.stage_of(n)] for n in range(schedule.positions)]
        totals: dict[tuple[int, int], float] = {}
        for size, maker, reader in zip(handed.bytes, handed.maker, handed.reader, strict=True):
            totals[(maker, reader)] = totals.get((maker, reader), 0.0) + size
        flows: dict[int, list[Flow]] = {}
        for (maker, reader), size in totals.items():
            if ipu[maker] != ipu[reader]:
                flows.setdefault(maker, []).append(Flow(ipu[maker], ipu[reader], round(size)))
            else:
                ends[maker] += copy_charge(machine, over(round(size), tiles), 1).cycles
            if schedule.timetable.held(maker, reader) > 1:
                cycles[reader] += copy_charge(machine, over(round(size), tiles), 1).cycles
        for maker, each in flows.items():
            ends[maker] += link_transfer(machine, each, way.ipus).cycles
        return cycles, ends

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
        parts = way.replicas if way.shard_optimizer else 1
        found = self.survey.update_cycles / parts
        if self.is_beside(way):
            size = int(cut.optimizer.sum()) // parts
            for write in (False, True):
                found += remote_transfer(self.machine, size, write=write).cycles
        return found + self._together(way, cut)

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
        sizes = np.zeros(ipus)
        np.add.at(sizes, np.array(way.ipu_of_stage), cut.gradients)
        system = ipus * count
        flows = [
            Flow(p * ipus + ipu, (p + 1) % count * ipus + ipu, round(size / count))
            for p in range(count)
            for ipu, size in enumerate(sizes)
        ]
        each = link_transfer(self.machine, flows, system).cycles + sync(self.machine, system).cycles
        return float(2 * (count - 1) * each)

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
        # State from remote memory is there as it was, and as it will be, until it is stored.
        update += cut.state + cut.gradients + optimizer * (2 if beside else 1)
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

    Of ways that are about as fast the one that needs least memory.
    """
    fitting = [x for x in outlooks if x.fits]
    least = min(x.needed_bytes for x in outlooks)
    some = fitting or [x for x in outlooks if x.needed_bytes <= _ABOUT * least]
    fastest = max(x.per_second for x in some)
    fast = [x for x in some if x.per_second * _AS_FAST >= fastest]
    return min(fast, key=lambda x: (x.needed_bytes, -x.per_second))
