"""The law: what parts of operands are needed, against indices followed one by one."""

from itertools import product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hloipu_runtime.codelets.core.codelet import ALL, Index, Indexing
from hloipu_runtime.program.law import label_span, required_spans, span_of
from hloipu_runtime.program.mapping import Span, whole

ROWS = Span(0, 4, 0, 4)
INDICES = st.builds(Index, st.just(0), st.integers(1, 3), st.integers(-3, 3), st.integers(1, 4))
PARTS = st.builds(Span, st.just(0), st.integers(1, 5), st.integers(0, 3), st.integers(1, 5))


@given(INDICES, PARTS)
def test_the_part_of_a_dimension_has_the_windows_of_all_its_indices(
    index: Index, part: Span
) -> None:
    span = span_of(index, {0: part}, 1000)

    for k in range(3):
        first = part.offset + k * part.step
        touched = {
            i * index.stride + index.offset + w
            for i in range(first, first + part.size)
            for w in range(index.window)
        }
        start = span.offset + k * span.step
        assert (min(touched), max(touched) + 1) == (start, start + span.size)


@given(INDICES, PARTS)
def test_a_label_is_found_again_from_its_dimension(index: Index, part: Span) -> None:
    assert label_span(index, span_of(index, {0: part}, 1000)) == part


@given(INDICES, PARTS)
def test_a_label_is_only_found_where_the_part_is_made_of_windows(index: Index, part: Span) -> None:
    found = label_span(index, part)
    if found is not None:
        assert span_of(index, {0: found}, 1000) == part
        assert found.size > 0


def test_a_dimension_without_a_label_is_needed_whole() -> None:
    assert span_of(ALL, {0: ROWS}, 7) == whole(7)
    assert span_of(Index(3), {0: ROWS}, 7) == whole(7)


def test_a_matrix_product_needs_rows_of_one_side_and_columns_of_the_other() -> None:
    dot = Indexing((8, 6), ((Index(0), ALL), (ALL, Index(1))), ((Index(0), Index(1)),))
    columns = Span(1, 3, 0, 3)

    needed = required_spans(dot, [(ROWS, columns)], [(8, 6)], [(8, 5), (5, 6)])

    assert needed == [(ROWS, whole(5)), (whole(5), columns)]


def test_a_convolution_needs_a_halo_around_its_part() -> None:
    window = Indexing((8,), ((Index(0, stride=2, offset=-1, window=3),),), ((Index(0),),))

    needed = required_spans(window, [(ROWS,)], [(8,)], [(16,)])

    # Results 4k to 4k + 3 take 2 (4k) - 1 to 2 (4k + 3) + 1.
    assert needed == [(Span(0, 8, -1, 9),)]


UNARY = Indexing((8,), ((Index(0),),), ((Index(0),),))
TWICE = Indexing((8,), ((Index(0),),), ((Index(0),), (Index(0),)))
FIXED = Indexing((), ((ALL,),), ((ALL,),))


@pytest.mark.parametrize(
    ("indexing", "results", "said"),
    [
        (UNARY, [(Span(-1, 0, 0, 7),)], "cut to 7 elements on every tile"),
        (UNARY, [(Span(-1, 0, 1, 8),)], "cut to 8 elements on every tile"),
        (FIXED, [(ROWS,)], "which this codelet cannot do"),
        (TWICE, [(ROWS,), (Span(1, 4, 0, 4),)], "split differently"),
        (TWICE, [(ROWS,), (whole(8),)], "split in one result and whole in another"),
        (TWICE, [(whole(8),), (ROWS,)], "split in one result and whole in another"),
    ],
)
def test_results_that_no_vertex_can_compute_are_told(
    indexing: Indexing, results: list[tuple[Span, ...]], said: str
) -> None:
    found = required_spans(indexing, results, [(8,)] * len(results), [(8,)])

    assert isinstance(found, str)
    assert said in found


@given(
    st.integers(2, 4), st.integers(1, 4), st.integers(1, 3), st.integers(-2, 2), st.integers(1, 3)
)
def test_tiles_together_need_what_the_whole_needs(
    parts: int, block: int, stride: int, offset: int, window: int
) -> None:
    size = parts * block
    extent = (size - 1) * stride + offset + window
    assume(extent > 0)
    indexing = Indexing((size,), ((Index(0, stride, offset, window),),), ((Index(0),),))
    needed = required_spans(indexing, [(Span(0, block, 0, block),)], [(size,)], [(extent,)])
    assert not isinstance(needed, str)
    ((span,),) = needed

    by_tiles = {
        i
        for k in range(parts)
        for i in range(span.offset + k * span.step, span.offset + k * span.step + span.size)
    }
    by_indices = {i * stride + offset + w for i, w in product(range(size), range(window))}
    assert by_indices <= by_tiles
    assert (min(by_tiles), max(by_tiles)) == (min(by_indices), max(by_indices))
