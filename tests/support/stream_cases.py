"""Every way in which a host stream can fail, each with the one error that it must end with.

Codes and steps come from how each case is built. The tests and the stress tool share them.
"""

import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hloipu_runtime.errors import StreamError
from hloipu_runtime.streams.element import Array
from hloipu_runtime.streams.host import StreamHost
from hloipu_runtime.streams.infeed import InfeedQueue
from hloipu_runtime.streams.outfeed import Arrived, OutfeedQueue
from tests.support.stream_parts import (
    LONG,
    SPEC,
    TIMEOUT_SECONDS,
    OwnError,
    died,
    feed,
    feed_two,
    for_ever,
    give,
    give_two,
    raised,
    row,
    rows_then,
    slowly,
    stubborn,
)
from tests.support.stream_trial import Case


def not_a_number() -> None:
    """NaN is a value like others."""
    queue = InfeedQueue("data", SPEC, [np.full(3, np.nan, np.float32)], timeout=TIMEOUT_SECONDS)
    out = OutfeedQueue("loss", spec=SPEC)
    with StreamHost([queue], [out]) as host, host.running():
        host.give("loss", host.take("data"))
    (arrived,) = out.drain()
    assert np.isnan(arrived.element).all()


def lost_thread() -> None:
    """Take from a queue whose thread has gone without a word, as in a forked child."""
    queue = InfeedQueue("data", SPEC, rows_then(2, for_ever), timeout=TIMEOUT_SECONDS)
    with queue:
        queue.take()
        queue.take()
        worker = queue._worker
        assert worker is not None
        worker.interrupt()
        queue.take()


def lost_sink_thread() -> None:
    queue = OutfeedQueue("loss", spec=SPEC, sink=lambda _: for_ever(), timeout=TIMEOUT_SECONDS)
    with StreamHost([], [queue]) as host, host.running():
        host.give("loss", row(0))
        worker = queue._worker
        assert worker is not None
        worker.interrupt()
        while worker.alive:
            time.sleep(0.001)
        host.give("loss", row(1))


def calls_itself() -> None:
    """A source that takes from the queue that it fills."""
    made: list[InfeedQueue] = []
    queue = InfeedQueue("data", SPEC, lambda _: made[0].take()[0], timeout=TIMEOUT_SECONDS)
    made.append(queue)
    with queue:
        queue.take()


def runs_the_program(inline: bool) -> None:
    """A source that runs the program that it feeds."""
    made: list[StreamHost] = []

    def source(number: int) -> Array:
        with made[0].running():
            return row(number)

    queue = InfeedQueue("data", SPEC, source, timeout=TIMEOUT_SECONDS, inline=inline)
    with StreamHost([queue]) as host:
        made.append(host)
        with host.running():
            host.take("data")


def sink_runs_the_program() -> None:
    made: list[StreamHost] = []

    def sink(_: Arrived) -> None:
        with made[0].running():
            pass

    queue = OutfeedQueue("loss", spec=SPEC, sink=sink, timeout=TIMEOUT_SECONDS)
    with StreamHost([], [queue]) as host:
        made.append(host)
        with host.running():
            host.give("loss", row(0))


def second_run() -> None:
    """A run that begins on another thread while one is going on."""
    queue = InfeedQueue("data", SPEC, slowly(9), timeout=TIMEOUT_SECONDS)
    found: list[StreamError] = []
    with StreamHost([queue]) as host, host.running():

        def again() -> None:
            try:
                with host.running():
                    pass
            except StreamError as error:
                found.append(error)

        thread = threading.Thread(target=again)
        thread.start()
        thread.join()
        host.take("data")
    raise found[0]


def interrupted(work: Callable[[], None]) -> None:
    """Send this process an interrupt while the main thread waits."""
    # A shell starts what runs in the background with interrupts ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        work()
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)


