"""What a queue to the device hands over: order, forms, bounds, replicas, position."""

import threading
import time
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest

from hloipu_runtime.arguments import ArgumentError
from hloipu_runtime.errors import StreamEndedError, StreamError
from hloipu_runtime.streams.arrays import from_arrays
from hloipu_runtime.streams.element import Array, ElementSpec, LeafSpec, spec_of
from hloipu_runtime.streams.infeed import InfeedQueue

SCALAR = ElementSpec((LeafSpec("s32", ()),))
ROWS = np.arange(1000, dtype=np.int32)

both = pytest.mark.parametrize("inline", [False, True])


def counting(made: list[int], most: int = 1000) -> Iterator[Array]:
    for number in range(most):
        made.append(number)
        yield np.array(number, np.int32)


@both
@pytest.mark.parametrize("capacity", [1, 2, 3, 32])
def test_elements_come_in_order(inline: bool, capacity: int) -> None:
    with InfeedQueue("q", SCALAR, counting([]), capacity=capacity, inline=inline) as queue:
        assert [int(queue.take()[0]) for _ in range(1000)] == list(range(1000))
        with pytest.raises(StreamEndedError, match="ended at element 1000"):
            queue.take()
        with pytest.raises(StreamEndedError):
            queue.take()


@pytest.mark.parametrize("capacity", [1, 2, 8, 32])
def test_no_more_is_made_than_fits(capacity: int) -> None:
    made: list[int] = []
    with InfeedQueue("q", SCALAR, counting(made), capacity=capacity) as queue:
        for taken in range(1, 40):
            queue.take()
            time.sleep(0.001)
            assert len(made) <= taken + capacity + 1
        assert len(made) > 39 or capacity == 1


def test_the_thread_works_ahead() -> None:
    made: list[int] = []
    with InfeedQueue("q", SCALAR, counting(made), capacity=8):
        deadline = time.monotonic() + 5
        while len(made) < 8 and time.monotonic() < deadline:
            time.sleep(0.001)
        assert len(made) == 8


def test_an_element_waits_for_no_other() -> None:
    """What is made is there at once, even if the next one never comes."""
    gate = threading.Event()

    def source() -> Iterator[Array]:
        yield np.array(1, np.int32)
        yield np.array(2, np.int32)
        gate.wait(20)

    with InfeedQueue("q", SCALAR, source(), timeout=30, on_stop=gate.set) as queue:
        began = time.monotonic()
        assert [int(queue.take()[0]), int(queue.take()[0])] == [1, 2]
        assert time.monotonic() - began < 5
    assert gate.is_set()
    assert not queue.abandoned


@both
def test_arrays_are_handed_on_without_copies(inline: bool) -> None:
    x = np.zeros((10, 4), np.float32)
    spec = ElementSpec((LeafSpec("f32", (4,)),))
    with InfeedQueue("q", spec, from_arrays(x), inline=inline) as queue:
        assert np.shares_memory(queue.take()[0], x)


@pytest.mark.parametrize(
    ("element_type", "given", "stored"),
    [
        ("f16", np.array([1.5, 65504], np.float16), np.array([1.5, 65504], np.float32)),
        ("bf16", np.array([1, -2.5], ml_dtypes.bfloat16), np.array([1, -2.5], np.float32)),
        ("s4", np.array([-8, 7], ml_dtypes.int4), np.array([-8, 7], np.int8)),
        ("pred", np.array([True, False]), np.array([True, False])),
        ("f64", np.array([1.0, 0.1]), np.array([1.0, 0.1])),
    ],
)
def test_elements_are_in_storage_form(element_type: str, given: Array, stored: Array) -> None:
    spec = ElementSpec((LeafSpec(element_type, (2,)),))
    with InfeedQueue("q", spec, [given]) as queue:
        (leaf,) = queue.take()
        assert leaf.dtype == stored.dtype
        np.testing.assert_array_equal(leaf, stored)
    assert spec_of(given) == ElementSpec(spec.leaves, spec_of(given).structure)


def test_structures_are_taken_apart_in_order() -> None:
    element = {"y": np.int32(2), "x": [np.float32(1), (np.ones(2, np.int8),)]}
    spec = spec_of(element)
    assert str(spec) == "(f32[], s8[2], s32[])"
    with InfeedQueue("q", spec, [element]) as queue:
        first, second, third = queue.take()
    assert [first.tolist(), second.tolist(), third.tolist()] == [1, [1, 1], 2]
    assert queue.streams == ("q.0", "q.1", "q.2")
    flat = [(np.float32(1), np.ones(2, np.int8), np.int32(2))]
    with InfeedQueue("q", spec, flat) as queue, pytest.raises(StreamError, match="nested as"):
        queue.take()


def test_python_numbers_may_stand_for_scalars() -> None:
    with InfeedQueue("q", SCALAR, [1, True, 2.5]) as queue:
        assert int(queue.take()[0]) == 1
        assert int(queue.take()[0]) == 1
        with pytest.raises(StreamError) as caught:
            queue.take()
    assert (caught.value.code, caught.value.step) == ("E2023", 2)


