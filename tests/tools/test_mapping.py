"""Cases on workers: each is judged once, and one that ends its worker costs no other."""

import threading
import time
from collections.abc import Iterator
from itertools import count

import pytest

from hloipu.sweeping.running import DIED
from tools.mapping import Where, mapped, raised_after


def judged(case: int) -> str:
    if case == 3:
        raise ZeroDivisionError("three")
    if case == 5:
        time.sleep(60)
    return f"fine {case}"


def lost(case: int, said: str) -> str:
    return f"lost {case}: {said}"


def test_a_case_that_raises_or_ends_its_worker_is_told_and_costs_no_other() -> None:
    found = sorted(mapped(judged, range(7), lost, Where(2, seconds=0.5)))
    assert found[:5] == [f"fine {n}" for n in (0, 1, 2, 4, 6)]
    assert found[5].startswith("lost 3: ")
    assert "ZeroDivisionError: three" in found[5]
    assert found[6:] == [f"lost 5: {DIED}"]


def test_cases_are_taken_as_there_is_room() -> None:
    taken = []

    def cases() -> Iterator[int]:
        for number in (0, 1, 2):
            taken.append(number)
            yield number

    results = mapped(judged, cases(), lost, Where())
    assert next(results) == "fine 0"
    assert taken == [0, 1]
    assert [*results] == ["fine 1", "fine 2"]


def test_dask_judges_the_same() -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(1, threads_per_worker=1, dashboard_address=":0") as cluster:
        where = Where(scheduler=cluster.scheduler_address)
        found = sorted(mapped(judged, [0, 3, 6], lost, where))
    assert found[:2] == ["fine 0", "fine 6"]
    assert found[2].startswith("lost 3: ")


def test_an_error_comes_to_any_thread_in_time() -> None:
    def endless() -> None:
        with pytest.raises(TimeoutError), raised_after(0.05, TimeoutError):
            sum(1 for _ in count())
        with raised_after(60, TimeoutError):
            pass
        ended.append(True)

    ended: list[bool] = []
    thread = threading.Thread(target=endless)
    thread.start()
    thread.join(20)
    assert ended == [True]
