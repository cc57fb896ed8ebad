"""Tile memories: what each tile holds, against parts cut out one by one."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloipu_runtime.program.mapping import Mapping, Span, Tiles, whole
from hloipu_runtime.program.program import Variable
from hloipu_runtime.simulate.exact.storage import POISON_BYTE, TileStorage, allocate, scatter_whole

OVERLAPPING = Mapping(Tiles((3,), (1,)), (Span(0, 4, -1, 6), whole(5)))
MAPPINGS = [
    Mapping(Tiles(), (whole(10), whole(5))),
    Mapping(Tiles((3,), (1,)), (Span(0, 4, 0, 4), whole(5))),
    Mapping(Tiles((2, 3), (3, 1)), (Span(1, 4, 0, 4), Span(0, 3, 0, 3))),
    Mapping(Tiles((2, 3, 4), (12, 4, 1)), (Span(2, 3, 0, 3), whole(5))),
    OVERLAPPING,
    Mapping(Tiles((2, 3), (3, 1)), (Span(1, 3, 0, 5), Span(0, 2, -1, 5))),
]
VALUE = np.arange(50, dtype=np.float32).reshape(10, 5)


def storage(mapping: Mapping, kind: str = "f32", *, shared: bool = False) -> TileStorage:
    return allocate(Variable("x", kind, (10, 5), mapping), shared=shared)


def ranges(mapping: Mapping, coordinate: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """Return for each dimension where the part starts, and which elements of it there are."""
    found = []
    for span, size in zip(mapping.spans, (10, 5), strict=True):
        start = span.offset + (coordinate[span.axis] * span.step if span.axis >= 0 else 0)
        found.append((start, max(start, 0), min(start + span.size, size)))
    return found


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("shared", [False, True])
def test_each_tile_holds_its_part_and_the_whole_comes_back(mapping: Mapping, shared: bool) -> None:
    memory = storage(mapping, shared=shared)
    memory.poison()
    scatter_whole(memory, VALUE)

    assert memory.tiles.shape == mapping.storage_shape
    for coordinate in product(*map(range, mapping.tiles.extents)):
        (a, low_a, high_a), (b, low_b, high_b) = ranges(mapping, coordinate)
        part = memory.tiles[coordinate]
        np.testing.assert_array_equal(
            part[low_a - a : high_a - a, low_b - b : high_b - b],
            VALUE[low_a:high_a, low_b:high_b],
        )
    np.testing.assert_array_equal(memory.whole(), VALUE)


def test_tiles_of_their_own_do_not_share_what_they_hold() -> None:
    mapping = MAPPINGS[3]
    own, shared = storage(mapping), storage(mapping, shared=True)
    assert own.tiles.nbytes == own.merged.nbytes == 24 * 3 * 5 * 4
    assert shared.merged.nbytes == 4 * 3 * 5 * 4
    assert not shared.tiles.flags.writeable

    scatter_whole(own, VALUE)
    own.tiles[1, 2, 0, 0, 0] = -1
    assert own.tiles[0, 0, 0, 0, 0] == 0
    np.testing.assert_array_equal(own.whole(), VALUE)
    own.tiles[0, 0, 0, 0, 0] = -2
    assert own.whole()[0, 0] == -2


def test_of_parts_that_overlap_the_one_that_has_an_element_first_is_read() -> None:
    memory = storage(OVERLAPPING)
    scatter_whole(memory, VALUE)
    # Tiles hold rows -1 to 4, 3 to 8 and 7 to 12: row 3 is the first of the second tile.
    memory.tiles[0, 4] = -1
    memory.tiles[1, 0] = -2
    assert memory.whole()[3].tolist() == [-2] * 5
    assert memory.whole()[2].tolist() == VALUE[2].tolist()


@pytest.mark.parametrize("kind", ["f32", "f64", "bf16", "s8", "u64", "c64", "pred"])
def test_poison_is_unlike_what_programs_compute(kind: str) -> None:
    memory = storage(MAPPINGS[1], kind)
    memory.poison()
    array = memory.whole()

    if kind == "pred":
        assert array.all()
    elif array.dtype.kind == "f":
        assert np.isnan(array).all()
    else:
        assert set(array.tobytes()) == {POISON_BYTE}


@given(
    st.tuples(st.integers(1, 4), st.integers(1, 3)),
    st.tuples(st.integers(1, 9), st.integers(1, 6)),
    st.permutations([0, 1]),
)
def test_any_split_into_blocks_brings_back_the_whole(
    parts: tuple[int, int], shape: tuple[int, int], axes: list[int]
) -> None:
    spans: list[Span] = []
    extents: list[int] = [parts[axes[0]], parts[axes[1]]]
    for d in range(2):
        block = -(-shape[d] // parts[d])
        spans.append(Span(axes.index(d), block, 0, block))
    mapping = Mapping(Tiles((extents[0], extents[1]), (extents[1], 1)), tuple(spans))
    memory = allocate(Variable("x", "s32", shape, mapping), shared=False)
    memory.poison()
    value = np.arange(shape[0] * shape[1], dtype=np.int32).reshape(shape)
    scatter_whole(memory, value)

    np.testing.assert_array_equal(memory.whole(), value)
