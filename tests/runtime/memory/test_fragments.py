"""Pieces that tiles send, against a count element by element."""

from itertools import product
from math import prod
from random import Random

import pytest

from hloipu_runtime.memory.fragments import NONE, fragments
from hloipu_runtime.program.mapping import Box, Mapping, Sizes, Tiles, whole, whole_box
from hloipu_runtime.program.program import Variable
from hloipu_runtime.program.steps import Transfer
from tests.support.program_builder import blocks, rows
from tests.support.random_programs import random_mapping


def variable(shape: Sizes, mapping: Mapping) -> Variable:
    return Variable("v", "f32", shape, mapping)


def transfer(target: Variable, box: Box, shift: Sizes, view: Sizes) -> Transfer:
    grid = target.mapping.tiles
    receivers = whole_box(grid.extents)
    return Transfer(0, 1, grid, receivers, target.mapping.spans, box, shift, view, 0)


def part(mapping: Mapping, place: Sizes, shape: Sizes) -> list[list[int]]:
    """Return the indices of each dimension that the tile at a place of the grid holds."""
    found = []
    for span, size in zip(mapping.spans, shape, strict=True):
        start = (place[span.axis] * span.step if span.axis >= 0 else 0) + span.offset
        found.append([n for n in range(start, start + span.size) if 0 <= n < size])
    return found


def places(mapping: Mapping) -> list[Sizes]:
    return list(product(*(range(n) for n in mapping.tiles.extents)))


def tile(mapping: Mapping, place: Sizes) -> int:
    tiles = mapping.tiles
    return tiles.first + sum(n * s for n, s in zip(place, tiles.strides, strict=True))


def sent_by_counting(moved: Transfer, source: Variable, target: Variable) -> dict[int, int]:
    """Return for each tile in how many runs it sends: neighbours that go to the same tiles."""
    wanted: dict[int, set[int]] = {}
    for place in places(target.mapping):
        for index in product(*part(target.mapping, place, target.shape)):
            if all(low <= n < high for n, (low, high) in zip(index, moved.box, strict=True)):
                flat = 0
                for n, shift, size in zip(index, moved.shift, moved.view, strict=True):
                    flat = flat * size + n + shift
                wanted.setdefault(flat, set()).add(tile(target.mapping, place))
    sent: dict[int, int] = {}
    for place in places(source.mapping):
        if any(place[axis] for axis in source.mapping.replicated_axes):
            continue
        before: set[int] | None = None
        for index in product(*part(source.mapping, place, source.shape)):
            flat = 0
            for n, size in zip(index, source.shape, strict=True):
                flat = flat * size + n
            here = wanted.get(flat)
            if here and here != before:
                number = tile(source.mapping, place)
                sent[number] = sent.get(number, 0) + 1
            before = here
    return sent


def check(moved: Transfer, source: Variable, target: Variable) -> tuple[int, int]:
    """Return pieces sent as computed and as counted; no tile that takes part may be missing."""
    found = fragments(moved, source, target, 2)
    counted = sent_by_counting(moved, source, target)
    if found == NONE:
        return 0, 0
    assert set(counted) <= set(found.senders.numbers.ravel().tolist())
    receiving = {
        tile(target.mapping, place)
        for place in places(target.mapping)
        if all(
            any(low <= n < high for n in indices)
            for indices, (low, high) in zip(
                part(target.mapping, place, target.shape), moved.box, strict=True
            )
        )
    }
    assert receiving <= set(found.receivers.numbers.ravel().tolist())
    return found.sent, max(counted.values())


@pytest.mark.parametrize(
    ("shape", "source", "target", "sent"),
    [
        ((8, 6), rows(4, 2, 2), blocks((8, 6), (1, 3)), 6),  # two rows, each in three columns
        ((8, 6), blocks((8, 6), (1, 3)), rows(4, 2, 2), 4),  # two columns are a row in each part
        ((8, 6), rows(4, 2, 2), rows(2, 4, 2), 1),
        ((8, 6), rows(2, 4, 2), rows(4, 2, 2), 2),
        ((8, 6), rows(4, 2, 2), Mapping(Tiles((), (), 0), (whole(8), whole(6))), 1),
        ((8, 6), rows(4, 2, 2), rows(1, 8, 2, copies=4), 1),  # to all tiles at once
        ((8, 6), rows(2, 4, 2, copies=2), rows(4, 2, 2), 2),
    ],
)
def test_regular_parts(shape: Sizes, source: Mapping, target: Mapping, sent: int) -> None:
    a, b = variable(shape, fill(source, shape)), variable(shape, fill(target, shape))
    moved = transfer(b, whole_box(shape), (0,) * len(shape), shape)
    assert check(moved, a, b) == (sent, sent)


def fill(mapping: Mapping, shape: Sizes) -> Mapping:
    """Return a mapping with the dimensions that it leaves out whole."""
    missing = tuple(whole(size) for size in shape[len(mapping.spans) :])
    return Mapping(mapping.tiles, mapping.spans + missing)


def test_tiles_that_keep_their_own_exchange_nothing() -> None:
    shape = (8, 6)
    a = variable(shape, fill(rows(4, 2, 2), shape))
    assert fragments(transfer(a, whole_box(shape), (0, 0), shape), a, a, 2) == NONE


def test_empty_box() -> None:
    a = variable((4,), rows(4, 1))
    b = variable((4,), rows(2, 2))
    assert fragments(transfer(b, ((2, 2),), (0,), (4,)), a, b, 2) == NONE


@pytest.mark.parametrize("seed", range(60))
def test_never_fewer_than_counted(seed: int) -> None:
    draw = Random(seed)
    shape = draw.choice([(7,), (6, 4), (5, 7), (4, 3, 5), (2, 8, 3)])
    source = variable(shape, random_mapping(draw, shape, 12))
    target = variable(shape, random_mapping(draw, shape, 12))
    low = [draw.randrange(n) for n in shape]
    box = tuple((a, draw.randint(a + 1, n)) for a, n in zip(low, shape, strict=True))
    shift = tuple(draw.randint(-a, n - b) for (a, b), n in zip(box, shape, strict=True))
    closed, counted = check(transfer(target, box, shift, shape), source, target)
    assert closed >= counted or closed == 0


@pytest.mark.parametrize("seed", range(40))
def test_never_fewer_than_counted_in_another_shape(seed: int) -> None:
    draw = Random(seed)
    held, view = draw.choice(
        [((6, 4), (4, 6)), ((24,), (4, 6)), ((2, 3, 4), (6, 4)), ((8, 3), (24,))]
    )
    source = variable(held, random_mapping(draw, held, 12))
    target = variable(view, random_mapping(draw, view, 12))
    zeros = (0,) * len(view)
    closed, counted = check(transfer(target, whole_box(view), zeros, view), source, target)
    assert closed >= counted or closed == 0
    assert closed <= prod(source.mapping.block)
