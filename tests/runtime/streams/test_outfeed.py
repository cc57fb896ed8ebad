"""What queues from the device keep, in which order, and how readers on other threads see it."""

import threading
import time
from typing import Any

import numpy as np
import pytest

from hloipu_runtime.errors import StreamError
from hloipu_runtime.streams.element import ElementSpec, LeafSpec, spec_of
from hloipu_runtime.streams.host import StreamHost
from hloipu_runtime.streams.outfeed import Arrived, OutfeedQueue
from hloipu_runtime.streams.settings import Mode, parse_mode

SCALAR = ElementSpec((LeafSpec("s32", ()),))


def run(queue: OutfeedQueue, first: int, count: int) -> None:
    with StreamHost([], [queue], clock=lambda: 100) as host, host.running():
        for number in range(first, first + count):
            host.give(queue.name, np.array(number, np.int32))


def runs(queue: OutfeedQueue, count: int, each: int) -> None:
    host = StreamHost([], [queue])
    for number in range(count):
        with host.running():
            for step in range(each):
                host.give(queue.name, np.array(number * each + step, np.int32))


@pytest.mark.parametrize(
    ("mode", "kept"),
    [
        ("all", list(range(12))),
        ("first", [0, 4, 8]),
        ("last", [3, 7, 11]),
        ("every-5", [4, 9]),
        ("every-1", list(range(12))),
        ("EVERY-13", []),
    ],
)
def test_modes_over_three_runs_of_four(mode: str, kept: list[int]) -> None:
    queue = OutfeedQueue("loss", mode, SCALAR)
    runs(queue, 3, 4)
    found = queue.drain()
    assert [int(arrived.element) for arrived in found] == kept
    assert [arrived.number for arrived in found] == kept
    assert queue.drain() == []
    assert queue.count == 12


@pytest.mark.parametrize(
    "text",
    ["newest", "every", "every-", "every-0", "every-x", "all-2", "all-", "", "every--1",
     "every-1000000000", print],
)  # fmt: skip
def test_there_are_no_other_modes(text: Any) -> None:
    with pytest.raises(StreamError) as caught:
        parse_mode(text)
    assert caught.value.code == "E2031"


def test_sum_and_mean_are_made_on_the_device() -> None:
    assert [parse_mode(kind).on_device for kind in ("sum", "mean", "all", "every-3")] == [
        True, True, False, False,
    ]  # fmt: skip
    assert str(parse_mode(Mode("every", 3))) == "every-3"
    assert parse_mode("every-999999999").every == 999_999_999


def test_elements_carry_the_cycle_of_their_arrival() -> None:
    queue = OutfeedQueue("loss", spec=SCALAR)
    cycles = iter((10, 25, 40))
    host = StreamHost([], [queue], clock=lambda: next(cycles))
    with host.running():
        for number in range(3):
            host.give("loss", np.array(number, np.int32))
    assert [arrived.cycle for arrived in queue.drain()] == [10, 25, 40]


def test_a_last_element_keeps_its_own_cycle() -> None:
    queue = OutfeedQueue("loss", "last", SCALAR)
    cycles = iter((0, 20, 40))
    host = StreamHost([], [queue], clock=lambda: next(cycles))
    with host.running():
        for number in range(3):
            host.give("loss", np.array(number, np.int32))
        assert queue.drain() == []
    assert queue.latest() == Arrived(2, 40, np.array(2, np.int32))


def test_the_last_element_before_a_failure_is_there() -> None:
    queue = OutfeedQueue("loss", "last", SCALAR)
    queue.begin_run()
    for number in (1, 2):
        queue.put((np.array(number, np.int32),))
    queue.end_run(ZeroDivisionError())
    assert [arrived.number for arrived in queue.drain()] == [1]


def test_given_arrays_are_copied() -> None:
    queue = OutfeedQueue("loss", spec=SCALAR)
    memory = np.array(1, np.int32)
    host = StreamHost([], [queue])
    with host.running():
        host.give("loss", memory)
        memory[...] = 2
        host.give("loss", memory)
    assert [int(x) for x in queue] == [1, 2]


def test_elements_come_back_nested_and_in_the_users_types() -> None:
    example = {"b": np.ones(2, np.float16), "a": [np.int32(0)]}
    queue = OutfeedQueue("out", spec=spec_of(example))
    host = StreamHost([], [queue])
    with host.running():
        host.give("out.1", np.array([1.5, 2], np.float32))
        host.give("out.0", np.array(7, np.int32))
    (found,) = queue
    assert list(found) == ["a", "b"]
    assert found["a"][0] == 7
    assert found["b"].dtype == np.float16
    assert found["b"].tolist() == [1.5, 2]


