"""Tiles that take part in a transfer, against a look at every tile and every element."""

from itertools import product
from random import Random

import numpy as np
import pytest

from hloipu_runtime.memory.partakers import receivers, senders
from hloipu_runtime.program.mapping import Box, Mapping, Sizes, Span, Tiles, whole, whole_box
from hloipu_runtime.program.program import Variable
from hloipu_runtime.program.steps import Transfer
from tests.support.cases import each

EXTENTS = (3, 2, 2)
"""Of the grid: of its axes, some cut a dimension, the others replicate."""
STRIDES = (5, 2, 1)
FIRST = 4


def drawn_mapping(draw: Random, shape: Sizes) -> Mapping:
    """Return a mapping in which every element lies somewhere, with halos."""
    axes = draw.sample(range(len(EXTENTS)), len(shape))
    spans = []
    for size, axis in zip(shape, axes, strict=True):
        step, halo = -(-size // EXTENTS[axis]), draw.choice((0, 0, 1))
        cut = Span(axis, step, -halo, step + 2 * halo)
        spans.append(draw.choice((cut, cut, whole(size))))
    return Mapping(Tiles(EXTENTS, STRIDES, FIRST), tuple(spans))


def drawn_box(draw: Random, shape: Sizes) -> Box:
    lows = [draw.randrange(size) for size in shape]
    return tuple((low, draw.randint(low + 1, size)) for low, size in zip(lows, shape, strict=True))


def tiles_with(mapping: Mapping, shape: Sizes, box: Box, *, once: bool) -> list[int]:
    """Return the tiles whose parts meet a box; `once`: at place 0 of axes that replicate."""
    tiles = []
    cutting = {span.axis for span in mapping.spans}
    for place in product(*(range(n) for n in EXTENTS)):
        if once and any(n for axis, n in enumerate(place) if axis not in cutting):
            continue
        meets = True
        for span, size, (low, high) in zip(mapping.spans, shape, box, strict=True):
            begin = span.offset + (place[span.axis] * span.step if span.axis >= 0 else 0)
            held = range(max(0, begin), min(size, begin + span.size))
            meets &= any(low <= element < high for element in held)
        if meets:
            tiles.append(FIRST + sum(n * s for n, s in zip(place, STRIDES, strict=True)))
    return tiles


def numbers(tiles: Tiles) -> list[int]:
    assert 1 not in tiles.extents
    return sorted(tiles.numbers.ravel().tolist())


@each("seed", range(60))
def test_receivers_and_senders(seed: int) -> None:
    draw = Random(seed)
    shape = (draw.randint(6, 12), draw.randint(4, 9))
    mapping, box = drawn_mapping(draw, shape), drawn_box(draw, shape)
    variable = Variable("v", "f32", shape, mapping)
    shift = tuple(
        draw.randint(-low, size - high) for (low, high), size in zip(box, shape, strict=True)
    )
    everyone = whole_box(EXTENTS)
    moved = Transfer(0, 1, mapping.tiles, everyone, mapping.spans, box, shift, shape, 0)
    assert numbers(receivers(moved, variable)) == tiles_with(mapping, shape, box, once=False)
    there = tuple((low + s, high + s) for (low, high), s in zip(box, shift, strict=True))
    assert numbers(senders(moved, variable)) == tiles_with(mapping, shape, there, once=True)


@pytest.mark.parametrize("seed", range(30))
def test_senders_of_a_source_that_is_seen_in_another_shape(seed: int) -> None:
    """All rows between the first and the last element are taken to be sent."""
    draw = Random(seed)
    shape, view = (12, 5), draw.choice(((60,), (4, 15), (5, 12), (3, 4, 5)))
    mapping = drawn_mapping(draw, shape)
    box = drawn_box(draw, view)
    shift = tuple(
        draw.randint(-low, size - high) for (low, high), size in zip(box, view, strict=True)
    )
    moved = Transfer(0, 1, mapping.tiles, whole_box(EXTENTS), mapping.spans, box, shift, view, 0)
    where = tuple(slice(low + s, high + s) for (low, high), s in zip(box, shift, strict=True))
    rows = np.arange(60).reshape(view)[where].ravel() // shape[1]
    wanted = ((int(rows.min()), int(rows.max()) + 1), (0, shape[1]))
    variable = Variable("v", "f32", shape, mapping)
    assert numbers(senders(moved, variable)) == tiles_with(mapping, shape, wanted, once=True)


def test_a_scalar_is_sent_by_one_tile() -> None:
    mapping = Mapping(Tiles((3,), (2,), 1), ())
    moved = Transfer(0, 1, mapping.tiles, ((0, 3),), (), (), (), (), 0)
    scalar = Variable("v", "f32", (), mapping)
    assert numbers(senders(moved, scalar)) == [1]
    assert numbers(receivers(moved, scalar)) == [1, 3, 5]
    one = Transfer(0, 1, mapping.tiles, ((0, 3),), (), ((0, 1),), (0,), (1,), 0)
    assert numbers(senders(one, scalar)) == [1]