def taken_by_reader_that_goes() -> None:
    queue = OutfeedQueue("loss", spec=SPEC, capacity=2, timeout=TIMEOUT_SECONDS)

    def read() -> None:
        for _ in queue.follow():
            break

    thread = threading.Thread(target=read)
    with StreamHost([], [queue]) as host:
        thread.start()
        try:
            with host.running():
                for number in range(20):
                    host.give("loss", row(number))
                    time.sleep(0.005)
        finally:
            thread.join()


def closed_while_waiting() -> None:
    """Another thread closes the queue that the program waits for."""
    queue = InfeedQueue("data", SPEC, rows_then(1, for_ever), timeout=LONG)
    queue.take()
    closer = threading.Timer(0.05, queue.close)
    closer.start()
    try:
        queue.take()
    finally:
        closer.join()


def forgotten_infeed() -> None:
    """The queue is dropped while its thread is in a source that never returns."""
    queue = InfeedQueue("data", SPEC, rows_then(1, for_ever), timeout=TIMEOUT_SECONDS)
    queue.take()
    del queue
    gc.collect()


def forgotten_outfeed() -> None:
    queue = OutfeedQueue("loss", spec=SPEC, sink=lambda _: for_ever(), timeout=TIMEOUT_SECONDS)
    queue.begin_run()
    queue.put((row(0),))
    del queue
    gc.collect()


def followed_and_forgotten() -> None:
    """Who follows a queue that is dropped comes to an end."""
    queue = OutfeedQueue("loss", spec=SPEC, timeout=TIMEOUT_SECONDS)
    queue.begin_run()
    queue.put((row(0),))
    follower = queue.follow()
    assert next(follower).number == 0
    del queue
    gc.collect()
    assert list(follower) == []


def failed_while_followed() -> None:
    """A reader on another thread learns why the program failed."""
    queue = OutfeedQueue("loss", spec=SPEC, timeout=TIMEOUT_SECONDS)
    found: list[StreamError] = []
    numbers: list[int] = []

    def read() -> None:
        try:
            numbers.extend(arrived.number for arrived in queue.follow())
        except StreamError as error:
            found.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        with StreamHost([], [queue]) as host, host.running():
            host.give("loss", row(0))
            raised()
    except OwnError:
        thread.join()
    raise found[0]


def not_followed_in_time() -> None:
    queue = OutfeedQueue("loss", spec=SPEC)
    with StreamHost([], [queue]) as host, host.running():
        next(queue.follow(TIMEOUT_SECONDS))


def wrong(value: Any) -> Callable[[], None]:
    return lambda: feed(rows_then(2, lambda: value), 3)


def wrong_given(value: Array) -> None:
    queue = OutfeedQueue("loss", spec=SPEC)
    with StreamHost([], [queue]) as host, host.running():
        host.give("loss", row(0))
        host.give("loss", value)


def inline(source: Callable[[], Any], takes: int) -> Callable[[], None]:
    return lambda: feed(source(), takes, inline=True)