@both
def test_replica_i_takes_element_i_modulo_their_number(inline: bool) -> None:
    with InfeedQueue("q", SCALAR, counting([]), replicas=3, inline=inline) as queue:
        taken = [[int(queue.take(replica)[0]) for replica in (2, 0, 1)] for _ in range(4)]
        assert queue.position == 12
        assert int(queue.take(1)[0]) == 13
        assert queue.position == 12
    assert taken == [[3 * i + 2, 3 * i, 3 * i + 1] for i in range(4)]


def test_replicas_on_threads_get_their_own_elements() -> None:
    found: dict[int, list[int]] = {}
    with InfeedQueue("q", SCALAR, counting([]), replicas=4) as queue:

        def run(replica: int) -> None:
            found[replica] = [int(queue.take(replica)[0]) for _ in range(250)]

        threads = [threading.Thread(target=run, args=(replica,)) for replica in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {replica: list(range(replica, 1000, 4)) for replica in range(4)}


def test_a_replica_alone_cannot_fill_the_memory() -> None:
    endless = from_arrays(ROWS).wrap()
    with InfeedQueue("q", SCALAR, endless, replicas=2) as queue:
        for _ in range(4097):
            queue.take(0)
        with pytest.raises(StreamError) as caught:
            queue.take(0)
    assert caught.value.code == "E2035"


@both
def test_a_state_goes_on_with_what_the_device_had_not_taken(inline: bool) -> None:
    source = from_arrays(ROWS).shuffle(7).batch(3).wrap()
    spec = ElementSpec((LeafSpec("s32", (3,)),))
    with InfeedQueue("q", spec, source) as whole:
        expected = [whole.take()[0].tolist() for _ in range(900)]
    with InfeedQueue("q", spec, source, inline=inline) as first:
        for _ in range(500):
            first.take()
        state = first.state()
    assert state.position == 500
    resumed = InfeedQueue("q", spec, source, inline=inline)
    resumed.resume(state)
    with resumed:
        assert [resumed.take()[0].tolist() for _ in range(400)] == expected[500:]
    assert resumed.position == 900
    with pytest.raises(StreamError):
        resumed.resume(state)


@pytest.mark.parametrize(
    "settings",
    [
        {"timeout": 0},
        {"timeout": float("inf")},
        {"timeout": float("nan")},
        {"prefetch_depth": 0},
        {"capacity": 0},
        {"replicas": 0},
        {"streams": ("a", "b")},
    ],
)
def test_settings_that_cannot_be(settings: dict[str, object]) -> None:
    with pytest.raises((StreamError, ArgumentError)) as caught:
        InfeedQueue("q", SCALAR, [], **settings)  # type: ignore[arg-type]
    assert caught.value.code in ("E2031", "E3180")


def test_a_generator_is_closed_with_its_queue() -> None:
    closed = threading.Event()

    def source() -> Iterator[Array]:
        try:
            while True:
                yield np.array(1, np.int32)
        finally:
            closed.set()

    for inline in (False, True):
        closed.clear()
        with InfeedQueue("q", SCALAR, source(), inline=inline) as queue:
            queue.take()
        assert closed.is_set()
        with pytest.raises(StreamError) as caught:
            queue.take()
        assert caught.value.code == "E2026"


def test_code_beyond_reach_is_reported_and_ends_when_it_returns() -> None:
    """A thread in C code cannot be broken off; the program goes on without it."""
    gate = threading.Lock()
    gate.acquire()

    def source() -> Iterator[Array]:
        gate.acquire()
        yield np.array(1, np.int32)

    queue = InfeedQueue("q", SCALAR, source(), timeout=0.1)
    began = time.monotonic()
    with pytest.raises(StreamError) as caught:
        queue.take()
    assert time.monotonic() - began < 1.1
    assert caught.value.code == "E2021"
    assert queue.abandoned
    gate.release()
    deadline = time.monotonic() + 5
    while queue.abandoned and time.monotonic() < deadline:
        time.sleep(0.001)
    assert not queue.abandoned


def test_waiting_is_measured() -> None:
    def source() -> Iterator[Array]:
        for number in range(5):
            time.sleep(0.02)
            yield np.array(number, np.int32)

    with InfeedQueue("q", SCALAR, source()) as queue:
        for _ in range(5):
            queue.take()
        assert 0.1 <= queue.source_seconds < 5
        assert 0.09 <= queue.waited_seconds < 5


def slow_three(through: threading.Event) -> Iterator[Array]:
    for number in range(3):
        time.sleep(0.02)
        yield np.array(number, np.int32)
    through.set()


def test_a_source_that_works_ahead_takes_time_that_nobody_waits() -> None:
    through = threading.Event()
    with InfeedQueue("q", SCALAR, slow_three(through), inline=False) as queue:
        assert through.wait(20)
        for _ in range(3):
            queue.take()
        assert queue.source_seconds >= 0.06
        assert queue.waited_seconds == 0
        rate = queue.source_rate
        assert rate is not None
        assert 0 < rate <= 3 / 0.06


def test_the_time_of_an_inline_source_is_waited() -> None:
    queue = InfeedQueue("q", SCALAR, slow_three(threading.Event()), inline=True)
    assert queue.source_rate is None
    with queue:
        for _ in range(2):
            queue.take()
        assert queue.source_seconds == queue.waited_seconds >= 0.04
        assert queue.source_rate == 2 / queue.waited_seconds
