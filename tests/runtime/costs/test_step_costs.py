"""Charges of steps, summed by hand on machines made for that."""

import sys

import pytest

from hloipu_runtime.collection import without_collection
from hloipu_runtime.costs.costs import Costs
from hloipu_runtime.costs.exchanging import most_tiles
from hloipu_runtime.costs.spent import Spent
from hloipu_runtime.costs.step_costs import step_charges
from hloipu_runtime.costs.traffic import TileRange
from hloipu_runtime.machine.charges import Charge
from hloipu_runtime.machine.costs import TileTraffic, exchange
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.program.faults import ProgramError
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import (
    Call,
    ComputeSet,
    If,
    Parallel,
    Repeat,
    RepeatWhile,
    Sequence,
    Step,
    StreamIn,
    StreamOut,
    Sync,
)
from tests.support.priced_programs import Maker, everywhere, row, rows

TINY = load_machine("tiny")
UNIT = load_machine("unit")


def costs(make: Maker, *steps: Step, machine: str = "unit") -> Costs:
    return step_charges(make.program(*steps), {"unit": UNIT, "tiny": TINY}[machine])


def only(make: Maker, *steps: Step, machine: str = "unit") -> Spent:
    (step,) = costs(make, *steps, machine=machine).steps
    return step.spent


def test_a_compute_set_takes_the_largest_part() -> None:
    make = Maker()
    x = make.variable((10, 2), rows((10, 2), row(4)))
    assert only(make, make.toil(x)) == Spent(compute=Charge(6, 6))


def test_groups_on_one_tile_add_up_and_others_run_at_once() -> None:
    make = Maker()
    a = make.variable((4,), rows((4,), row(2)))
    b = make.variable((6,), rows((6,), row(2)))
    c = make.variable((8,), rows((8,), row(2, first=2)))
    groups = tuple(make.group((), v, f"of {v}") for v in (a, b, c))
    (step,) = costs(make, ComputeSet(groups)).steps
    assert step.spent.compute.cycles == 2 + 3
    assert [name for name, _ in step.shares] == ["of 0", "of 1"]
    assert step.tiles == 4


def test_what_rests_on_assumed_numbers_is_told_apart() -> None:
    make = Maker()
    x = make.variable((40,), rows((40,), row(4)))
    y = make.variable((40,), everywhere((40,), row(4)))
    program = make.program(make.toil(x, assumed=3), make.exchange((x, y)), Sync())
    found = [step.spent.total for step in step_charges(program, load_machine("gc200")).steps]
    # Of an exchange on a GC200 only the 9 cycles of its set-up are a guess: 74 for the way,
    # 4 fragments of 3, 160 bytes at 8 a cycle since tiles of a bus receive the same.
    assert found == [(10, 3), (9 + 74 + 4 * 3 + 20, 9), (126, 0)]


def test_groups_on_two_ipus_run_at_once() -> None:
    make = Maker(ipus=2)
    a = make.variable((4,), rows((4,), row(2)))
    b = make.variable((6,), rows((6,), row(2)), ipu=1)
    (step,) = costs(make, ComputeSet((make.group((), a), make.group((), b)))).steps
    assert step.spent.compute.cycles == 3
    assert step.ipus == (0, 1)


def test_tiles_without_elements_are_idle() -> None:
    make = Maker()
    x = make.variable((5,), rows((5,), row(4)))
    assert costs(make, make.toil(x)).steps[0].tiles == 3


def test_an_exchange_is_set_up_way_control_and_bytes() -> None:
    make = Maker()
    one = make.variable((8,), everywhere((8,), row(1)))
    split = make.variable((8,), rows((8,), row(4)))
    # Unit: set-up 1, way 1, 1 fragment; tile 0 sends 32 bytes, of which its own 8 need not go,
    # but on another grid that is not known.
    assert only(make, make.exchange((one, split))).exchange.cycles == 1 + 1 + 1 + 32
    # Tiny: set-up 10, way 20, 2 a fragment; 4 bytes a cycle.
    tiny = only(make, make.exchange((one, split)), machine="tiny")
    assert tiny.exchange.cycles == 10 + 20 + 2 + 8


