"""Costs against sums done by hand, on machines made for that."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloipu_runtime.machine.charges import Charge, slowest
from hloipu_runtime.machine.costs import (
    TileTraffic,
    TileWork,
    compute_set,
    copy_on_tile,
    exchange,
    rearrange_on_tile,
    shared_vertex_cycles,
    single_vertices_cycles,
    sync,
)
from hloipu_runtime.machine.load import load_machine

TINY = load_machine("tiny")
UNIT = load_machine("unit")
GC200 = load_machine("gc200")


def test_a_shared_vertex_is_supervisor_and_six_times_the_slowest_worker() -> None:
    assert shared_vertex_cycles(TINY, 10, 7) == 10 + 6 * 7
    assert shared_vertex_cycles(UNIT, 10, 7) == 17


@pytest.mark.parametrize(
    ("classes", "cycles"),
    [
        ([], 0),
        ([(1, 5)], 30),  # one worker has one slot in six
        ([(6, 5)], 30),
        ([(7, 5)], 60),
        ([(12, 5), (1, 3)], 6 * 13),
        ([(1, 9), (5, 2)], 54),  # five other workers take the five small ones
        ([(1, 9), (6, 2)], 66),  # 9 + 2: the class of six is dealt evenly
        ([(10**12, 1)], 6 * 166_666_666_667),
    ],
)
def test_single_vertices(classes: list[tuple[int, int]], cycles: int) -> None:
    assert single_vertices_cycles(TINY, classes) == cycles


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 50)), max_size=6))
def test_single_vertices_lie_between_the_bounds_of_any_schedule(
    classes: list[tuple[int, int]],
) -> None:
    cycles = single_vertices_cycles(TINY, classes)
    total = sum(count * slots for count, slots in classes)
    longest = max((slots for count, slots in classes if count), default=0)
    assert cycles >= max(total, 6 * longest)
    # Dealing leaves workers uneven by less than one vertex of each class.
    assert cycles <= total + 6 * sum(slots for count, slots in classes if count)


def test_a_compute_set_lasts_as_long_as_its_fullest_tile() -> None:
    tiles = [TileWork(40), TileWork(52, assumed_cycles=12), TileWork(0)]
    assert compute_set(GC200, tiles) == Charge(52, 12)
    assert compute_set(TINY, tiles) == Charge(52, 52)  # tiny's six workers are assumed as well
    assert compute_set(TINY, []) == Charge(0, 0)


def test_copies_on_a_tile() -> None:
    assert copy_on_tile(TINY, 0).cycles == 0
    assert copy_on_tile(TINY, 17).cycles == 100 + 3
    assert copy_on_tile(UNIT, 17).cycles == 1 + 17
    # Measured on a C600: 1,308 cycles for 8 KiB; the rate of the formula is the standard one.
    assert copy_on_tile(GC200, 8192).cycles == pytest.approx(1308, rel=0.01)


@pytest.mark.parametrize(
    ("run_bytes", "cycles"),
    [(1, 5100), (2, 5100), (3, 5100), (4, 3100), (6, 3100), (8, 600), (64, 600)],
)
def test_rearrangements_are_priced_by_their_runs(run_bytes: int, cycles: int) -> None:
    assert rearrange_on_tile(TINY, 1000, run_bytes).cycles == cycles
    assert rearrange_on_tile(TINY, 0, run_bytes).cycles == 0


@pytest.mark.parametrize(
    ("traffic", "tiny", "unit"),
    [
        (TileTraffic(), 0, 0),
        (TileTraffic(received_fragments=5), 0, 0),  # nothing moves, nothing is set up
        # tiny: set-up 10, route 20, 2 a fragment, 4 bytes a cycle; unit: 1, 1, 1, 1
        (TileTraffic(sent_bytes=40), 30 + 10, 2 + 40),
        (TileTraffic(received_bytes=40, received_fragments=1), 32 + 10, 3 + 40),
        (TileTraffic(received_bytes=41, received_fragments=1), 32 + 11, 3 + 41),
        (TileTraffic(40, 80, received_fragments=3), 36 + 20, 5 + 80),  # both ways at once
        (TileTraffic(80, 40, received_fragments=3), 36 + 20, 5 + 80),
        # the pair rule: 8 bytes a cycle of what both tiles of a bus receive
        (TileTraffic(paired_received_bytes=80, received_fragments=1), 32 + 10, 3 + 80),
        (TileTraffic(0, 40, 0, 80, 2), 34 + 10 + 10, 4 + 120),
        (TileTraffic(0, 0, 80, 0), 30 + 10, 2 + 80),
    ],
)
def test_an_exchange_of_one_tile(traffic: TileTraffic, tiny: int, unit: int) -> None:
    assert exchange(TINY, [traffic]).cycles == tiny
    assert exchange(UNIT, [traffic]).cycles == unit


def test_an_exchange_lasts_as_long_as_its_slowest_tile() -> None:
    tiles = [TileTraffic(40, 8), TileTraffic(0, 120, received_fragments=2), TileTraffic()]
    assert exchange(TINY, tiles).cycles == 30 + 4 + 30
    assert exchange(TINY, []).cycles == 0


def test_a_gc2_has_no_pair_rule() -> None:
    gc2 = load_machine("gc2")
    paired = exchange(gc2, [TileTraffic(paired_received_bytes=4096)])
    assert paired.cycles == exchange(gc2, [TileTraffic(received_bytes=4096)]).cycles


def test_of_an_exchange_only_the_set_up_is_assumed_on_a_gc200() -> None:
    charge = exchange(GC200, [TileTraffic(received_bytes=4000, received_fragments=4)])
    assert charge == Charge(9 + 74 + 4 * 3 + 1000, 9)


@given(
    st.lists(
        st.builds(TileTraffic, *[st.integers(0, 5000)] * 4, received_fragments=st.integers(0, 9)),
        max_size=8,
    ),
    st.sampled_from([TINY, UNIT, GC200]),
)
def test_arrays_cost_what_their_tiles_cost(tiles: list[TileTraffic], machine: object) -> None:
    assert isinstance(machine, type(TINY))
    columns = np.array(tiles, dtype=np.int64).reshape(-1, 5).T
    assert exchange(machine, [TileTraffic(*columns)]).cycles == exchange(machine, tiles).cycles


def test_arrays_and_numbers_may_be_mixed() -> None:
    traffic = TileTraffic(np.array([40, 400]), 8, received_fragments=np.array([9, 1]))
    assert exchange(TINY, [traffic]).cycles == 30 + 2 + 100


def test_sync() -> None:
    assert sync(TINY).cycles == 100
    assert sync(TINY, ipus=2).cycles == 500
    assert sync(GC200) == Charge(126, 0)
    assert sync(GC200, ipus=16) == Charge(600, 0)


def test_charges_add_up() -> None:
    assert Charge(10, 3).plus(Charge(5, 5)).times(4) == Charge(60, 32)
    assert slowest([Charge(3, 3), Charge(7, 1)]) == Charge(7, 1)
    assert slowest([]) == Charge(0, 0)
