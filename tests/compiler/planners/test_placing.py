"""Grids: every element once, blocks even, no tile idle that could work."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloipu_compiler.planners.placing import Placement, followed, gathered, mapping_of
from hloipu_runtime.codelets.core.codelet import ALL, Index, Indexing
from hloipu_runtime.program.mapping import Mapping, Span, Tiles, whole


def owners(mapping: Mapping, shape: tuple[int, ...]) -> list[int]:
    """Count, for each dimension's element, the coordinates that hold it."""
    counts = []
    for span, size in zip(mapping.spans, shape, strict=True):
        held = [0] * size
        coordinates = 1 if span.axis < 0 else mapping.tiles.extents[span.axis]
        for c in range(coordinates):
            start = c * span.step + span.offset
            for i in range(max(start, 0), min(start + span.size, size)):
                held[i] += 1
        counts += held
    return counts


@given(
    st.lists(st.integers(1, 40), max_size=4).map(tuple),
    st.sampled_from([1, 3, 4, 7, 64, 1472]),
    st.sampled_from([8, 16, 32, 64]),
)
def test_each_element_lies_on_one_tile(shape: tuple[int, ...], tiles: int, bits: int) -> None:
    mapping = mapping_of(shape, bits, tiles)
    assert mapping.tiles.count <= tiles
    assert mapping.tiles.last < tiles
    assert all(extent > 1 for extent in mapping.tiles.extents)
    assert set(owners(mapping, shape)) <= {1}


def test_few_bytes_stay_on_one_tile() -> None:
    assert mapping_of((31,), 32, 1472).tiles == Tiles()


@pytest.mark.parametrize(
    ("shape", "least"), [((768, 3072), 1400), ((32, 784), 700), ((1000, 1000), 1300)]
)
def test_no_large_share_of_tiles_is_idle(shape: tuple[int, ...], least: int) -> None:
    mapping = mapping_of(shape, 32, 1472)
    assert mapping.tiles.count >= least
    assert prod(mapping.block) <= 1.25 * prod(shape) / least


def indexing(operand: tuple[Index, ...], result: tuple[Index, ...], *sizes: int) -> Indexing:
    return Indexing(sizes, (operand,), (result,))


def test_an_operand_that_lies_well_is_followed() -> None:
    mapping = Mapping(Tiles((4,), (1,), 2), (Span(0, 3, 0, 3), whole(5)))
    placement = followed(indexing((Index(0), ALL), (Index(0),), 10), (Index(0), ALL), mapping)
    assert placement is not None
    assert placement.tiles == mapping.tiles
    assert dict(placement.labels) == {0: Span(0, 3, 0, 3)}


def test_pieces_of_a_reduced_dimension_are_followed() -> None:
    """Index 0 counts pieces of three elements: piece p is the part that tile p has."""
    piece = Index(0, 3, 0, 3)
    mapping = Mapping(Tiles((4,), (1,)), (Span(0, 3, 0, 3),))
    placement = followed(indexing((piece,), (Index(0),), 4), (piece,), mapping)
    assert placement is not None
    assert dict(placement.labels) == {0: Span(0, 1, 0, 1)}


def test_an_operand_that_has_too_few_elements_is_not_followed() -> None:
    """Eight elements under nine windows: the ninth would be nobody's."""
    mapping = Mapping(Tiles((4,), (1,)), (Span(0, 2, 0, 2),))
    assert followed(indexing((Index(0),), (Index(0),), 9), (Index(0),), mapping) is None


@pytest.mark.parametrize(
    "mapping",
    [
        Mapping(Tiles((4, 2), (2, 1)), (Span(0, 3, 0, 3),)),
        Mapping(Tiles((4,), (1,)), (Span(0, 2, -1, 4),)),
    ],
    ids=["replicated", "overlapping"],
)
def test_copies_and_halos_are_not_followed(mapping: Mapping) -> None:
    assert followed(indexing((Index(0),), (Index(0),), 10), (Index(0),), mapping) is None


@pytest.mark.parametrize("strides", [(1,), (2,)])
def test_pieces_are_combined_on_the_tiles_that_have_them(strides: tuple[int, ...]) -> None:
    tiles = Tiles((2,), strides, 0)
    pieces = Mapping(tiles, (Span(0, 1, 0, 1), whole(2), whole(1)))
    assert gathered(pieces, (2, 1)) == Placement(tiles, ((0, Span(0, 1, 0, 1)),))


def test_pieces_of_one_element_are_not_shared_out() -> None:
    pieces = Mapping(Tiles((2,), (1,), 0), (Span(0, 1, 0, 1), whole(1), whole(1)))
    assert gathered(pieces, (1, 1)) is None


def test_rows_stay_whole_where_their_pieces_would_leave_no_less() -> None:
    """64 columns in pieces of 4 for 11 tiles leave 8 of 8 rows each, or whole ones of one row."""
    assert mapping_of((8, 128, 3, 16, 64), 16, 1472).block == (1, 16, 3, 1, 64)


def test_sums_keep_the_columns_of_their_pieces() -> None:
    """Columns in 13 blocks of 80 are not in 13 blocks of 79, which begin within others."""
    tiles = Tiles((8, 14, 13), (182, 13, 1))
    spans = (Span(0, 1, 0, 1), Span(1, 293, 0, 293), Span(2, 80, 0, 80))
    place = gathered(Mapping(tiles, spans), (4096, 1024))
    assert place is not None
    assert [span.size for _, span in place.labels] == [37, 80]