def test_paired_tiles_receive_at_twice_the_rate() -> None:
    make = Maker()
    one = make.variable((8,), everywhere((8,), row(1)))
    copies = make.variable((8,), everywhere((8,), row(4)))
    tiny = only(make, make.exchange((one, copies)), machine="tiny")
    assert tiny.exchange.cycles == 10 + 20 + 2 + 4
    apart = make.variable((8,), everywhere((8,), row(3)))
    tiny = only(make, make.exchange((one, apart)), machine="tiny")
    assert tiny.exchange.cycles == 10 + 20 + 2 + 8


def test_transfers_add_up_where_they_meet_and_only_there() -> None:
    make = Maker()
    sources = [make.variable((4,), everywhere((4,), row(1, first=n))) for n in range(2)]
    apart = [make.variable((4,), everywhere((4,), row(1, first=n + 2))) for n in range(2)]
    met = [make.variable((4,), everywhere((4,), row(1, first=3))) for _ in range(2)]
    single = exchange(TINY, [TileTraffic(16, 16, received_fragments=1)])
    double = exchange(TINY, [TileTraffic(0, 32, received_fragments=2)])
    ways = zip(sources, apart, strict=True)
    assert only(make, make.exchange(*ways), machine="tiny").exchange == single
    ways = zip(sources, met, strict=True)
    assert only(make, make.exchange(*ways), machine="tiny").exchange == double


def test_what_stays_is_copied_on_the_tile() -> None:
    make = Maker()
    a = make.variable((8,), rows((8,), row(4)))
    b = make.variable((8,), rows((8,), row(4)))
    assert only(make, make.exchange((a, b)), machine="tiny") == Spent(compute=Charge(101, 101))


def test_between_ipus_the_links_count() -> None:
    make = Maker(ipus=2)
    a = make.variable((1000,), rows((1000,), row(4)))
    b = make.variable((1000,), rows((1000,), row(4)), ipu=1)
    (step,) = costs(make, make.exchange((a, b)), machine="tiny").steps
    # One hop of 100 cycles, and 4,000 bytes over four links of a byte a cycle each.
    assert step.spent.exchange.cycles == 100 + 1000
    assert (step.ipus, step.moved_bytes) == ((0, 1), 4000)


def test_barriers() -> None:
    make = Maker()
    assert only(make, Sync(), machine="tiny") == Spent(sync=Charge(100, 100))
    assert only(Maker(ipus=2), Sync(2), machine="tiny").sync.cycles == 500


def test_neighbouring_streams_share_a_round_trip() -> None:
    make = Maker()
    a = make.variable((100,), rows((100,), row(4)))
    b = make.variable((50,), rows((50,), row(4)))
    found = costs(
        make,
        StreamIn("a", a, a),
        StreamIn("b", b, b),
        StreamOut("a", a, a),
        Sync(),
        StreamOut("b", b, b),
        make.toil(b),
        StreamOut("b", b, b),
        machine="tiny",
    ).steps
    hosts = [step.spent.host.cycles for step in found]
    # Round trip 1,000 and command 50; to the device 8 bytes a cycle, from it 4; a packet costs 20:
    # 100 or 52 bytes of a tile are one packet. A barrier between is no reason for a round trip.
    assert hosts == [1000 + 50 + 50, 25, 1000 + 50 + 100, 0, 50, 0, 1000 + 50 + 50]


