"""Mappings carried through reshapes and transposes: every tile keeps exactly what it has."""

import random
from math import prod

import numpy as np
import pytest

from hloipu_compiler.planners.layout_propagation import (
    made_whole,
    reshaped,
    transposed,
    untransposed,
)
from hloipu_compiler.planners.placing import row_major
from hloipu_runtime.program.mapping import Mapping, Sizes, Span, Tiles, whole


def parts(mapping: Mapping, shape: Sizes) -> dict[int, list[list[int]]]:
    """Return, by tile, the elements that it holds in the order in which they lie there."""
    elements = np.arange(prod(shape)).reshape(shape)
    found: dict[int, list[list[int]]] = {}
    for place in np.ndindex(*mapping.tiles.extents):
        tile = mapping.tiles.first + sum(
            a * b for a, b in zip(place, mapping.tiles.strides, strict=True)
        )
        box = tuple(
            slice(place[s.axis] * s.step, place[s.axis] * s.step + s.size)
            if s.axis >= 0
            else slice(None)
            for s in mapping.spans
        )
        held = elements[box].ravel().tolist()
        if held:
            found.setdefault(tile, []).append(held)
    return found


def drawn(random_: random.Random) -> tuple[Mapping, Sizes, Sizes]:
    """Return a mapping, its shape, and another shape of as many elements."""
    shape = tuple(random_.choice([1, 2, 2, 3, 4, 5, 6]) for _ in range(random_.randint(1, 4)))
    new: list[int] = []
    left = prod(shape)
    while left > 1 and len(new) < 3:
        new.append(random_.choice([k for k in range(1, left + 1) if left % k == 0]))
        left //= new[-1]
    extents: list[int] = []
    spans = [whole(size) for size in shape]
    for d in random_.sample(range(len(shape)), len(shape)):
        if shape[d] > 1 and random_.random() < 0.6:
            block = random_.randint(1, shape[d] - 1)
            spans[d] = Span(len(extents), block, 0, block)
            extents.append(-(-shape[d] // block))
    if random_.random() < 0.2:
        extents.append(2)
    return Mapping(row_major(extents, 3), tuple(spans)), shape, (*new, left)


@pytest.mark.parametrize("seed", range(4))
def test_a_reshaped_value_stays_where_it_is(seed: int) -> None:
    random_ = random.Random(seed)
    carried = 0
    for _ in range(500):
        mapping, shape, new = drawn(random_)
        found = reshaped(mapping, shape, new)
        if found is not None:
            carried += 1
            assert parts(found, new) == parts(mapping, shape)
    assert carried > 150


@pytest.mark.parametrize(
    ("extents", "blocks", "shape", "new"),
    [
        ((4,), (2, 0), (8, 6), (48,)),
        ((8, 3), (1, 2), (8, 6), (48,)),
        ((24,), (2,), (48,), (8, 6)),
        ((4,), (2, 0), (8, 6), (8, 1, 6)),
        ((6,), (0, 1), (8, 6), (8, 2, 3)),
    ],
)
def test_these_need_no_exchange(extents: Sizes, blocks: Sizes, shape: Sizes, new: Sizes) -> None:
    """Rows merged, split and given dimensions of one element, on one tile a block."""
    axes = iter(range(len(extents)))
    spans = tuple(
        Span(next(axes), block, 0, block) if block else whole(size)
        for block, size in zip(blocks, shape, strict=True)
    )
    mapping = Mapping(row_major(extents, 0), spans)
    found = reshaped(mapping, shape, new)
    assert found is not None
    assert parts(found, new) == parts(mapping, shape)


def test_columns_of_merged_rows_are_no_run() -> None:
    mapping = Mapping(row_major((3,), 0), (whole(8), Span(0, 2, 0, 2)))
    assert reshaped(mapping, (8, 6), (48,)) is None


def test_what_has_no_elements_stays_nowhere() -> None:
    halves = Mapping(row_major((2,), 0), (Span(0, 2, 0, 2), whole(0)))
    assert reshaped(halves, (4, 0), (0, 4)) is None


def test_transposing_forth_and_back() -> None:
    mapping = Mapping(row_major((4, 3), 5), (Span(0, 2, 0, 2), whole(5), Span(1, 1, 0, 1)))
    order = (2, 0, 1)
    there = transposed(mapping, order)
    assert there.spans == (mapping.spans[2], mapping.spans[0], mapping.spans[1])
    assert untransposed(there, order) == mapping


def test_a_dimension_made_whole_leaves_the_others_on_fewer_tiles() -> None:
    mapping = Mapping(row_major((4, 3), 5), (Span(0, 2, 0, 2), Span(1, 1, 0, 1)))
    found = made_whole(mapping, (8, 3), (0,))
    assert found == Mapping(Tiles((3,), (1,), 5), (whole(8), Span(0, 1, 0, 1)))
