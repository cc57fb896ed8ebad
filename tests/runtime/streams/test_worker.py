"""Threads end when they are told to, whatever they are at, and leave every lock free."""

import os
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from hloipu_runtime.errors import StreamError
from hloipu_runtime.streams.element import Array, ElementSpec, LeafSpec
from hloipu_runtime.streams.infeed import InfeedQueue
from hloipu_runtime.streams.structure import flatten
from hloipu_runtime.streams.worker import Inside, StopWork, Worker, is_inside

SCALAR = ElementSpec((LeafSpec("s32", ()),))


def endless() -> Iterator[Array]:
    while True:
        yield np.array(1, np.int32)


def take_for_ever(queue: InfeedQueue) -> None:
    while True:
        queue.take()


def test_breaking_off_at_any_moment_leaves_locks_free() -> None:
    """Interrupts race with a thread that enters and leaves the user's code all the time."""
    lock = threading.Lock()
    held, arrived_outside = 0, 0

    def work(worker: Worker) -> None:
        nonlocal held, arrived_outside
        while not worker.stopping:
            worker.enter()
            sum(range(20))
            worker.leave()
            try:
                with lock:
                    held += sum(range(3))
            except StopWork:
                arrived_outside += 1

    for round_number in range(300):
        worker = Worker("race", work)
        worker.start()
        time.sleep(round_number % 7 * 1e-4)
        worker.interrupt()
        deadline = time.monotonic() + 10
        while worker.alive and time.monotonic() < deadline:
            time.sleep(1e-4)
        assert not worker.alive
        assert lock.acquire(timeout=5)
        lock.release()
    assert held > 0
    assert not arrived_outside


def test_queues_closed_at_any_moment_end() -> None:
    before = threading.active_count()
    for number in range(150):
        queue = InfeedQueue("q", SCALAR, endless(), capacity=1 + number % 5)
        queue.start()
        for _ in range(number % 4):
            queue.take()
        queue.close()
        assert not queue.abandoned
    assert threading.active_count() == before


def test_closing_from_another_thread_gives_a_typed_error() -> None:
    for number in range(60):
        queue = InfeedQueue("q", SCALAR, endless())
        queue.start()
        closer = threading.Timer(number * 1e-4, queue.close)
        closer.start()
        with pytest.raises(StreamError) as caught:
            take_for_ever(queue)
        assert caught.value.code == "E2026"
        closer.join()


def test_code_that_swallows_the_break_is_left_at_its_next_return() -> None:
    """A source that catches everything goes on, but only to its next element."""

    def source() -> Iterator[Array]:
        while True:
            try:
                time.sleep(0.001)
                yield np.array(1, np.int32)
            except StopWork:
                continue

    with InfeedQueue("q", SCALAR, source()) as queue:
        queue.take()
    assert not queue.abandoned


def test_marks_belong_to_one_queue_and_one_thread() -> None:
    first, second = object(), object()
    with Inside(first):
        assert is_inside(first)
        assert not is_inside(second)
        with Inside(second):
            assert is_inside(first)
            assert is_inside(second)
        assert not is_inside(second)
        seen: list[bool] = []
        thread = threading.Thread(target=lambda: seen.append(is_inside(first)))
        thread.start()
        thread.join()
        assert seen == [False]
    assert not is_inside(first)


def test_a_source_may_use_another_queue_of_the_same_name() -> None:
    inner = InfeedQueue("data", SCALAR, [1, 2, 3])
    with inner, InfeedQueue("data", SCALAR, lambda _: inner.take()[0]) as outer:
        assert [int(outer.take()[0]) for _ in range(3)] == [1, 2, 3]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # jax warns where it was imported
def test_a_forked_child_is_told_that_the_thread_is_gone() -> None:
    made = threading.Event()
    wait = threading.Event()

    def source() -> Iterator[Array]:
        yield np.array(1, np.int32)
        made.set()
        wait.wait(20)

    queue = InfeedQueue("q", SCALAR, source(), timeout=10, on_stop=wait.set)
    queue.start()
    assert made.wait(10)
    child = os.fork()
    if not child:
        status = 1
        try:
            take_for_ever(queue)
        except StreamError as error:
            status = 0 if (error.code, error.step) == ("E2024", 1) else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    queue.close()
    assert os.waitstatus_to_exitcode(status) == 0


def test_an_element_that_holds_itself_is_refused() -> None:
    element: list[object] = []
    element.append(element)
    with pytest.raises(StreamError) as caught:
        flatten(element)
    assert caught.value.code == "E2023"
