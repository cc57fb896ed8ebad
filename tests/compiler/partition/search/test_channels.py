"""When what positions hand on takes memory, against turns written down by hand."""

from dataclasses import replace

import numpy as np

from hloipu_compiler.partition.search.channels import Channels
from hloipu_compiler.plan.schedule import Schedule

IPU = np.array([0, 1, 1, 0])
WORKING = np.array([5.0, 7.0, 9.0, 50.0])
# F0 -> B0, F1 -> B1, F0 -> F1; a turn is B0, B1, F1, F0, end of the slot.
CHANNELS = Channels(
    bytes=np.array([100.0, 10.0, 1.0]),
    source=np.array([0, 1, 2]),
    maker=np.array([0, 1, 0]),
    reader=np.array([3, 2, 1]),
    count=np.array([3, 1, 1]),
    crosses=np.array([False, False, True]),
    is_offloaded=np.zeros(3, np.bool_),
)
SCHEDULE = Schedule(2, "grouped", 8)


def test_places_are_there_throughout_and_the_rest_for_some_slots() -> None:
    assert CHANNELS.throughout(IPU, 2).tolist() == [300, 0]
    between, most = CHANNELS.in_slots(SCHEDULE, IPU, WORKING, 2)
    # IPU 0: what F0 hands on. IPU 1: what F1 leaves for B1, and what has come for the next F1.
    assert between.tolist() == [101, 11]
    # B0 with its copy of what waited; B1 with both of these.
    assert most.tolist() == [150, 20]


def test_what_waits_in_remote_memory_is_on_tiles_where_it_leaves_and_comes() -> None:
    away = replace(CHANNELS, is_offloaded=np.array([True, False, True]))
    assert away.throughout(IPU, 2).tolist() == [0, 0]
    between, most = away.in_slots(SCHEDULE, IPU, np.zeros(4), 2)
    assert between.tolist() == [101, 11]
    assert most.tolist() == [101, 11]


def test_one_position_at_a_time_keeps_what_a_later_one_reads() -> None:
    one = replace(CHANNELS, count=np.ones(3, np.int64))
    assert one.throughout(IPU, 2).tolist() == [0, 0]
    between, most = one.in_slots(Schedule(2, "sequential", 8), IPU, WORKING, 2)
    assert between.tolist() == [101, 10]
    assert most.tolist() == [150, 19]
