"""Live bytes while steps move: counted by hand on two tiles."""

from dataclasses import replace
from random import Random

import pytest

from hloipu_runtime.program.live_bytes import STRETCHES, LiveBytes, Message, live_bytes_of
from hloipu_runtime.program.mapping import Tiles
from tests.support.program_builder import ProgramBuilder, rows


def three_steps() -> LiveBytes:
    """Return: 0 and 1 are born, 1 dies into 2, 0 dies into 3; 8 bytes each on tiles 0 and 1."""
    make = ProgramBuilder()
    for _ in range(4):
        make.variable((4,), rows(2, 2))
    touched = [frozenset(x) for x in ({0, 1}, {1, 2}, {0, 3}, {2, 3})]
    return live_bytes_of(make.program(), touched, frozenset(range(4)), STRETCHES)


def test_what_was_fullest_before() -> None:
    most = three_steps().most
    assert list(most[:3]) == [24, 24, 0]


def test_a_step_joins_where_there_is_room() -> None:
    live = three_steps()
    live.most[:2] = 32
    live.appended(0)
    live.appended(1)
    last = {0: 0, 3: -1}
    assert list(live.candidates(2, [1], last)) == [1]
    assert live.moved(2, 1, last)
    assert list(live.left[:3]) == [16, 16, 0]


def test_a_step_stays_where_there_is_none() -> None:
    live = three_steps()
    live.appended(0)
    live.appended(1)
    last = {0: 0, 3: -1}
    assert not live.moved(2, 1, last)
    assert list(live.steps[1][:3]) == [24, 24, 0]


def test_variables_on_two_ipus_are_not_on_one_tile() -> None:
    make = ProgramBuilder()
    for ipu in (0, 1):
        make.variable((4,), rows(2, 2), ipu=ipu)
    program = replace(make.program(), ipus=2)
    live = live_bytes_of(program, [frozenset((0, 1))], frozenset((0, 1)), STRETCHES)
    assert sorted(live.most)[-5:] == [0, 8, 8, 8, 8]


def test_messages_count_at_their_step_alone() -> None:
    """16 bytes on tile 1 while the second step lasts, which then has no room to join the first."""
    make = ProgramBuilder()
    for _ in range(4):
        make.variable((4,), rows(2, 2))
    touched = [frozenset(x) for x in ({0, 1}, {1, 2}, {0, 3}, {2, 3})]
    messages: list[list[Message]] = [[], [Message(0, Tiles((), (), 1), 16)], [], []]
    live = live_bytes_of(make.program(), touched, frozenset(range(4)), STRETCHES, messages=messages)
    assert list(live.most[:3]) == [24, 24 + 16, 0]
    live.most[:2] = 32
    live.appended(0)
    assert list(live.steps[0][:2]) == [16, 16]
    assert not live.moved(1, 0, {1: 0, 2: -1})
    live.appended(1)
    assert list(live.steps[1][:2]) == [24, 40]
    assert list(live.left[:2]) == [16, 16]


@pytest.mark.parametrize("seed", range(8))
def test_moved_steps_are_counted_as_if_anew(seed: int) -> None:
    """Drawn steps join where they may; bytes are those of the steps as they then are, and fit."""
    drawn = Random(seed)
    make = ProgramBuilder()
    variables = range(14)
    for n in variables:
        tiles = drawn.choice((1, 2, 4))
        make.variable((4 * tiles,), rows(4 * tiles, tiles), ipu=n % 2)
    program = replace(make.program(), ipus=2)
    touched = [frozenset(drawn.sample(variables, 3)) for _ in range(24)]
    owned = frozenset(variables)
    live = live_bytes_of(program, touched, owned, STRETCHES)
    place_of: list[int] = []
    moves = 0
    for number, some in enumerate(touched):
        before = {v: [p for p, t in zip(place_of, touched, strict=False) if v in t] for v in some}
        last = {v: max(places, default=-1) for v, places in before.items()}
        # The first to touch a variable writes it, so that others come later.
        least = 1 + max((places[0] for places in before.values() if places), default=-1)
        free = range(min(live.count, least + drawn.randrange(3)), live.count)
        for place in live.candidates(number, free, last):
            if live.moved(number, place, last):
                place_of.append(place)
                moves += 1
                break
        else:
            place_of.append(live.count)
            live.appended(number)
        joined = [
            frozenset().union(*(t for p, t in zip(place_of, touched, strict=False) if p == place))
            for place in range(live.count)
        ]
        later = frozenset().union(*touched[number + 1 :])
        anew = live_bytes_of(program, [*joined, later], owned, STRETCHES)
        expected = anew.coming.cumsum(0) - anew.going.cumsum(0) + anew.going
        assert (live.steps[: live.count] == expected[: live.count]).all()
        assert (live.steps[: live.count] <= live.most).all()
    assert moves
