"""Size classes: together they are all tiles, and each has parts of one size."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from hloipu_runtime.program.mapping import Span, Tiles, whole
from hloipu_runtime.simulate.exact.classes import size_classes

SPANS = st.builds(
    Span, st.integers(-1, 1), st.integers(0, 5), st.integers(-4, 4), st.integers(0, 6)
)


@given(
    st.tuples(st.integers(2, 7), st.integers(2, 5)),
    st.lists(st.tuples(SPANS, SPANS), min_size=1, max_size=3),
    st.tuples(st.integers(0, 12), st.integers(1, 9)),
)
def test_every_tile_is_in_one_class_with_parts_as_large_as_its_own(
    extents: tuple[int, int], operands: list[tuple[Span, Span]], shape: tuple[int, int]
) -> None:
    tiles = Tiles(extents, (extents[1], 1))
    seen: set[tuple[int, ...]] = set()
    for grid, parts in size_classes(tiles, operands, [shape] * len(operands)):
        for place in product(*(range(low, high) for low, high in grid)):
            assert place not in seen
            seen.add(place)
            for spans, part in zip(operands, parts, strict=True):
                for span, size, length, cut in zip(spans, shape, *part, strict=True):
                    start = span.offset + (place[span.axis] * span.step if span.axis >= 0 else 0)
                    held = [i for i in range(start, start + span.size) if 0 <= i < size]
                    assert length == len(held)
                    if held:
                        assert start + cut == held[0]
    assert seen == set(product(*map(range, extents)))


def test_blocks_with_a_short_last_one_make_two_classes() -> None:
    classes = size_classes(Tiles((4,), (1,)), [(Span(0, 3, 0, 3),)], [(11,)])

    assert [(c.grid, c.parts[0].sizes) for c in classes] == [(((0, 3),), (3,)), (((3, 4),), (2,))]


def test_a_halo_makes_classes_of_the_ends() -> None:
    halo, block = (Span(0, 4, -1, 6),), (Span(0, 4, 0, 4),)
    classes = size_classes(Tiles((5,), (1,)), [halo, block], [(20,), (20,)])

    found = [(c.grid[0], c.parts[0].sizes[0], c.parts[0].cut[0]) for c in classes]
    assert found == [((0, 1), 5, 1), ((1, 4), 6, 0), ((4, 5), 5, 0)]


def test_tiles_of_equal_parts_are_one_class_however_many_they_are() -> None:
    spans = (Span(0, 1, 0, 1), whole(7))
    assert len(size_classes(Tiles((1472,), (1,)), [spans], [(1472, 7)])) == 1
