"""Slots in closed form: the same as those of a timetable that is walked slot by slot."""

from dataclasses import replace

import numpy as np
import pytest

from hloipu_compiler.partition.search.slots import Work, sums
from hloipu_compiler.plan.schedule import SCHEDULES, Schedule


def walked(schedule: Schedule, work: Work, ipus: list[int]) -> tuple[float, float]:
    span = ends = 0.0
    timetable = schedule.timetable
    for slot in range(timetable.slots):
        busy, host = [0.0] * 8, [0.0] * 8
        copying, storing, link = [0.0] * 8, [0.0] * 8, 0.0
        for position in range(schedule.positions):
            if timetable.micro_batch(position, slot) is None:
                continue
            ipu = ipus[schedule.stage_of(position)]
            busy[ipu] += work.cycles[position]
            if work.offloading is not None:
                host[ipu // 2] += work.offloading[position]
            copying[ipu] += work.copies[position]
            storing[ipu] += work.stored[position]
            link = max(link, work.links[position])
        span += max(*busy, *host)
        ends += max(copying) + max(storing) + link
    return span, ends


@pytest.mark.parametrize(("kind", "group"), [*((kind, 1) for kind in SCHEDULES), ("sequential", 3)])
@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize(
    "ipus", [[0], [0, 1], [0, 1, 2], [0, 1, 1, 0], [0, 1, 0, 1], [0, 1, 2, 3, 4]]
)
def test_sums_are_those_of_all_slots(kind: str, group: int, trains: bool, ipus: list[int]) -> None:
    draw = np.random.default_rng(len(ipus))
    for count in (1, 2, 3, 7, 40):
        schedule = Schedule(len(ipus), kind, count, trains, group)
        cycles, copies, links, stored, offloading = (
            draw.integers(1, 100, schedule.positions).astype(float) for _ in range(5)
        )
        plain = Work(cycles, copies, links, stored)
        for work in (plain, replace(plain, offloading=offloading, chassis_ipus=2)):
            assert sums(schedule, work, ipus) == pytest.approx(walked(schedule, work, ipus))


def test_the_span_is_that_of_the_schedule() -> None:
    schedule = Schedule(4, "grouped", 9)
    cycles = [5, 7, 3, 8, 16, 6, 14, 10]
    work = Work(np.array(cycles, float), np.zeros(8), np.zeros(8), np.zeros(8))
    assert sums(schedule, work, range(4))[0] == schedule.span(cycles, range(4))
