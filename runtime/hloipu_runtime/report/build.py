"""Builds a profile from costs and execution counts."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from hloipu_runtime.costs.costs import Costs, DataLoop, Loop, StepCost, Together, blocks_inside
from hloipu_runtime.costs.counting import BlockCounts, spent_of
from hloipu_runtime.costs.estimate import Estimate, Unknown
from hloipu_runtime.costs.spent import BUCKETS, DEVICE
from hloipu_runtime.costs.step_times import step_times
from hloipu_runtime.machine.links import NO_LINK_CYCLES
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.reached import reached
from hloipu_runtime.report.feeds import feeds_record, queues_record
from hloipu_runtime.report.host import device_alone, host_time
from hloipu_runtime.report.pipelines import blocks_apart, pipeline_rows, waits_for_transfers
from hloipu_runtime.report.profile import NO_ORIGIN, IpuRow, LoopRow, OriginRow, Profile, StepRow

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class About(NamedTuple):
    """Facts of a profile besides cycles."""

    sources: Mapping[str, str] = _NOTHING
    """`file:line` by instruction."""
    options: Mapping[str, Any] = _NOTHING
    overrides: Mapping[str, int] = _NOTHING
    memory: Mapping[str, Any] = _NOTHING
    parameter_names: tuple[str, ...] = ()


ABOUT_NOTHING = About()


class _Fed(NamedTuple):
    """Known rates and counts of a program's queues."""

    rates: Mapping[str, float] = _NOTHING
    queues: Mapping[str, Mapping[str, Any]] = _NOTHING


def profile_of_run(
    costs: Costs,
    counts: BlockCounts,
    about: About = ABOUT_NOTHING,
    *,
    mode: str = "functional",
    idle_cycles: int = 0,
    rates: Mapping[str, float] = _NOTHING,
    queues: Mapping[str, Mapping[str, Any]] = _NOTHING,
) -> Profile:
    """Return the profile of what ran; `idle_cycles`: of waiting for data from the host.

    `rates`: elements that the host makes per second, of the infeeds for which that is stated.
    `queues`: what each of them counted, by name.
    """
    return _profile(costs, counts, about, mode, (), idle_cycles, _Fed(rates, queues))


def profile_of_estimate(costs: Costs, estimate: Estimate, about: About = ABOUT_NOTHING) -> Profile:
    """Return the profile of an estimate; where data decides, of what is spent at least."""
    return _profile(costs, estimate.counts, about, "estimate", estimate.unknown, 0)


def machine_overrides(machine: Machine) -> dict[str, int]:
    """Return the numbers of a machine that the user set, by key."""
    return {
        number.key: number.value
        for number in machine.numbers()
        if number.source.startswith("assumed: set to ")
    }


def _profile(
    costs: Costs,
    counts: BlockCounts,
    about: About,
    mode: str,
    unknown: tuple[Unknown, ...],
    idle_cycles: int,
    fed: "_Fed | None" = None,
) -> Profile:
    fed = fed or _Fed()
    spent, alone = spent_of(costs, counts), device_alone(costs, counts)
    buckets = {name: charge.cycles for name, charge in zip(BUCKETS, spent, strict=True)}
    buckets["idle"] += idle_cycles
    total = sum(buckets.values())
    machine, runs = costs.machine, counts.counts[costs.root]
    feeds = feeds_record(costs, fed.rates, alone.total.cycles / max(1, runs))
    steps = runs * costs.program.steps_per_run
    return Profile(
        costs.program.name,
        mode,
        machine.name,
        machine.chip.clock_hz,
        machine.chip.tiles_per_ipu,
        costs.program.ipus,
        about.overrides or machine_overrides(machine),
        about.options,
        runs,
        None if unknown else total,
        total,
        spent.total.assumed_cycles,
        buckets,
        tuple(item._asdict() for item in unknown),
        _steps(costs, counts),
        _origins(costs, counts, about.sources),
        _loops(costs, counts),
        _by_ipu(costs, counts, total),
        pipeline_rows(costs, counts),
        about.memory,
        _calls(costs, counts) if costs.program.is_resident else {},
        feeds,
        queues_record(costs, feeds, steps, idle_cycles, fed.queues) if costs.program.queues else (),
        device={name: getattr(alone, name).cycles for name in DEVICE},
        device_assumed_cycles=alone.total.assumed_cycles,
        host=host_time(costs, counts, alone.total.cycles, about.options),
        replicas=costs.program.replicas,
        partitions=costs.program.partitions,
        hosts=costs.program.hosts,
        links=_links(costs, counts),
    )


