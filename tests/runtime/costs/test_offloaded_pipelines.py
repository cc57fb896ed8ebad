"""Cycles of pipelines with remote memory and groups: each slot walked, each transfer by itself."""

from math import ceil

import pytest

from hloipu_runtime.costs.costs import Loop, Pipelined
from hloipu_runtime.costs.counting import ChargePlan, spent_of
from hloipu_runtime.costs.estimate import estimate
from hloipu_runtime.costs.step_costs import step_charges
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.machine.model import Machine
from tests.support.pipelined_programs import PipelineMaker

MACHINE = load_machine("tiny")
VALUE_BYTES = 6 * 4


def transfer(size_bytes: int, *, write: bool, machine: Machine = MACHINE) -> int:
    """Return the cycles of one access to remote memory, from the numbers of the machine."""
    if not size_bytes:
        return 0
    clock, remote = machine.chip.clock_hz, machine.remote
    rate = remote.write_bytes_per_second if write else remote.read_bytes_per_second
    return ceil(remote.access_nanoseconds * clock / 10**9) + ceil(size_bytes * clock / rate)


def waiting(maker: PipelineMaker) -> dict[int, list[int]]:
    """Return for each position of a maker's pipeline the IPUs of what it stores in a slot's end."""
    whole = [*range(maker.stages), *reversed(range(maker.stages))]
    found: dict[int, list[int]] = {n: [] for n in range(2 * maker.stages)}
    for channel in maker.channels:
        found[channel.producer].append(maker.ipus[whole[channel.consumer]])
    return found


@pytest.mark.parametrize("ipus", [(), (0, 0, 1), (0, 1, 0)])
@pytest.mark.parametrize("interval", [1, 2, 6])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 20])
def test_what_waits_is_stored_at_the_ends_of_slots(
    count: int, interval: int, ipus: tuple[int, ...]
) -> None:
    maker = PipelineMaker(3, interval, count, ipus=ipus, offloaded=frozenset(("activations",)))
    costs = step_charges(maker.program(), MACHINE)
    stores = waiting(maker)
    expected = 0
    for slot in range(interval * (count - 1) + 6 if count else 0):
        of_ipu = dict.fromkeys(range(3), 0)
        for position in range(6):
            turn, rest = divmod(slot - position, interval)
            if not rest and 0 <= turn < count:
                for ipu in stores[position]:
                    of_ipu[ipu] += VALUE_BYTES
        expected += transfer(max(of_ipu.values()), write=True)
    (found,) = (step for step in costs.steps if step.path.endswith("/stored"))
    assert found.spent.total.cycles == expected
    assert found.kind == "remote out"


@pytest.mark.parametrize("kind", ["activations", "weights", "totals"])
@pytest.mark.parametrize(("count", "group"), [(3, 1), (6, 2), (7, 3), (2, 5)])
def test_a_body_pays_one_access_for_each_direction(kind: str, count: int, group: int) -> None:
    plain = PipelineMaker(2, 4, count, group=group)
    there = PipelineMaker(2, 4, count, group=group, offloaded=frozenset((kind,)))
    with_it, without = (
        {x.path: x.spent.remote.cycles for x in step_charges(m.program(), MACHINE).blocks}
        for m in (there, plain)
    )
    for position in range(4):
        path = next(p for p in with_it if p.endswith(f"/repeat/{position}"))
        comes = sum(c.consumer == position for c in there.channels)
        forward = position < 2
        wanted = {
            "activations": transfer(comes * VALUE_BYTES, write=False),
            "weights": transfer(VALUE_BYTES * (forward and group == 1), write=False),
            "totals": 0
            if forward
            else transfer(VALUE_BYTES, write=False) + transfer(VALUE_BYTES, write=True),
        }
        assert with_it[path] - without[path] == wanted[kind]


@pytest.mark.parametrize("kind", ["weights", "pages"])
@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize(("count", "group"), [(4, 2), (5, 2), (6, 6), (2, 5), (0, 3)])
def test_weights_come_and_totals_come_and_go_once_for_each_group(
    kind: str, stages: int, count: int, group: int
) -> None:
    offloaded = frozenset((kind,))
    each = transfer(VALUE_BYTES, write=False)
    if kind == "pages":
        each += transfer(VALUE_BYTES, write=True)
    program = PipelineMaker(stages, 2 * stages, count, group=group, offloaded=offloaded).program()
    costs = step_charges(program, MACHINE)
    block = costs.blocks[costs.root]
    loops = [x for x in block.inner if isinstance(x, Loop)]
    assert len(loops) == stages
    for loop in loops:
        assert loop.iterations == ceil(count / group)
        assert costs.blocks[loop.body].spent.total.cycles == each
    pipe = next(x for x in block.inner if isinstance(x, Pipelined))
    bodies = sum(costs.blocks[body].spent.total.cycles for body in pipe.bodies)
    own = sum(costs.steps[n].spent.total.cycles for n in block.steps)
    found = estimate(program, MACHINE, costs=costs)
    fetching = ceil(count / group) * stages * each
    assert found.total_cycles == own + count * bodies + fetching
    counts = ChargePlan(costs).counts({"body": 1})
    assert spent_of(costs, counts).total.cycles == found.total_cycles


def test_groups_without_end_cost_no_time_to_count() -> None:
    offloaded = frozenset(("weights", "activations"))

    def cycles(count: int) -> int:
        program = PipelineMaker(2, 4, count, group=5, offloaded=offloaded).program()
        found = estimate(program, MACHINE).total_cycles
        assert found is not None
        return found

    assert cycles(10_000_010) - cycles(10) == 2_000_000 * (cycles(15) - cycles(10))
