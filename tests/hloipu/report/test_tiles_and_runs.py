"""Tiles within a step, queues, pages of runs: against charges, brute force and the run itself."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloipu
from hloipu.report.record import counts_of, report_record
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.costs.computing import codelet_work, ipu_of
from hloipu_runtime.program.steps import ComputeSet
from hloipu_runtime.report.step_tiles import step_tiles
from tests.support.command_line import run

_MNIST = "hlo_samples/mnist_train_step.hlo"


@pytest.mark.parametrize("options", [{}, {"ipus": 2, "stages": 2, "micro_batches": 4}])
def test_the_slowest_tile_takes_what_the_step_is_charged(options: dict[str, Any]) -> None:
    program = hloipu.compile(_MNIST, target="gc200", over_memory="allow", **options)
    found = report_record(program)["step_tiles"]
    assert found["steps"]
    assert not found["left_out"]
    exact = 0
    for row in found["steps"]:
        cost = program.costs.steps[row["step"]]
        most = max(cycles for ipu in row["ipus"] for _, cycles in ipu["runs"])
        assert all(sum(n for n, _ in ipu["runs"]) == 1472 for ipu in row["ipus"])
        assert 0 < most <= cost.spent.compute.cycles + cost.spent.exchange.cycles
        exact += most == cost.spent.compute.cycles + cost.spent.exchange.cycles
    assert exact > 0.6 * len(found["steps"])


def test_tiles_cost_what_their_own_parts_do() -> None:
    program = hloipu.compile(_MNIST, target="gc200", over_memory="allow")
    variables, machine = program.program.variables, program.machine
    compute = [x for x in program.costs.steps if isinstance(x.step, ComputeSet)]
    for cost in sorted(compute, key=lambda x: -x.spent.total.cycles)[:6]:
        assert isinstance(cost.step, ComputeSet)
        expected = np.zeros(1472, np.int64)
        for group in cost.step.groups:
            assert ipu_of(program.program, group) == 0
            for at in np.ndindex(group.tiles.extents):  # one tile after the other
                parts = []
                for operand in (*group.inputs, *group.outputs):
                    variable = variables[operand.variable]
                    sizes = []
                    for span, size in zip(operand.spans, variable.shape, strict=True):
                        begin = span.offset + (at[span.axis] * span.step if span.axis >= 0 else 0)
                        sizes.append(max(0, min(begin + span.size, size) - max(0, begin)))
                    parts.append(Tensor(variable.element_type, tuple(sizes)))
                results = tuple(parts[len(group.inputs) :])
                if np.prod(results[0].shape):
                    work = codelet_work(group.codelet, machine, tuple(parts[: len(group.inputs)]),
                                        results)  # fmt: skip
                    expected[group.tiles.numbers[at]] += work.cycles
        found = step_tiles(program.program, cost, machine, program.forms)
        assert np.array_equal(found[0], expected), cost.path


def test_a_page_of_a_run_has_what_data_decided(tmp_path: Path) -> None:
    sample = "hlo_samples/newton_while.hlo"
    program = hloipu.compile(sample, target="tiny", over_memory="allow", cache=False)
    arguments = [np.full(x.shape, 2, x.dtype) for x in program.inputs]
    profile = program.run(*arguments).profile
    counts = counts_of(profile, program.costs)
    steps = [n for block, times in zip(program.costs.blocks, counts.counts, strict=True)
             for n in block.steps if times != profile.steps[n].executions]  # fmt: skip
    assert not steps
    record = report_record(program, profile)
    whole = record["timeline"]["blocks"][-1]["cycles"]
    assert profile.total_cycles is not None
    assert whole == profile.total_cycles > program.estimate().lower_bound_cycles
    page = tmp_path / "run.html"
    asked = ("--target=tiny", "--over-memory=allow", "--random=0", "--report", str(page))
    assert run("run", sample, *asked).code == 0
    read = hloipu.open_report(page)
    assert read.profile["mode"] == "functional"
    assert read.record["module"]["name"]
    other = hloipu.compile("hlo_samples/sort_topk.hlo", target="tiny", over_memory="allow")
    with pytest.raises(hloipu.UsageError, match="E3221"):
        hloipu.write_report(other, page, profile)


def test_queues_say_who_waits() -> None:
    program = hloipu.compile(
        _MNIST, target="gc200", over_memory="allow", loop=4, feed={"data": [4, 5]},
        outfeed=["losses"],
    )  # fmt: skip
    (feed, losses) = program.profile().queues
    assert (feed["elements"], feed["waits"], feed["host"]) == (4, "nobody", {})
    size = sum(np.prod(x.shape) * np.dtype(x.dtype).itemsize
               for x in program.inputs if x.number in (4, 5))  # fmt: skip
    assert feed["element_bytes"] == size
    rows = [np.zeros((8, *x.shape), x.dtype) for x in program.inputs if x.number in (4, 5)]
    state = {x.name: np.zeros(x.shape, x.dtype) for x in program.inputs if x.role == "state"}
    slow = feed["needed_elements_per_second"] / 4
    with program.session(
        state=state, infeeds={"data": tuple(rows)}, rates={"data": slow}
    ) as session:
        session.run(8)
        (feed, losses), idle = session.profile().queues, session.idle_cycles
    assert feed["waits"] == "device"
    assert feed["starved_share"] == pytest.approx(0.75)
    assert feed["starved_cycles"] == idle > 0
    assert (feed["elements"], feed["host"]["taken"]) == (8, 8)
    assert (losses["elements"], losses["host"]["given"]) == (8, 8)
