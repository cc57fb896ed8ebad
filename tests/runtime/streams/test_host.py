"""Streams of programs meet queues by name, leaf by leaf, beside arrays that no queue carries."""

import numpy as np
import pytest

from hloipu_runtime.errors import StreamError
from hloipu_runtime.simulate.run.host import Arrays
from hloipu_runtime.streams.arrays import from_arrays
from hloipu_runtime.streams.element import ElementSpec, LeafSpec
from hloipu_runtime.streams.host import StreamHost
from hloipu_runtime.streams.infeed import InfeedQueue
from hloipu_runtime.streams.outfeed import OutfeedQueue

SCALAR = ElementSpec((LeafSpec("s32", ()),))
PAIR = ElementSpec((LeafSpec("s32", ()), LeafSpec("s32", ())))
ROWS = np.arange(10_000, dtype=np.int32)


def pairs(name: str = "data") -> InfeedQueue:
    return InfeedQueue(name, PAIR, from_arrays((ROWS, -ROWS)))


def test_each_leaf_is_a_stream() -> None:
    with StreamHost([pairs()]) as host:
        got = [
            (int(host.take("data.1")), int(host.take("data.0")), int(host.take("data.0")))
            for _ in range(3)
        ]
        # The second stream is read half as often, and keeps its place.
        assert got == [(0, 0, 1), (-1, 2, 3), (-2, 4, 5)]


def test_a_leaf_that_is_left_behind_is_reported() -> None:
    with StreamHost([pairs()]) as host:
        for _ in range(4096):
            host.take("data.0")
        with pytest.raises(StreamError) as caught:
            host.take("data.0")
        assert caught.value.code == "E2035"


def test_leaves_that_the_program_has_not_are_left_out() -> None:
    with StreamHost([pairs()], streams=("data.0",)) as host:
        assert [int(host.take("data.0")) for _ in range(9000)] == list(range(9000))
        with pytest.raises(StreamError):
            host.take("data.1")


def test_arrays_carry_what_no_queue_does() -> None:
    arrays = Arrays({"p": np.array(5, np.int32)})
    queue = OutfeedQueue("loss", spec=SCALAR)
    with StreamHost([pairs()], [queue], arrays) as host, host.running():
        host.give("r", host.take("p") + host.take("data.0"))
        host.give("loss", np.array(1, np.int32))
    assert int(arrays.outputs["r"]) == 5
    assert len(queue.drain()) == 1


def test_unknown_streams_are_named() -> None:
    with StreamHost([pairs()]) as host:
        with pytest.raises(StreamError, match="'date'") as caught:
            host.take("date")
        assert caught.value.found == "data.0, data.1"
        with pytest.raises(StreamError) as caught:
            host.give("out", ROWS)
        assert caught.value.code == "E2030"


def test_names_are_unique_in_a_session() -> None:
    for queues in (([pairs(), pairs()], []), ([pairs()], [OutfeedQueue("data", spec=SCALAR)])):
        with pytest.raises(StreamError) as caught:
            StreamHost(*queues)
        assert (caught.value.code, caught.value.queue) == ("E2030", "data")


def test_two_queues_may_not_carry_one_stream() -> None:
    first = InfeedQueue("a", SCALAR, [1], streams=("x",))
    second = InfeedQueue("b", SCALAR, [1], streams=("x",))
    with pytest.raises(StreamError) as caught:
        StreamHost([first, second])
    assert caught.value.code == "E2030"


def test_hosts_of_replicas_share_queues() -> None:
    queue = InfeedQueue("data", SCALAR, from_arrays(ROWS), replicas=2)
    out = OutfeedQueue("loss", spec=SCALAR, replicas=2)
    hosts = [StreamHost([queue], [out], replica=replica) for replica in (0, 1)]
    for _ in range(3):
        for host in hosts:
            host.give("loss", host.take("data"))
    assert [x.tolist() for x in out] == [[0, 1], [2, 3], [4, 5]]
    queue.close()


def test_values_left_in_queues_stay_for_the_next_run() -> None:
    with StreamHost([pairs()]) as host:
        for run in range(3):
            with host.running():
                assert [int(host.take("data.0")) for _ in range(5)] == list(
                    range(run * 5, run * 5 + 5)
                )
        assert [state.position for state in host.states()] == [15]


def test_an_end_says_how_many_were_wanted() -> None:
    with StreamHost([InfeedQueue("data", SCALAR, from_arrays(ROWS[:7]))]) as host:
        with host.running({"data": 3}):
            for _ in range(3):
                host.take("data")
        with host.running({"data": 10}):
            for _ in range(4):
                host.take("data")
            with pytest.raises(StreamError) as caught:
                host.take("data")
    assert "ended at element 7 of 13" in str(caught.value)
    assert (caught.value.expected, caught.value.found) == ("13 elements", "7 elements")