def test_replicas_give_one_element_together() -> None:
    queue = OutfeedQueue("loss", spec=SCALAR, replicas=3)
    for replica in (1, 0):
        queue.put((np.array(10 + replica, np.int32),), replica=replica)
    assert queue.drain() == []
    queue.put((np.array(12, np.int32),), 5, replica=2)
    (found,) = queue.drain()
    assert found.element.tolist() == [10, 11, 12]
    assert (found.number, found.cycle) == (0, 5)


def test_replicas_may_give_from_threads() -> None:
    queue = OutfeedQueue("loss", spec=SCALAR, replicas=3)

    def give(replica: int) -> None:
        for number in range(400):
            queue.put((np.array(10 * number + replica, np.int32),), replica=replica)

    threads = [threading.Thread(target=give, args=(replica,)) for replica in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [x.tolist() for x in queue] == [[10 * n, 10 * n + 1, 10 * n + 2] for n in range(400)]


def test_a_replica_alone_cannot_fill_the_memory() -> None:
    queue = OutfeedQueue("loss", spec=SCALAR, replicas=2)
    element = (np.array(1, np.int32),)
    for _ in range(4096):
        queue.put(element, replica=1)
    with pytest.raises(StreamError) as caught:
        queue.put(element, replica=1)
    assert caught.value.code == "E2035"


def test_another_thread_reads_while_the_program_runs() -> None:
    queue = OutfeedQueue("loss", spec=SCALAR, capacity=4, timeout=20)
    seen: list[int] = []

    def read() -> None:
        seen.extend(int(arrived.element) for arrived in queue.follow())

    thread = threading.Thread(target=read)
    thread.start()
    run(queue, 0, 2000)
    thread.join(20)
    assert seen == list(range(2000))


def test_iteration_goes_on_until_the_run_ends() -> None:
    queue = OutfeedQueue("loss", spec=SCALAR)
    begun = threading.Event()

    def program() -> None:
        with StreamHost([], [queue]) as host, host.running():
            begun.set()
            for number in range(50):
                host.give("loss", np.array(number, np.int32))
                time.sleep(0.001)

    thread = threading.Thread(target=program)
    thread.start()
    begun.wait(20)
    assert sum(int(x) for x in queue) == sum(range(50))
    thread.join()
    assert list(queue) == []


def test_a_full_queue_may_drop_its_oldest() -> None:
    queue = OutfeedQueue("loss", spec=SCALAR, capacity=3, drop_oldest=True)
    run(queue, 0, 10)
    assert [int(x) for x in queue] == [7, 8, 9]
    assert queue.dropped == 7


@pytest.mark.parametrize("capacity", [None, 1, 3])
def test_a_sink_has_had_all_elements_when_the_run_ends(capacity: int | None) -> None:
    seen: list[int] = []

    def sink(arrived: Arrived) -> None:
        time.sleep(0.0005)
        seen.append(int(arrived.element))

    queue = OutfeedQueue("loss", spec=SCALAR, capacity=capacity, sink=sink)
    host = StreamHost([], [queue])
    for first in (0, 30):
        with host.running():
            for number in range(first, first + 30):
                host.give("loss", np.array(number, np.int32))
        assert seen == list(range(first + 30))
    host.close()


def test_what_has_arrived_can_be_read_after_closing() -> None:
    queue = OutfeedQueue("loss", spec=SCALAR)
    run(queue, 0, 3)
    assert [arrived.number for arrived in queue.follow()] == [0, 1, 2]
    with pytest.raises(StreamError) as caught:
        queue.put((np.array(1, np.int32),))
    assert caught.value.code == "E2026"


def test_a_queue_without_a_program_says_so() -> None:
    queue = OutfeedQueue("loss")
    with pytest.raises(StreamError) as caught:
        queue.put((np.array(1, np.int32),))
    assert caught.value.code == "E2031"
    queue.bind(SCALAR)
    queue.put((np.array(1, np.int32),))
    assert [int(x) for x in queue] == [1]


def test_a_reader_takes_before_the_sink_at_no_harm() -> None:
    gate = threading.Event()
    seen: list[int] = []

    def sink(arrived: Arrived) -> None:
        gate.wait(20)
        seen.append(arrived.number)

    queue = OutfeedQueue("loss", spec=SCALAR, sink=sink, timeout=20)
    with StreamHost([], [queue]) as host, host.running():
        for number in range(5):
            host.give("loss", np.array(number, np.int32))
        drained = [arrived.number for arrived in queue.drain()]
        gate.set()
    assert sorted(seen + drained) == list(range(5))
