"""What crosses links adds up: to what costs priced, and to closed forms of what has to be sent."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

import hloipu
from hloipu.report.record import report_record
from hloipu_runtime.costs import collecting, exchanging
from hloipu_runtime.machine import links as links_module
from hloipu_runtime.machine.charges import Charge
from hloipu_runtime.machine.links import (
    Bundle,
    Flow,
    LinkCycles,
    Segment,
    link_price,
    segment_rate,
)
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.collective import Collective
from hloipu_runtime.program.steps import Pipeline

_MNIST = "hlo_samples/mnist_train_step.hlo"
PIPELINE: dict[str, Any] = {"ipus": 2, "stages": 2, "micro_batches": 4}
REPLICAS: dict[str, Any] = {"replicas": 4, "loop": 3, "feed": {"data": [4, 5]}}


def record_of(**options: Any) -> tuple[hloipu.CompiledProgram, dict[str, Any]]:
    program = hloipu.compile(_MNIST, target="gc200", over_memory="allow", **options)
    return program, report_record(program)


@pytest.mark.parametrize("options", [PIPELINE, PIPELINE | {"schedule": "sequential"}, REPLICAS])
def test_links_carry_what_costs_priced(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    program, record = record_of(**options)
    links, costs = record["links"], program.costs
    segments, total = links["segments"], Counter[int]()
    for key in ("exchanges", "channels", "collectives", "decisions"):
        total.update(dict(enumerate(segments[key])))
    assert [total[n] for n in range(len(segments["bytes"]))] == segments["bytes"]
    assert sum(segments["bytes"]) >= sum(links["total_bytes"].values()) > 0
    assert sum(size for *_, size in links["pairs"]) == sum(links["total_bytes"].values())
    # Each step's fullest link takes no longer than the step was charged for exchanging.
    for row in links["steps"]:
        cost = costs.steps[row["step"]]
        assert 0 < row["link_cycles"] <= cost.spent.exchange.cycles
        if cost.kind == "all-reduce":  # of which links are all: the ring's phases, and their hops
            assert row["link_cycles"] == pytest.approx(cost.spent.exchange.cycles, rel=0.2)
    # The flows are those that went through the functions that price links.
    priced: list[dict[tuple[int, int], int]] = []

    def spy(machine: Machine, flows: Iterable[Flow], ipus: int) -> tuple[Charge, LinkCycles]:
        kept = list(flows)
        priced.append({flow[:2]: flow.size_bytes for flow in kept if flow.size_bytes})
        return link_price(machine, kept, ipus)

    def bundled(
        machine: Machine, bundles: Iterable[Bundle], ipus: int
    ) -> tuple[Charge, LinkCycles]:
        kept = [(pair, x.size_bytes) for x in bundles for pair in x.pairs]
        return spy(machine, [Flow(*pair, size) for pair, size in kept], ipus)

    for module in (links_module, exchanging):
        monkeypatch.setattr(module, "link_price", spy)
    monkeypatch.setattr(collecting, "bundle_price", bundled)
    again = hloipu.compile(_MNIST, target="gc200", over_memory="allow", cache=False, **options)
    assert again.costs == costs
    assert {tuple(way) for *way, _ in links["pairs"]} <= {way for flows in priced for way in flows}
    totals = {sum(flows.values()) for flows in priced}
    for row in links["steps"]:
        assert row["kind"] != "exchanges" or row["bytes"] in totals


def test_rings_send_what_the_closed_form_says() -> None:
    program, record = record_of(**REPLICAS)
    links, n = record["links"], 4
    expected = 0
    for cost, times in zip(record["profile"]["steps"]["path"],
                           record["profile"]["steps"]["executions"], strict=True):  # fmt: skip
        step = next(x for x in program.costs.steps if x.path == cost).step
        if not isinstance(step, Collective):
            continue
        variables = [program.program.variables[x.variable] for x in step.inputs]
        size = sum(collecting.bytes_of(x) for x in variables)
        expected += times * n * 2 * (n - 1) * -(-size // n)
    assert links["total_bytes"]["collectives"] == expected > 0
    assert links["total_bytes"]["channels"] == 0


def test_pipelines_send_each_micro_batch_once() -> None:
    program, record = record_of(**PIPELINE | {"micro_batches": 16})
    (pipeline,) = [x.step for x in program.costs.steps if x.kind == "slots"]
    assert isinstance(pipeline, Pipeline)
    variables = program.program.variables
    crossing = [
        c for c in pipeline.channels
        if variables[c.source].ipu != variables[c.places[0]].ipu
    ]  # fmt: skip
    words = sum(-(-collecting.bytes_of(variables[c.source]) // 4) * 4 for c in crossing)
    assert record["links"]["total_bytes"]["channels"] == 16 * words > 0


def test_rates_are_the_machines() -> None:
    program, record = record_of(**PIPELINE)
    segments = record["links"]["segments"]
    for kind, place, rate in zip(segments["kind"], segments["from"], segments["bytes_per_second"],
                                 strict=True):  # fmt: skip
        assert rate == segment_rate(program.machine, Segment(kind, place))
