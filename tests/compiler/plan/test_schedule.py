"""Schedules against the tables and closed forms of Graphcore's documents and plugin."""

from math import ceil

import pytest

from hloipu_compiler.plan.schedule import GROUPED, INTERLEAVED, SCHEDULES, SEQUENTIAL, Schedule
from tests.support.cases import each

# Rows of the plugin's schedule for four stages and eight micro-batches.
GROUPED_ROWS = {
    0: ["F0:0"],
    3: ["F0:3", "F1:2", "F2:1", "F3:0"],
    4: ["F0:4", "F1:3", "F2:2", "F3:1", "B3:0"],
    7: ["F0:7", "F1:6", "F2:5", "F3:4", "B3:3", "B2:2", "B1:1", "B0:0"],
    11: ["F3:8", "B3:7", "B2:6", "B1:5", "B0:4"][1:],
    14: ["B0:7"],
}
INTERLEAVED_ROWS = {
    0: ["F0:0"],
    1: ["F1:0"],
    4: ["F0:2", "F2:1", "B3:0"],
    7: ["F1:3", "F3:2", "B2:1", "B0:0"],
    14: ["F0:7", "F2:6", "B3:5", "B1:4"],
    21: ["B0:7"],
}


def row(schedule: Schedule, slot: int) -> list[str]:
    table = schedule.timetable
    return [
        f"{schedule.name_of(position)}:{table.micro_batch(position, slot)}"
        for position in table.active(slot)
    ]


@pytest.mark.parametrize(
    ("kind", "rows"), [(GROUPED, GROUPED_ROWS), (INTERLEAVED, INTERLEAVED_ROWS)]
)
def test_rows_of_four_stages(kind: str, rows: dict[int, list[str]]) -> None:
    schedule = Schedule(4, kind, 8)
    assert {slot: row(schedule, slot) for slot in rows} == rows


@each("micro_batches", range(1, 33))
@each("stages", range(2, 9))
def test_closed_forms(stages: int, micro_batches: int) -> None:
    s, k = stages, micro_batches
    assert Schedule(s, GROUPED, k).timetable.slots == k + 2 * s - 1
    assert Schedule(s, INTERLEAVED, k).timetable.slots == 2 * k + 2 * s - 2
    assert Schedule(s, SEQUENTIAL, k).timetable.slots == 2 * s * k
    assert Schedule(s, GROUPED, k, trains=False).timetable.slots == k + s - 1
    for stage in range(s):
        others = k - 1  # no more of them can wait beside the one at work
        assert Schedule(s, GROUPED, k).stash_depth(stage) == min(2 * (s - 1 - stage), others)
        assert Schedule(s, INTERLEAVED, k).stash_depth(stage) == min(s - 1 - stage, others)
        assert Schedule(s, SEQUENTIAL, k).stash_depth(stage) == 0
        assert Schedule(s, GROUPED, k, trains=False).stash_depth(stage) == 0


@each("kind", SCHEDULES)
@each("trains", [True, False])
@each("micro_batches", [0, 1, 2, 3, 4, 7, 8, 32])
@each("stages", [1, 2, 3, 5, 8])
def test_every_micro_batch_passes_every_position_once(
    stages: int, micro_batches: int, trains: bool, kind: str
) -> None:
    schedule = Schedule(stages, kind, micro_batches, trains)
    table = schedule.timetable
    found = [
        (position, table.micro_batch(position, slot), slot)
        for slot in range(table.slots)
        for position in table.active(slot)
    ]
    wanted = [
        (position, m, schedule.interval * m + position)
        for position in range(schedule.positions)
        for m in range(micro_batches)
    ]
    assert sorted(found, key=str) == sorted(wanted, key=str)
    counted: dict[tuple[int, ...], int] = {}
    for pattern in table.patterns():
        counted[pattern.positions] = counted.get(pattern.positions, 0) + pattern.slots
    one_by_one: dict[tuple[int, ...], int] = {}
    for slot in range(table.slots):
        active = table.active(slot)
        one_by_one[active] = one_by_one.get(active, 0) + 1
    assert counted == one_by_one


