"""Copies kept throughout loops: the greedy choice against every choice there is."""

from collections.abc import Sequence
from itertools import combinations
from random import Random

import numpy as np
import pytest

from hloipu_compiler.planners.hoisting import Item, Numbers, chosen_items


def fits(items: Sequence[Item], chosen: Sequence[int], free: Numbers) -> bool:
    """Whether all needs are met, and no tile at any moment holds more than it has room for."""
    left = free.copy()
    for n in chosen:
        if not set(items[n].needs) <= set(chosen):
            return False
        for row in items[n].moments:
            left[row][items[n].classes] -= items[n].size_bytes
    taken = left < free
    return bool((left[taken] >= 0).all())


def saved(items: Sequence[Item], chosen: Sequence[int]) -> int:
    return sum(items[n].saved_cycles for n in chosen)


def best(items: Sequence[Item], free: Numbers) -> int:
    """Return the most cycles that any choice saves."""
    return max(
        saved(items, chosen)
        for count in range(len(items) + 1)
        for chosen in combinations(range(len(items)), count)
        if fits(items, chosen, free)
    )


@pytest.mark.parametrize("seed", range(60))
def test_one_class_of_tiles_gets_at_least_half_of_what_can_be_saved(seed: int) -> None:
    draw = Random(seed)
    everywhere = np.array([0])
    items = [
        Item(draw.randint(0, 90), draw.randint(1, 60), everywhere, (0,))
        for _ in range(draw.randint(1, 9))
    ]
    free = np.array([[draw.randint(-5, 120)]])
    chosen = chosen_items(items, free)
    assert fits(items, chosen, free)
    assert 2 * saved(items, chosen) >= best(items, free)


@pytest.mark.parametrize("seed", range(60))
def test_choices_on_many_tiles_and_moments_fit_and_cannot_be_added_to(seed: int) -> None:
    draw = Random(seed)
    tiles, loops = 4, 3
    items: list[Item] = []
    for _ in range(draw.randint(1, 5)):
        held = np.array(sorted(draw.sample(range(tiles), draw.randint(1, tiles))))
        size = draw.randint(1, 50)
        # The last loop is inside of the one before.
        items.append(Item(draw.randint(0, 90), size, held, (2,)))
        items.append(Item(draw.randint(0, 90), size, held, (1,), (len(items) - 1,)))
    free = np.array([[draw.randint(-5, 60) for _ in range(tiles)] for _ in range(loops)])
    chosen = chosen_items(items, free)
    assert fits(items, chosen, free)
    for n, item in enumerate(items):
        if n not in chosen and item.saved_cycles and set(item.needs) <= set(chosen):
            assert not fits(items, [*chosen, n], free)
    assert 5 * saved(items, chosen) >= 2 * best(items, free)


def test_what_saves_more_for_a_free_byte_goes_first() -> None:
    here, there = np.array([0]), np.array([1])
    items = [
        Item(100, 60, here, (0,)),
        Item(90, 30, here, (0,)),
        Item(90, 30, here, (0,)),
        Item(1, 60, there, (0,)),
    ]
    assert sorted(chosen_items(items, np.array([[60, 60]]))) == [1, 2, 3]


def test_a_large_copy_that_saves_most_is_not_lost_to_a_small_one() -> None:
    everywhere = np.array([0])
    items = [Item(2, 1, everywhere, (0,)), Item(100, 60, everywhere, (0,))]
    assert chosen_items(items, np.array([[60]])) == [1]