def test_control_flow_is_charged_with_the_blocks() -> None:
    make = Maker()
    p = make.variable((), everywhere((), row(1)), "pred")
    x = make.variable((8,), rows((8,), row(4)))
    toil = make.toil(x)
    found = costs(
        make,
        Repeat(3, Sequence((toil,)), ()),
        RepeatWhile(Sequence((toil,)), p, p, Sequence((toil, toil)), ()),
        If(p, p, Sequence((toil,)), Sequence(), ()),
    )
    decision = Spent(Charge(2, 2), Charge(1 + 1 + 1 + 4, 7), Charge(1, 1))
    work = Spent(compute=Charge(2, 2))
    by_path = {block.path: block.spent for block in found.blocks}
    assert by_path == {
        "body/0/repeat": work.plus(Spent(compute=Charge(1, 1))),
        "body/1/condition": work.plus(decision),
        "body/1/while": work.times(2),
        "body/2?0": work,
        "body/2?1": Spent(),
        "body": decision,
    }
    assert found.blocks[found.root].path == "body"


def test_a_decision_for_several_ipus_crosses_links() -> None:
    make = Maker(ipus=2)
    p = make.variable((), everywhere((), row(1)), "pred")
    x = make.variable((8,), rows((8,), row(4)), ipu=1)
    step = If(p, p, Sequence((make.toil(x),)), Sequence(), ())
    found = costs(make, step, machine="tiny")
    spent = found.blocks[found.root].spent
    assert (spent.exchange.cycles, spent.sync.cycles) == (100 + 1, 500)


def test_functions_have_one_block_and_no_circles() -> None:
    make = Maker()
    x = make.variable((8,), rows((8,), row(4)))
    make.functions["f"] = Sequence((make.toil(x),))
    found = costs(make, Call("f"), Call("f"), Parallel((Sequence((Call("f"),)),)))
    assert [block.path for block in found.blocks] == ["f()", "body/2|0", "body"]
    make.functions["f"] = Sequence((Call("f"),))
    with pytest.raises(ProgramError, match="E4050"):
        costs(make, Call("f"))
    with pytest.raises(ProgramError, match="E4050"):
        costs(make, Call("g"))


def test_one_tile_that_takes_in_much_is_marked() -> None:
    make = Maker()
    much = make.variable((20_000,), everywhere((20_000,), row(1)))
    split = make.variable((20_000,), rows((20_000,), row(4)))
    steps = costs(make, make.toil(much), make.toil(split)).steps
    assert [step.one_tile_bytes for step in steps] == [80_000, 0]


def test_costs_do_not_loop_over_tiles() -> None:

    def program(tiles: int) -> Program:
        make = Maker()
        a = make.variable((tiles * 4, 8), rows((tiles * 4, 8), row(tiles)))
        b = make.variable((tiles * 4, 8), everywhere((tiles * 4, 8), row(tiles)))
        return make.program(make.toil(a), make.exchange((a, b)), make.toil(b))

    calls_of(program(4))  # so that nothing is computed for the first time below
    assert calls_of(program(1472)) < calls_of(program(8)) + 50


def calls_of(program: Program) -> int:
    machine = load_machine("gc200")
    count = 0

    def trace(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    with without_collection():  # whose callbacks count as well
        sys.setprofile(trace)
        try:
            step_charges(program, machine)
        finally:
            sys.setprofile(None)
    return count


@pytest.mark.parametrize(
    ("ranges", "tiles"),
    [
        ([], 0),
        ([(0, 9, 10)], 10),
        ([(0, 9, 5), (0, 9, 5), (0, 9, 3)], 5),
        ([(0, 9, 10), (10, 14, 5)], 15),
        ([(0, 9, 10), (5, 14, 10)], 15),
        ([(0, 99, 3), (50, 149, 4), (200, 200, 1)], 8),
    ],
)
def test_tiles_of_several_transfers_count_once(
    ranges: list[tuple[int, int, int]], tiles: int
) -> None:
    assert most_tiles([TileRange(*each) for each in ranges]) == tiles
    assert most_tiles([TileRange(*each) for each in reversed(ranges)]) == tiles