CASES = (
    Case("in slow", lambda: feed(slowly(5), 5), "", -1),
    Case("in stuck", lambda: feed(rows_then(2, for_ever), 3), "E2021", 2),
    Case("in stuck at once", lambda: feed(rows_then(0, for_ever), 1), "E2021", 0),
    Case("in stuck and stubborn", lambda: feed(rows_then(1, stubborn), 2), "E2021", 1),
    Case("in dead thread", lost_thread, "E2024", 2),
    Case("in exits", lambda: feed(rows_then(2, died), 3), "E2022", 2, SystemExit),
    Case("in raises early", lambda: feed(rows_then(0, raised), 1), "E2022", 0, OwnError),
    Case("in raises late", lambda: feed(rows_then(500, raised), 501), "E2022", 500, OwnError),
    Case("in ends early", lambda: feed(map(row, range(7)), 8), "E2020", 7),
    Case("in zero elements", lambda: feed(iter(()), 1), "E2020", 0),
    Case("in wrong shape", wrong(np.zeros(4, np.float32)), "E2023", 2),
    Case("in wrong dtype", wrong(np.zeros(3)), "E2023", 2),
    Case("in wrong count", wrong((row(0), row(1))), "E2023", 2),
    Case("in no array", wrong(None), "E2023", 2),
    Case("in zero length", wrong(np.zeros(0, np.float32)), "E2023", 2),
    Case("in re-entrant", calls_itself, "E2025", 0),
    Case("in runs the program", lambda: runs_the_program(False), "E2025", -1),
    Case("in second run", second_run, "E2025", -1),
    Case("in closed meanwhile", closed_while_waiting, "E2026", 1),
    Case("in interrupted", lambda: interrupted(lambda: feed(rows_then(2, for_ever), 3, LONG)),
         "E2027", 2, KeyboardInterrupt),
    Case("in not a number", not_a_number, "", -1),
    Case("in two slow", lambda: feed_two(slowly(5), 5), "", -1),
    Case("in two stuck", lambda: feed_two(rows_then(3, for_ever), 4), "E2021", 3),
    Case("in two raises", lambda: feed_two(rows_then(9, raised), 10), "E2022", 9, OwnError),
    Case("in two ends early", lambda: feed_two(map(row, range(7)), 8), "E2020", 7),
    Case("in two wrong", lambda: feed_two(rows_then(3, lambda: None), 4), "E2023", 3),
    Case("in forgotten", forgotten_infeed, "", -1),
    Case("inline raises", inline(lambda: rows_then(3, raised), 4), "E2022", 3, OwnError),
    Case("inline ends", inline(lambda: map(row, range(3)), 4), "E2020", 3),
    Case("inline wrong", inline(lambda: rows_then(1, lambda: 1.5), 2), "E2023", 1),
    Case("inline runs the program", lambda: runs_the_program(True), "E2025", -1),
    Case("inline interrupted", lambda: interrupted(inline(lambda: rows_then(1, for_ever), 2)),
         "E2027", 1, KeyboardInterrupt),
    Case("out slow", lambda: give(5, lambda _: time.sleep(0.02)), "", -1),
    Case("out slow and bounded", lambda: give(9, lambda _: time.sleep(0.02), capacity=2), "", -1),
    Case("out stuck", lambda: give(9, lambda _: for_ever(), capacity=2), "E2028", 3),
    Case("out stuck at the end", lambda: give(4, lambda _: for_ever()), "E2036", 0),
    Case("out dead thread", lost_sink_thread, "E2024", 1),
    Case("out raises early", lambda: give(3, lambda _: raised()), "E2029", 0, OwnError),
    Case("out raises late", lambda: give(300, lambda a: raised() if a.number == 299 else None),
         "E2029", 299, OwnError),
    Case("out exits", lambda: give(3, lambda _: died()), "E2029", 0, SystemExit),
    Case("out not drained", lambda: give(9, capacity=4), "E2028", 4),
    Case("out reader goes early", taken_by_reader_that_goes, "E2033", 3),
    Case("out wrong shape", lambda: wrong_given(np.zeros(4, np.float32)), "E2023", 1),
    Case("out wrong dtype", lambda: wrong_given(np.zeros(3)), "E2023", 1),
    Case("out zero length", lambda: wrong_given(np.zeros(0, np.float32)), "E2023", 1),
    Case("out zero elements", lambda: give(0, lambda _: None), "", -1),
    Case("out re-entrant", sink_runs_the_program, "E2025", -1),
    Case("out interrupted", lambda: interrupted(lambda: give(9, capacity=1, timeout=LONG)),
         "E2027", 1, KeyboardInterrupt),
    Case("out two slow", lambda: give_two(5, lambda _: time.sleep(0.02)), "", -1),
    Case("out two not drained", lambda: give_two(9, capacity=4), "E2028", 4),
    Case("out two raises", lambda: give_two(3, lambda _: raised()), "E2029", 0, OwnError),
    Case("out two stuck", lambda: give_two(9, lambda _: for_ever()), "E2036", 0),
    Case("out forgotten", forgotten_outfeed, "", -1),
    Case("out followed and forgotten", followed_and_forgotten, "", -1),
    Case("out failed while followed", failed_while_followed, "E2034", 1, OwnError),
    Case("out nothing comes", not_followed_in_time, "E2037", 0),
)  # fmt: skip
