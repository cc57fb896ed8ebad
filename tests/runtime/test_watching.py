"""Searches end early, by an injected clock, with the best so far."""

from collections.abc import Iterator

import pytest

from hloipu_runtime.watching import Search, current_search, listening, searching, telling


class Clock:
    """Seconds that pass as work says."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def work(clock: Clock, seconds: float, log: list[str]) -> str:
    """Work for a time, telling each second of it."""
    for _ in range(int(seconds)):
        clock.now += 1
        telling("working")
    log.append("done")
    return "answer"


@pytest.mark.parametrize(
    ("seconds", "took", "answers", "why"),
    [
        (None, 100, ["answer", "answer"], ""),
        (10, 4, ["answer", "answer"], ""),
        (10, 6, ["answer", None], "its time of 10 s was up"),
        (10, 11, [None, None], "its time of 10 s was up"),
    ],
)
def test_work_ends_when_its_time_is_up(
    seconds: float | None, took: float, answers: list[str | None], why: str
) -> None:
    clock = Clock()
    log: list[str] = []
    heard: list[tuple[str, ...]] = []
    search = Search(seconds, clock)
    with listening(lambda parts, *_: heard.append(parts)):
        assert [search.tried(lambda: work(clock, took, log)) for _ in "ab"] == answers
    assert search.ended == why
    assert len(log) == 2 - answers.count(None)
    assert clock.now <= min(2 * took, seconds or 1e9)
    assert heard


def test_a_block_ends_by_itself_without_a_limit() -> None:
    clock = Clock()
    search = Search(None, work_clock=clock)
    log: list[str] = []
    with search.within(5):
        assert search.left() == float("inf")
        with search.part(0.5):
            assert search.tried(lambda: work(clock, 3, log)) is None
        assert search.tried(lambda: work(clock, 1, log)) == "answer"
        assert search.tried(lambda: work(clock, 2, log)) is None
    assert search.ended == "its time of 2.5 s was up"
    assert search.tried(lambda: work(clock, 9, log)) == "answer"


def test_a_part_of_the_time_ends_before_the_rest() -> None:
    clock = Clock()
    search = Search(10, clock)
    log: list[str] = []
    with search.part(0.5):
        assert search.tried(lambda: work(clock, 6, log)) is None
        with search.part(0.5):
            assert search.tried(lambda: work(clock, 0, log)) is None
    assert search.tried(lambda: work(clock, 2, log)) == "answer"
    assert search.ended == "its time of 10 s was up"
    assert search.tried(lambda: work(clock, 6, log)) is None
    assert search.is_over()


def test_no_handler_of_errors_keeps_work_that_is_to_end() -> None:
    search = Search()

    def stubborn() -> Iterator[int]:
        search.end("interrupted")
        try:
            telling("working")
        except Exception:  # pragma: no cover - what is looked for
            pytest.fail("the end was taken for an error")
        return iter(())

    assert search.tried(stubborn) is None
    assert search.ended == "interrupted"
    search.end("again")
    assert search.ended == "interrupted"


def test_searches_are_known_where_they_are_around() -> None:
    with searching(Search()) as search:
        assert current_search() is search
        assert not search.improves
        with search.improving():
            assert search.improves
        assert not search.improves
    assert current_search() is not search
