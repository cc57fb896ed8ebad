"""What a way to cut a step would cost, from the prices of its ops and the closed forms of slots.

    update = span + slots * (link + sync) + update of the stage with most state + all-reduce

where the span is the sum over slots of the slowest IPU (`Schedule.span`), and a link takes what the
busiest stage is sent in a slot. Memory is what is kept from slot to slot: state, accumulators,
stashes. Compiling adds what one stage makes meanwhile, code and exchanges.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from hloipu_compiler.ir.graph import Module
from hloipu_compiler.passes.runner import run_passes
from hloipu_compiler.plan.pipelining import PipelineRequest
from hloipu_compiler.plan.plan import Plan
from hloipu_compiler.plan.roles import required_wrapping
from hloipu_compiler.plan.schedule import Schedule
from hloipu_compiler.plan.wrapping import Wrapping, WrappingRequest, looped
from hloipu_compiler.pricing.costing import budget_of, costing_on
from hloipu_compiler.stacking.staged_loops import peeled_step
from hloipu_compiler.staging.balancing import Budget, burdens, cuts_of
from hloipu_compiler.staging.loads import Loads, loads_of, size_of
from hloipu_compiler.staging.pipelining import phases_and_kind
from hloipu_compiler.staging.reach import parameter_positions
from hloipu_runtime.machine.costs import sync
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.machine.transfers import cycles_at_rate

_ABOUT = 1.1
"""What may be kept beside the least that any way keeps, for speed. Assumed."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to cut a step."""

    stages: int = 1
    schedule: str = "grouped"
    micro_batches: int = 1
    recompute: str = "none"
    replicas: int = 1

    def flags(self) -> str:
        """Return the command line's words for it."""
        words = [f"--stages {self.stages}"]
        if self.stages > 1:
            words.append(f"--schedule {self.schedule}")
        words.append(f"--micro-batches {self.micro_batches}")
        if self.recompute == "full":
            words.append("--recompute full")
        if self.replicas > 1:
            words.append(f"--replicas {self.replicas}")
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a way would cost."""

    way: Way
    update_cycles: int
    """Of one update, or of one round of micro-batches through an inference pipeline."""
    per_second: float
    """Micro-batches, of all replicas."""
    kept_bytes: int
    """Of the fullest IPU, from slot to slot."""
    fits: bool
    bubble: float

    def record(self) -> dict[str, Any]:
        """Return it as JSON data."""
        way = self.way
        return {
            "stages": way.stages, "schedule": way.schedule, "micro_batches": way.micro_batches,
            "recompute": way.recompute, "replicas": way.replicas,
            "update_cycles": self.update_cycles,
            "micro_batches_per_second": self.per_second, "kept_bytes_per_ipu": self.kept_bytes,
            "fits": self.fits, "bubble": self.bubble, "flags": way.flags(),
        }  # fmt: skip


@dataclass(frozen=True)
class Step:
    """A step that has been priced on a machine."""

    machine: Machine
    loads: Loads
    feed_cycles: float
    """That the host takes for the data of a micro-batch."""
    known: dict[tuple[int, str, Budget, bool], tuple[int, ...]] = field(
        default_factory=dict, repr=False
    )
    """Cuts found before: they do not depend on how many micro-batches there are."""

    def outlook(self, way: Way) -> Outlook:
        """Return what a way would cost; the step has as many forward ops as stages at least."""
        loads, machine = self.loads, self.machine
        schedule = Schedule(way.stages, way.schedule, way.micro_batches, loads.trains)
        budget = budget_of(machine, PipelineRequest(way.micro_batches, way.stages))
        again = way.recompute == "full"
        key = (way.stages, way.schedule, budget, again)
        cuts = self.known.get(key)
        if cuts is None:
            cuts = self.known[key] = cuts_of(loads, schedule, budget, recomputes=again)
        parts = burdens(loads, schedule, budget, cuts, recomputes=again)
        cycles = [part.forward_cycles for part in parts]
        cycles[0] += self.feed_cycles
        if loads.trains:
            cycles += [part.backward_cycles for part in reversed(parts)]
        whole = [round(x) for x in cycles]
        ipus = range(way.stages)
        sent = max(part.bytes_in for part in parts) * budget.cycles_per_byte
        ends = round(sent) + sync(machine, way.stages).cycles
        state = [part.state_bytes for part in parts]
        share = max(state) / sum(state) if sum(state) else 1.0
        update = (
            schedule.span(whole, ipus)
            + schedule.timetable.slots * ends
            + round(loads.update_cycles * share)
            + round(self._together(way, share))
        )
        kept = max(part.memory_bytes for part in parts)
        return Outlook(
            way,
            update,
            way.replicas * way.micro_batches * machine.chip.clock_hz / max(update, 1),
            round(kept),
            kept <= budget.memory_bytes,
            float(schedule.bubble(whole, ipus)),
        )

    def _together(self, way: Way, share: float) -> float:
        """Return the cycles in which replicas combine the gradients of one stage in a ring.

        2 (R - 1) / R of its bytes go over each link (Patarasuk and Yuan, 2009).
        """
        count = way.replicas
        if count == 1 or not self.loads.trains:
            return 0.0
        per_byte = budget_of(self.machine, PipelineRequest()).cycles_per_byte
        sent = 2 * (count - 1) / count * share * float(self.loads.gradients_until[-1])
        return sent * per_byte + 2 * (count - 1) * sync(self.machine, count).cycles


def priced_step(
    module: Module, machine: Machine, wrapping: WrappingRequest, request: PipelineRequest
) -> tuple[Step, Wrapping]:
    """Return a verified step priced on a machine, and how it is wrapped.

    Raises what finding the phases of a step raises, UsageError E3150 to E3152 for its wrapping.
    """
    wrapped = required_wrapping(module, looped(wrapping), feeds_rest=True)
    flat, _ = run_passes(module, Plan(), "front", verify_each=False)
    phases_and_kind(flat.entry, wrapped, request)  # what is wrong is said in the user's numbers
    peeled = peeled_step(flat, wrapped)
    flat, pieces = peeled.module, peeled.wrapping
    phases, _ = phases_and_kind(flat.entry, pieces, peeled.request(request))
    costing = costing_on(machine, request)(flat)
    loads = loads_of(flat.entry, phases, pieces.constants, costing.cycles)
    places = parameter_positions(flat.entry)
    fed = sum(
        size_of(flat.entry.instructions[places[number][0]].shape)
        for feed in pieces.feeds
        for number in feed.places
        if places[number]
    )
    rate = machine.host.to_device_bytes_per_second
    return Step(machine, loads, float(cycles_at_rate(machine, fed, rate))), wrapped


def best_of(outlooks: Iterable[Outlook]) -> list[Outlook]:
    """Return those that no other one beats in throughput, memory and bubble; the fastest first."""
    order = sorted(outlooks, key=lambda x: (-x.per_second, x.kept_bytes, x.bubble))
    found: list[Outlook] = []
    for each in order:
        if not any(x.kept_bytes <= each.kept_bytes and x.bubble <= each.bubble for x in found):
            found.append(each)
    return found


def choice_of(outlooks: list[Outlook]) -> Outlook:
    """Return the fastest that fits, or where none does, of those that need about least."""
    fitting = [x for x in outlooks if x.fits]
    least = min(x.kept_bytes for x in outlooks)
    small = [x for x in outlooks if x.kept_bytes <= _ABOUT * least]
    return max(fitting or small, key=lambda x: (x.per_second, -x.kept_bytes))