def _links(costs: Costs, counts: BlockCounts) -> dict[str, int]:
    """Return the cycles of transfers over each kind of link, in all executions of all steps."""
    total = NO_LINK_CYCLES
    for block, times in zip(costs.blocks, counts.counts, strict=True):
        for number in block.steps if times else ():
            total = total.plus(costs.steps[number].links, times)
    return total._asdict() if any(total) else {}


def _calls(costs: Costs, counts: BlockCounts) -> dict[str, Any]:
    """Return what calls and steps cost; `docs/sessions.md` has the sum that they make."""
    times, calls = step_times(costs), counts.counts[costs.root]
    return {
        "calls": calls,
        "cycles_per_call": times.call_cycles,
        "round_trip_cycles": times.round_trip_cycles,
        "steps": calls * costs.program.steps_per_run,
        "cycles_per_step": times.iteration_cycles,
        "is_exact": times.is_exact,
    }


def _executed(costs: Costs, counts: BlockCounts) -> list[tuple[StepCost, int, int]]:
    rows: list[tuple[StepCost, int, int] | None] = [None] * len(costs.steps)
    for number, block in enumerate(costs.blocks):
        for place in block.steps:
            rows[place] = (costs.steps[place], counts.counts[number], counts.hidden[number])
    return [item for item in rows if item is not None]


def _steps(costs: Costs, counts: BlockCounts) -> tuple[StepRow, ...]:
    rows = []
    for step, executions, hidden in _executed(costs, counts):
        total = step.spent.total.times(executions - hidden)
        largest = max(step.shares, key=lambda share: share[1].cycles, default=(NO_ORIGIN, total))
        rows.append(
            StepRow(
                step.path,
                largest[0] or NO_ORIGIN,
                step.kind,
                step.codelets,
                executions,
                hidden,
                total.cycles,
                total.assumed_cycles,
                step.tiles,
                step.ipus,
                step.moved_bytes,
                step.one_tile_bytes,
            )
        )
    return tuple(rows)


def _origins(
    costs: Costs, counts: BlockCounts, sources: Mapping[str, str]
) -> tuple[OriginRow, ...]:
    sums: dict[str, list[int]] = {}
    for step, executions, hidden in _executed(costs, counts):
        for name, charge in step.shares:
            row = sums.setdefault(name or NO_ORIGIN, [0, 0, 0, 0])
            row[0] += 1
            row[1] += charge.cycles * (executions - hidden)
            row[2] += charge.assumed_cycles * (executions - hidden)
            if step.spent.host.cycles:
                row[3] += charge.cycles * (executions - hidden)
    rows = [OriginRow(name, sources.get(name, ""), *row) for name, row in sums.items()]
    return tuple(sorted(rows, key=lambda row: (-row.cycles, row.name)))


def _loops(costs: Costs, counts: BlockCounts) -> tuple[LoopRow, ...]:
    rows = []
    for number, block in enumerate(costs.blocks):
        for inner in block.inner:
            if isinstance(inner, Loop | DataLoop):
                turns = counts.counts[inner.body]
                is_counted = isinstance(inner, Loop)
                rows.append(
                    LoopRow(inner.path, inner.name, is_counted, counts.counts[number], turns)
                )
    return tuple(sorted(rows))


def _beside_on_one_ipu(costs: Costs) -> frozenset[int]:
    """Return the blocks that run beside others of their own IPU."""
    beside = [
        block
        for around in costs.blocks
        for inner in around.inner
        if isinstance(inner, Together) and _share_ipus(costs, inner)
        for block in inner.branches
    ]
    return frozenset(
        reached(
            beside, lambda n: [b for inner in costs.blocks[n].inner for b in blocks_inside(inner)]
        )
    )


def _share_ipus(costs: Costs, inner: Together) -> bool:
    ipus = [ipu for branch in inner.branches for ipu in costs.blocks[branch].ipus]
    return len(frozenset(ipus)) != len(ipus)


def _by_ipu(costs: Costs, counts: BlockCounts, total: int) -> tuple[IpuRow, ...]:
    """Return what each IPU does; a step without IPUs of its own is everyone's."""
    kinds = len(BUCKETS) - 1
    sums = [[0] * kinds for _ in range(costs.program.ipus)]
    beside, apart = _beside_on_one_ipu(costs), blocks_apart(costs)
    for ipu, cycles in waits_for_transfers(costs, counts).items():
        sums[ipu][BUCKETS.index("host")] += cycles
    for number, block in enumerate(costs.blocks):
        if number in apart:
            continue
        shown = counts.shown(number) if number in beside else counts.counts[number]
        for place in block.steps:
            step = costs.steps[place]
            for ipu in step.ipus or sorted(block.ipus) or range(len(sums)):
                for bucket in range(kinds):
                    sums[ipu][bucket] += step.spent[bucket].cycles * shown
    return tuple(IpuRow._make((ipu, *row, total - sum(row))) for ipu, row in enumerate(sums))
