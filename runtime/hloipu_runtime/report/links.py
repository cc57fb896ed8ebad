"""Bytes on each link between IPUs in a run, from the flows that costs are charged by."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from hloipu_runtime.costs.collecting import collective_flows
from hloipu_runtime.costs.costs import Costs, StepCost
from hloipu_runtime.costs.counting import BlockCounts
from hloipu_runtime.costs.deciding import decision_flows
from hloipu_runtime.costs.exchanging import SlotCopies, exchange_cost
from hloipu_runtime.costs.forms import Forms
from hloipu_runtime.machine.links import Flow, link_loads, segment_end, segment_rate
from hloipu_runtime.machine.transfers import cycles_at_rate
from hloipu_runtime.program.collective import Collective
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import Exchange, If, Pipeline, RepeatWhile, Switch

KINDS = ("exchanges", "channels", "collectives", "decisions")
"""What crosses links: exchanges between IPUs, copies that end a pipeline's slots, collectives, and
predicates that other IPUs wait for."""
MOST_STEPS = 200
"""That are listed, those with most bytes first."""
MOST_PAIRS = 4096
"""Of IPUs that are listed with what one sends to the other, likewise."""


class _Sent(NamedTuple):
    """Bytes that one execution of a step sends over links, for all participants."""

    kind: str
    flows: Counter[tuple[int, int]]
    """Bytes by places in the system: source and target."""


def links_record(costs: Costs, counts: BlockCounts, forms: Forms) -> dict[str, Any]:
    """Return what crosses links in all executions of a program's steps, as JSON data.

    `segments` are columns with a row for each bundle of links in one direction that carries
    anything: its `kind`, the IPUs (of gateways the chassis) that it leads `from` and `to`,
    `bytes_per_second`, bytes by `KINDS` and `bytes` in all. A byte counts on each segment of its
    way. `pairs` has the bytes that one IPU sends another, each once, `total_bytes` their sums by
    kind, `steps` those with most: bytes of one execution, the segment that is fullest, and how many
    cycles it takes for them.
    """
    program, machine = costs.program, costs.machine
    system = program.system_ipus or program.ipus * program.participants
    totals: Counter[str] = Counter()
    loads: dict[str, Counter[Any]] = {kind: Counter() for kind in KINDS}
    pairs: Counter[tuple[int, int]] = Counter()
    rows: list[dict[str, Any]] = []
    for number, times in _executions(costs, counts):
        sent = _sent(program, costs, costs.steps[number], forms)
        if sent is None or not sent.flows:
            continue
        flows = (Flow(*ends, size) for ends, size in sent.flows.items())
        bytes_by_segment, size_bytes = (
            link_loads(machine, flows, system).size_bytes,
            sent.flows.total(),
        )
        totals[sent.kind] += times * size_bytes
        for ends, size in sent.flows.items():
            pairs[ends] += times * size
        for segment, size in bytes_by_segment.items():
            loads[sent.kind][segment] += times * size
        cycles = {
            segment: cycles_at_rate(machine, n, segment_rate(machine, segment))
            for segment, n in bytes_by_segment.items()
        }
        fullest = max(cycles, key=lambda segment: (cycles[segment], bytes_by_segment[segment]))
        rows.append(
            {
                "step": number,
                "kind": sent.kind,
                "executions": times,
                "bytes": size_bytes,
                "fullest": [*fullest, segment_end(machine, fullest, system)],
                "fullest_bytes": bytes_by_segment[fullest],
                "link_cycles": cycles[fullest],
            }
        )
    everything = sum(loads.values(), Counter())
    segments = sorted(everything)
    rows.sort(key=lambda row: -row["bytes"] * row["executions"])
    return {
        "system_ipus": system,
        "ipus_per_link_domain": machine.links.ipus_per_link_domain,
        "ipus_per_machine": machine.links.ipus_per_machine,
        "total_bytes": {kind: totals[kind] for kind in KINDS},
        "segments": {
            "kind": [segment.kind for segment in segments],
            "from": [segment.place for segment in segments],
            "to": [segment_end(machine, segment, system) for segment in segments],
            "bytes_per_second": [segment_rate(machine, segment) for segment in segments],
            **{kind: [loads[kind][segment] for segment in segments] for kind in KINDS},
            "bytes": [everything[segment] for segment in segments],
        },
        "pairs": [[*ends, size] for ends, size in pairs.most_common(MOST_PAIRS)],
        "steps": rows[:MOST_STEPS],
    }


def _executions(costs: Costs, counts: BlockCounts) -> Iterator[tuple[int, int]]:
    """Yield every step that runs, and how often: those beside slower ones send their bytes, too."""
    for block, times in zip(costs.blocks, counts.counts, strict=True):
        for number in block.steps if times else ():
            yield number, times


def _sent(program: Program, costs: Costs, cost: StepCost, forms: Forms) -> _Sent | None:
    """Return what one execution of a step sends over links; None where it sends nothing.

    Collectives say what all participants send; of all else each participant sends the same.
    """
    machine = costs.machine
    match cost.step:
        case Collective() as step:
            flows: Counter[tuple[int, int]] = Counter()
            for times, flow in collective_flows(program, step, machine):
                if flow.source != flow.target:
                    flows[flow.source, flow.target] += times * flow.size_bytes
            return _Sent("collectives", flows)
        case Exchange() as step if len(cost.ipus) > 1:
            size_by_ends = exchange_cost(program, step, machine, forms).flows
            return _Sent("exchanges", _by_all(program, size_by_ends))
        case Pipeline() as step if len(cost.ipus) > 1:
            copies, bytes_by_ends = (
                SlotCopies(program, step, machine, forms),
                Counter[tuple[int, int]](),
            )
            for pattern in step.timetable.patterns():
                for ends, size in copies.cost(pattern.positions).flows.items():
                    bytes_by_ends[ends] += pattern.slots * size
            return _Sent("channels", _by_all(program, bytes_by_ends))
        case (RepeatWhile() | If() | Switch()) as step if len(cost.ipus) > 1:
            variable = step.index if isinstance(step, Switch) else step.predicate
            places = frozenset(map(program.place, cost.ipus))
            flows_of_decision = decision_flows(
                program.place(program.variables[variable].ipu), places
            )
            size_by_ends = {
                (flow.source, flow.target): flow.size_bytes for flow in flows_of_decision
            }
            return _Sent("decisions", _by_all(program, size_by_ends))
    return None


def _by_all(program: Program, flows: Mapping[tuple[int, int], int]) -> Counter[tuple[int, int]]:
    """Return the flows of all participants from those of the first, which costs are priced by."""
    if program.participants == 1:
        return Counter(flows)
    ipu_at = {program.place(ipu): ipu for ipu in range(program.ipus)}
    bytes_by_ends: Counter[tuple[int, int]] = Counter()
    for participant in range(program.participants):
        for ends, size in flows.items():
            source, target = (program.place(ipu_at[place], participant) for place in ends)
            bytes_by_ends[source, target] += size
    return bytes_by_ends