@each("trains", [True, False])
@each("group", [2, 3, 4, 9])
@each("micro_batches", [0, 1, 2, 3, 4, 7, 8, 32])
@each("stages", [1, 2, 3, 8])
def test_groups_go_through_one_position_after_the_other(
    stages: int, micro_batches: int, group: int, trains: bool
) -> None:
    table = Schedule(stages, SEQUENTIAL, micro_batches, trains, group).timetable
    order = [
        (position, m)
        for first in range(0, micro_batches, group)
        for position in range(2 * stages if trains else stages)
        for m in range(first, min(first + group, micro_batches))
    ]
    assert table.slots == len(order)
    assert table.groups == ceil(micro_batches / group)
    counts: dict[int, int] = {}
    for slot, (position, m) in enumerate(order):
        assert table.slot(position, m) == slot
        assert table.active(slot) == (position,)
        assert table.micro_batch(position, slot) == m
        assert table.micro_batch(position + 1, slot) is None
        counts[position] = counts.get(position, 0) + 1
    assert table.active(len(order)) == ()
    assert {x.positions: x.slots for x in table.patterns()} == {(n,): c for n, c in counts.items()}


@pytest.mark.parametrize(("micro_batches", "group"), [(1, 4), (5, 2), (6, 3), (3, 3), (7, 4)])
def test_places_of_groups_are_as_many_as_wait(micro_batches: int, group: int) -> None:
    table = Schedule(2, SEQUENTIAL, micro_batches, group=group).timetable
    for producer in range(4):
        for consumer in range(producer + 1, 4):
            under_way = most = 0
            for slot in range(table.slots):
                under_way -= table.micro_batch(consumer, slot) is not None
                under_way += table.micro_batch(producer, slot) is not None
                most = max(most, under_way)
            assert table.micro_batches_waiting(producer, consumer) == most


@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize("stages", [2, 3, 4, 8])
def test_no_value_is_overwritten_before_it_is_read(stages: int, kind: str) -> None:
    schedule = Schedule(stages, kind, 9)
    table = schedule.timetable
    for producer in range(schedule.positions):
        for consumer in range(producer + 1, schedule.positions):
            held = table.micro_batches_waiting(producer, consumer)
            assert held == min(ceil((consumer - producer) / schedule.interval), 9)
            for m in range(9 - held):
                # The place of micro-batch m is written again at the end of this slot.
                assert table.slot(producer, m + held) >= table.slot(consumer, m)
                assert held == 1 or table.slot(producer, m + held - 1) < table.slot(consumer, m)


@pytest.mark.parametrize(("forward", "backward"), [(1, 1), (3, 7), (10, 20)])
@pytest.mark.parametrize("micro_batches", [1, 4, 8, 100_000])
@pytest.mark.parametrize("stages", [2, 4, 8])
def test_time_of_equal_stages(stages: int, micro_batches: int, forward: int, backward: int) -> None:
    s, k, f, b = stages, micro_batches, forward, backward
    cycles = [f] * s + [b] * s
    grouped, sequential = Schedule(s, GROUPED, k), Schedule(s, SEQUENTIAL, k)
    assert grouped.span(cycles, range(s)) == (k + s - 1) * (f + b)
    assert sequential.span(cycles, range(s)) == s * k * (f + b)
    assert Schedule(s, GROUPED, k, trains=False).span([f] * s, range(s)) == (k + s - 1) * f
    if k >= s:
        assert Schedule(s, INTERLEAVED, k).span(cycles, range(s)) == s * f + (2 * k + s - 2) * b


def test_stages_of_one_ipu_take_turns() -> None:
    schedule = Schedule(2, GROUPED, 3)
    assert schedule.span([1, 2, 4, 8], [0, 0]) == 3 * (1 + 2 + 4 + 8)
