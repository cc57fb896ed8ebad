"""Timetables of pipelines against a list of who does what when, made slot by slot."""

from collections import Counter
from itertools import count, product

import pytest

from hloipu_runtime.program.timetable import Timetable, longest_iterations

PLAIN = [
    Timetable(positions, interval, micro_batches)
    for positions, interval, micro_batches in product(range(1, 6), (1, 2, 3, 5), (0, 1, 2, 3, 4, 9))
]
GROUPED = [
    Timetable(positions, positions, micro_batches, group)
    for positions, micro_batches, group in product((1, 2, 3, 5), (0, 1, 2, 5, 6, 7), (2, 3))
]


def work(table: Timetable) -> dict[tuple[int, int], int]:
    """Return when each position does each micro-batch, by doing one after the other."""
    if table.group == 1:
        return {
            (position, number): table.interval * number + position
            for position in range(table.positions)
            for number in range(table.count)
        }
    found: dict[tuple[int, int], int] = {}
    slot = count()
    for first in range(0, table.count, table.group):
        for position in range(table.positions):
            for number in range(first, min(first + table.group, table.count)):
                found[position, number] = next(slot)
    return found


@pytest.mark.parametrize("tables", [PLAIN, GROUPED], ids=["plain", "grouped"])
def test_everybody_works_when_the_list_says(tables: list[Timetable]) -> None:
    for table in tables:
        planned = work(table)
        assert table.slots == max(planned.values(), default=-1) + 1
        for (position, number), slot in planned.items():
            assert table.slot(position, number) == slot
        at = {(position, slot): number for (position, number), slot in planned.items()}
        for slot in range(-3, table.slots + 3):
            for position in range(table.positions):
                assert table.micro_batch(position, slot) == at.get((position, slot))
        seen: Counter[tuple[int, ...]] = Counter()
        for slot in range(table.slots):
            active = tuple(p for p in range(table.positions) if (p, slot) in at)
            assert table.active(slot) == active
            seen[active] += 1
        told: Counter[tuple[int, ...]] = Counter()
        for pattern in table.patterns():
            told[pattern.positions] += pattern.slots
            assert pattern.slots > 0
        assert told == seen
        cycles = [7 * 3**position for position in range(table.positions)]
        apart, together = list(range(table.positions)), [0] * table.positions
        assert table.span(cycles, apart) == sum(
            n * max((cycles[p] for p in active), default=0) for active, n in seen.items()
        )
        assert table.span(cycles, together) == sum(
            n * sum(cycles[p] for p in active) for active, n in seen.items()
        )


def test_a_long_steady_state_is_one_pattern_for_each_slot_of_an_interval() -> None:
    table = Timetable(4, 2, 10**9)
    assert len(table.patterns()) == 2 * 3 + 2
    assert sum(p.slots for p in table.patterns()) == table.slots == 2 * (10**9 - 1) + 4


@pytest.mark.parametrize("tables", [PLAIN, GROUPED], ids=["plain", "grouped"])
def test_values_that_wait_between_two_positions(tables: list[Timetable]) -> None:
    """A value waits from the end of the producer's slot to its reader's; at least one has room."""
    for table in tables:
        planned = work(table)
        for producer, consumer in product(range(table.positions), repeat=2):
            if producer >= consumer:
                continue
            most = 1
            for slot in range(table.slots):
                waiting = [
                    n
                    for n in range(table.count)
                    if planned[producer, n] < slot <= planned[consumer, n]
                ]
                most = max(most, len(waiting))
            assert table.micro_batches_waiting(producer, consumer) == most


def test_groups_begin_and_end() -> None:
    table = Timetable(3, 3, 8, 3)
    assert table.groups == 3
    assert [n for n in range(8) if table.begins_group(n)] == [0, 3, 6]
    assert [n for n in range(8) if table.ends_group(n)] == [2, 5, 7]
    assert Timetable(3, 3, 9, 3).groups == 3
    alone = Timetable(3, 2, 4)
    assert all(alone.begins_group(n) and alone.ends_group(n) for n in range(4))


@pytest.mark.parametrize(
    ("cycles", "places", "longest"),
    [
        ((5, 7), ((0,), (1,)), (1,)),
        ((7, 5), ((0,), (1,)), (0,)),
        ((5, 7), ((0,), (0,)), (1, 0)),
        # 2 is done first, then 1 waits for it on place 1, then 0 for that on place 0.
        ((1, 1, 1), ((0,), (0, 1), (1,)), (2, 1, 0)),
        # 0 waits for the later of 1 and 2.
        ((1, 4, 9), ((0, 1), (0,), (1,)), (2, 0)),
        ((1, 9, 4), ((0, 1), (0,), (1,)), (1, 0)),
        ((0, 0), ((0,), (1,)), (1,)),
        ((), (), ()),
    ],
)
def test_positions_that_share_a_place_take_turns(
    cycles: tuple[int, ...], places: tuple[tuple[int, ...], ...], longest: tuple[int, ...]
) -> None:
    assert longest_iterations(range(len(cycles)), cycles, places) == longest
