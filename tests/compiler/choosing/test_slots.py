"""Slots in closed form: the same as those of a timetable that is walked slot by slot."""

import numpy as np
import pytest

from hloipu_compiler.choosing.slots import Work, sums
from hloipu_compiler.plan.schedule import SCHEDULES, Schedule


def walked(schedule: Schedule, work: Work, ipus: list[int]) -> tuple[float, float]:
    span = ends = 0.0
    for slot in range(schedule.timetable.slots):
        busy, copying, link = [0.0] * 8, [0.0] * 8, 0.0
        for position in range(schedule.positions):
            turn, rest = divmod(slot - position, schedule.interval)
            if rest or not 0 <= turn < schedule.micro_batches:
                continue
            ipu = ipus[schedule.stage_of(position)]
            busy[ipu] += work.cycles[position]
            copying[ipu] += work.copies[position]
            link = max(link, work.links[position])
        span += max(busy)
        ends += max(copying) + link
    return span, ends


@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize(
    "ipus", [[0], [0, 1], [0, 1, 2], [0, 1, 1, 0], [0, 1, 0, 1], [0, 1, 2, 3, 4]]
)
def test_sums_are_those_of_all_slots(kind: str, trains: bool, ipus: list[int]) -> None:
    draw = np.random.default_rng(len(ipus))
    for count in (1, 2, 3, 7, 40):
        schedule = Schedule(len(ipus), kind, count, trains)
        parts = [draw.integers(1, 100, schedule.positions).astype(float) for _ in range(3)]
        work = Work(*parts)
        assert sums(schedule, work, ipus) == pytest.approx(walked(schedule, work, ipus))


def test_the_span_is_that_of_the_schedule() -> None:
    schedule = Schedule(4, "grouped", 9)
    cycles = [5, 7, 3, 8, 16, 6, 14, 10]
    work = Work(np.array(cycles, float), np.zeros(8), np.zeros(8))
    assert sums(schedule, work, range(4))[0] == schedule.span(cycles, range(4))
