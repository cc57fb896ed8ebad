"""When steps run: what every timetable must keep to, and meetings as few as can be."""

from functools import lru_cache
from random import Random

import pytest

from hloipu_runtime.program.side_by_side import Kind, Timed, times_of
from tests.support.cases import each

LOCAL, MEETING, BARRIER = Kind.LOCAL, Kind.MEETING, Kind.BARRIER


def drawn(seed: int, *, ipus: int = 3, barriers: bool = True) -> list[Timed]:
    """Return steps as lowering writes them: each may need what ran on its IPUs before."""
    draw = Random(seed)
    steps: list[Timed] = []
    where: list[set[int]] = []
    for number in range(draw.randint(4, 24)):
        kind = draw.choice((LOCAL, LOCAL, LOCAL, MEETING, BARRIER if barriers else LOCAL))
        on = set(draw.sample(range(ipus), 1 if kind is LOCAL else 2))
        within = [n for n in range(number) if where[n] & on or steps[n].kind is BARRIER]
        needs = draw.sample(within, min(len(within), draw.randint(0, 2)))
        keeps = kind is LOCAL and draw.random() < 0.8
        weight = draw.randint(1, 9)
        place = tuple(sorted(on)) if keeps else ()
        steps.append(Timed(kind, place, tuple(sorted(needs)), weight))
        where.append(set() if kind is BARRIER else on)
    return steps


@each("seed", range(60))
def test_what_is_needed_is_there_and_places_are_kept(seed: int) -> None:
    steps = drawn(seed)
    times = times_of(steps)
    for number, (x, time) in enumerate(zip(steps, times, strict=True)):
        assert time % 2 == (x.kind is not LOCAL)
        assert all(times[n] <= time for n in x.needs)
        before = [m for m in range(number) if set(steps[m].ipus) & set(x.ipus)]
        assert all(times[m] <= time for m in before)
        if x.kind is BARRIER:
            assert all(t <= time for t in times[:number])
            assert all(t >= time for t in times[number:])


@pytest.mark.parametrize("seed", range(40))
def test_meetings_are_as_few_as_the_longest_chain_of_them(seed: int) -> None:
    """Of steps that may all go past each other, one that nothing needs counts as the last."""
    steps = [x._replace(ipus=()) for x in drawn(seed, barriers=False)]

    @lru_cache(None)
    def chain(number: int) -> int:
        """Count meetings with steps of an IPU between them that lead to a step, itself included."""
        x = steps[number]
        return max((chain(n) + _further(steps[n], x) for n in x.needs), default=x.kind is MEETING)

    needed = {n for x in steps for n in x.needs}
    times = times_of(steps)
    groups = [t for t, x in zip(times, steps, strict=True) if x.kind is MEETING]
    longest = max((chain(n) for n in range(len(steps)) if n in needed), default=0)
    assert len(set(groups)) <= longest + 1


def _further(before: Timed, after: Timed) -> int:
    return int(after.kind is MEETING and before.kind is LOCAL)


def test_what_a_meeting_needs_comes_first_and_the_rest_beside_others() -> None:
    """IPU 0 makes a number that IPU 1 waits for, in the middle of a long list of its own."""
    long = [Timed(LOCAL, (0,), (), 100) for _ in range(3)]
    steps = [
        *long[:1], Timed(LOCAL, (), (), 1), *long[1:], Timed(MEETING, (), (1,), 5),
        Timed(LOCAL, (1,), (4,), 250),
    ]  # fmt: skip
    assert times_of(steps) == [2, 0, 2, 2, 1, 2]


def test_an_ipu_that_would_wait_does_what_it_can_meanwhile() -> None:
    """IPU 0 has 90 cycles to do before the meeting, so that IPU 1 does 80 of its 120 meanwhile."""
    mine = [Timed(LOCAL, (1,), (), 40) for _ in range(3)]
    steps = [
        Timed(LOCAL, (0,), (), 90), *mine, Timed(MEETING, (), (0,), 1), Timed(LOCAL, (1,), (4,), 1)
    ]  # fmt: skip
    assert times_of(steps) == [0, 0, 0, 2, 1, 2]


def test_what_nothing_needs_goes_last() -> None:
    steps = [
        Timed(LOCAL, (0,), (), 1), Timed(MEETING, (), (0,), 1), Timed(LOCAL, (0,), (), 1),
        Timed(MEETING, (), (2,), 1), Timed(LOCAL, (1,), (3,), 1),
    ]  # fmt: skip
    assert times_of(steps) == [0, 3, 0, 1, 2]
