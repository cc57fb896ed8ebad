"""Mappings: closed forms against elements counted one by one."""

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hloipu_runtime.program.mapping import (
    Mapping,
    Span,
    Tiles,
    contains,
    covers,
    extent_of,
    intersect,
    volume,
    whole,
    whole_box,
)

SPANS = st.builds(
    Span, st.integers(-1, 1), st.integers(-2, 6), st.integers(-4, 5), st.integers(0, 8)
)
GRIDS = st.builds(lambda a, b: Tiles((a, b), (b, 1)), st.integers(2, 4), st.integers(2, 3))


def elements(span: Span, coordinate: tuple[int, ...], size: int) -> set[int]:
    start = span.offset + (coordinate[span.axis] * span.step if span.axis >= 0 else 0)
    return {i for i in range(start, start + span.size) if 0 <= i < size}


def test_tile_numbers_follow_strides_from_the_first() -> None:
    tiles = Tiles((3, 2), (4, 1), first=5)

    assert tiles.numbers.tolist() == [[5, 6], [9, 10], [13, 14]]
    assert tiles.count == 6
    assert tiles.last == 14


def test_a_grid_of_no_axes_is_one_tile() -> None:
    tiles = Tiles(first=7)

    assert tiles.numbers.tolist() == 7
    assert (tiles.count, tiles.last) == (1, 7)


def test_a_mapping_tells_its_block_its_copies_and_its_storage() -> None:
    tiles = Tiles((2, 3, 4), (12, 4, 1))
    mapping = Mapping(tiles, (Span(2, 5, 0, 5), whole(9), Span(0, 4, 0, 4)))

    assert mapping.block == (5, 9, 4)
    assert mapping.replicated_axes == (1,)
    assert mapping.storage_shape == (2, 3, 4, 5, 9, 4)
    assert mapping.is_partition


def test_parts_that_overlap_or_begin_elsewhere_are_no_partition() -> None:
    tiles = Tiles((3,), (1,))

    assert not Mapping(tiles, (Span(0, 4, 0, 5),)).is_partition
    assert not Mapping(tiles, (Span(0, 4, -1, 4),)).is_partition
    assert Mapping(tiles, (whole(3),)).is_partition


@given(GRIDS, SPANS, SPANS, st.integers(0, 12))
def test_a_part_said_to_contain_another_does(
    tiles: Tiles, outer: Span, inner: Span, size: int
) -> None:
    extent = max(extent_of(tiles, outer), extent_of(tiles, inner))
    places = list(product(*map(range, tiles.extents)))
    does = all(elements(inner, c, size) <= elements(outer, c, size) for c in places)

    if contains(outer, inner, extent, size):
        assert does
    elif inner.axis < 0 or outer.axis < 0 or inner.axis == outer.axis:
        assert not does


def elements_anywhere(span: Span, places: list[tuple[int, ...]], size: int) -> set[int]:
    return set().union(*(elements(span, c, size) for c in places))


@given(GRIDS, SPANS, st.integers(1, 12))
def test_parts_cover_a_dimension_only_if_every_element_is_in_one(
    tiles: Tiles, span: Span, size: int
) -> None:
    places = list(product(*map(range, tiles.extents)))
    if covers(tiles, span, size):
        assert elements_anywhere(span, places, size) == set(range(size))


@given(st.integers(2, 6), st.integers(1, 40))
def test_equal_blocks_cover_what_they_were_cut_from(parts: int, size: int) -> None:
    block = -(-size // parts)
    tiles = Tiles((parts,), (1,))

    assert covers(tiles, Span(0, block, 0, block), size)
    assert not covers(tiles, Span(0, block, 1, block), size)
    assert not covers(tiles, Span(0, block, 0, block), parts * block + 1)


def test_a_gap_between_parts_is_not_covered() -> None:
    assert not covers(Tiles((3,), (1,)), Span(0, 4, 0, 3), 11)
    assert covers(Tiles((3,), (1,)), Span(0, 4, -1, 6), 12)


BOXES = st.tuples(*[st.tuples(st.integers(0, 5), st.integers(0, 5))] * 2)


@given(BOXES, BOXES)
def test_boxes_share_what_both_have(
    a: tuple[tuple[int, int], ...], b: tuple[tuple[int, int], ...]
) -> None:
    def cells(box: tuple[tuple[int, int], ...]) -> set[tuple[int, ...]]:
        return set(product(*(range(low, high) for low, high in box)))

    shared = intersect(a, b)

    assert cells(shared) == cells(a) & cells(b)
    assert volume(shared) == len(cells(a) & cells(b))
    assert all(low <= high for low, high in shared)


def test_the_whole_box_has_all_elements() -> None:
    assert whole_box((3, 0, 2)) == ((0, 3), (0, 0), (0, 2))
    assert volume(whole_box((3, 5))) == np.zeros((3, 5)).size
    assert volume(whole_box(())) == 1
