"""Gathers and their candidates: the law, values element by element, cycles by hand."""

from math import prod

import numpy as np
import pytest

from hloipu_runtime.codelets.core.codelet import ALL, Index
from hloipu_runtime.codelets.core.tensors import Block, Tensor
from hloipu_runtime.codelets.indexed import gather
from hloipu_runtime.codelets.indexed.gather import Gather, GatherCandidates
from hloipu_runtime.codelets.indexed.or_bits import OrBits
from hloipu_runtime.kernels.gather import GatherDimensions
from hloipu_runtime.machine.load import load_machine
from tests.support.arrays import Array
from tests.support.codelet_law import Given, check_every_split, check_law, run_whole

TINY = load_machine("tiny")
ROWS = GatherDimensions((1,), (0,), (0,), 1)

CASES = [
    # table, slice sizes, shape of indices, dimension numbers
    ((9, 4), (1, 4), (5, 1), ROWS),
    ((9, 4), (1, 4), (5, 3), GatherDimensions((2,), (0,), (0,), 2)),
    ((9, 4), (3, 2), (5, 2), GatherDimensions((0, 2), (), (0, 1), 1)),
    ((9, 4), (2, 3), (2, 5), GatherDimensions((1, 2), (), (1, 0), 0)),
    ((6, 5, 4), (2, 1, 4), (3, 2, 2), GatherDimensions((2, 3), (1,), (0, 1), 2)),
    ((3, 7, 4), (1, 1, 2), (3, 5, 1), GatherDimensions((2,), (0, 1), (1,), 2, (0,), (0,))),
    ((7, 3, 4), (2, 1, 4), (5, 3, 1), GatherDimensions((1, 3), (1,), (0,), 2, (1,), (1,))),
    ((7, 4), (7, 2), (3, 0), GatherDimensions((1, 2), (), (), 1)),
    ((7, 4), (1, 1), (2,), GatherDimensions((), (0, 1), (0, 1), 0)),
]  # fmt: skip


def counted(*shape: int) -> Given:
    return Given("f32", np.arange(1, prod(shape) + 1, dtype=np.float32).reshape(shape))


def numbers(shape: tuple[int, ...], low: int = -3, high: int = 12) -> Given:
    generator = np.random.default_rng(7)
    return Given("s32", generator.integers(low, high, shape, dtype=np.int32))


def reference(
    table: Array, indices: Array, dims: GatherDimensions, slice_sizes: tuple[int, ...]
) -> Array:
    """Gather element by element, as openxla.org's operation semantics say it."""
    vector = dims.index_vector_dim
    if vector == indices.ndim:
        indices = indices[..., np.newaxis]
    batch = [n for d, n in enumerate(indices.shape) if d != vector]
    dropped = {*dims.collapsed_slice_dims, *dims.operand_batching_dims}
    kept = [d for d in range(table.ndim) if d not in dropped]
    rank = len(batch) + len(kept)
    batch_places = [d for d in range(rank) if d not in dims.offset_dims]
    shape = [0] * rank
    for place, size in zip(batch_places, batch, strict=True):
        shape[place] = size
    for place, d in zip(dims.offset_dims, kept, strict=True):
        shape[place] = slice_sizes[d]
    out = np.empty(shape, table.dtype)
    for at in np.ndindex(*shape):
        number = [at[place] for place in batch_places]
        full = list(number)
        full.insert(vector, 0)
        start = [0] * table.ndim
        for k, d in enumerate(dims.start_index_map):
            full[vector] = k
            start[d] = min(max(int(indices[tuple(full)]), 0), table.shape[d] - slice_sizes[d])
        for d, b in zip(dims.operand_batching_dims, dims.start_indices_batching_dims, strict=True):
            start[d] = number[b - (b > vector)]
        for place, d in zip(dims.offset_dims, kept, strict=True):
            start[d] += at[place]
        out[at] = table[tuple(start)]
    return out


@pytest.mark.parametrize(("table", "slices", "indices", "dims"), CASES)
def test_a_gather_splits_its_result(
    table: tuple[int, ...],
    slices: tuple[int, ...],
    indices: tuple[int, ...],
    dims: GatherDimensions,
) -> None:
    given, places = counted(*table), numbers(indices)
    expected = reference(given.array, places.array, dims, slices)
    (made,) = check_every_split(
        Gather(dims, slices), [given, places], [Tensor("f32", expected.shape)]
    )
    np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize("block", [1, 2, 4, 20])
@pytest.mark.parametrize(("table", "slices", "indices", "dims"), CASES)
def test_candidates_split_the_table(
    table: tuple[int, ...],
    slices: tuple[int, ...],
    indices: tuple[int, ...],
    dims: GatherDimensions,
    block: int,
) -> None:
    given, places = counted(*table), numbers(indices)
    expected = reference(given.array, places.array, dims, slices)
    for dimension in {*dims.start_index_map, 0} - {*dims.operand_batching_dims}:
        parts = -(-table[dimension] // block)
        codelet = GatherCandidates(dims, slices, dimension, block)
        result = Tensor("f32", (parts, *expected.shape))
        (made,) = check_every_split(codelet, [given, places], [result])
        np.testing.assert_array_equal(made.sum(axis=0), expected)
        assert np.all((made != 0).sum(axis=0) == 1)
        check_law(codelet, [given, places], [result], {0: min(2, parts), 1: 2})


def test_a_candidate_is_what_lies_in_its_range() -> None:
    codelet = GatherCandidates(ROWS, (1, 2), 0, 3)
    table = counted(7, 2)
    places = Given("u8", np.array([[6], [2], [3]], np.uint8))
    (made,) = run_whole(codelet, [table, places], [Tensor("f32", (3, 3, 2))])
    rows = {(0, 1): [5, 6], (1, 2): [7, 8], (2, 0): [13, 14]}
    for at in np.ndindex(3, 3):
        assert made[at].tolist() == rows.get(at, [0, 0])


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("starts", [[6, -1, 3, 9, 3], [0, 0, 0, 1, 1]])
def test_candidates_of_tiles_in_a_box_are_taken_at_once(
    monkeypatch: pytest.MonkeyPatch, first: int, starts: list[int]
) -> None:
    """Ranges of 2 rows from `first` on along one grid axis, halves of the columns along another."""
    monkeypatch.setattr(gather, "candidates", None)
    table, ranges = counted(8, 6).array, np.arange(first, 4)[:, np.newaxis]
    count, halves = len(ranges), np.arange(2)[np.newaxis] * 3
    rows = table[2 * first :].reshape(count, 2, 2, 3).transpose(0, 2, 1, 3)
    places = np.broadcast_to(np.array(starts, np.int32)[:, np.newaxis], (count, 2, 5, 1))
    memory = np.full((count, 5, 6), np.nan, np.float32)
    parts = memory.reshape(count, 1, 5, 2, 3).transpose(0, 3, 1, 2, 4)
    grid = (count, 2)
    operands = [
        Block(rows, grid, (2, 3), (2 * ranges, halves), (8, 6)),
        Block(places, grid, (5, 1), (0, 0), (5, 1)),
    ]
    results = [Block(parts, grid, (1, 5, 3), (ranges, 0, halves), (4, 5, 6))]
    bound = GatherCandidates(ROWS, (1, 6), 0, 2).bound(operands, results)
    bound([rows, places], [parts])
    expected = np.zeros((4, 5, 6), np.float32)
    for number, start in enumerate(starts):
        row = min(max(start, 0), 7)
        expected[row // 2, number] = table[row]
    np.testing.assert_array_equal(memory, expected[first:])


def test_candidates_with_their_combination_are_a_gather() -> None:
    codelet = GatherCandidates(ROWS, (1, 2), 0, 3)
    assert codelet.combined_with(OrBits(), []) == (Gather(ROWS, (1, 2)), 0)
    assert codelet.combined_with(codelet, []) is None


def test_the_table_follows_whole_slices_and_batches() -> None:
    dims = GatherDimensions((1, 3), (1,), (0,), 2, (1,), (1,))
    operands = [Tensor("f32", (7, 3, 4)), Tensor("s32", (5, 3, 1))]
    indexing = Gather(dims, (2, 1, 4)).indexing(operands, [Tensor("f32", (5, 2, 3, 4))])
    assert indexing.operands == ((ALL, Index(2), Index(3)), (Index(0), Index(2), ALL))
    codelet = GatherCandidates(dims, (2, 1, 4), 0, 3)
    indexing = codelet.indexing(operands, [Tensor("f32", (3, 5, 2, 3, 4))])
    assert indexing.operands == (
        (Index(0, 3, 0, 3), Index(3), Index(4)),
        (Index(1), Index(3), ALL),
    )
    assert indexing.results == (tuple(Index(d) for d in range(5)),)


@pytest.mark.parametrize(
    ("name", "cycles"),
    [
        # 13 slices of 8 elements on 6 workers: 3 each
        ("f32", 6 * (30 + 3 * (19 + 2 * 4))),
        ("f16", 6 * (30 + 3 * (19 + 2 * 4))),
        ("f8e5m2", 6 * (30 + 3 * (19 + 3 * 2))),
        ("f64", 6 * (30 + 3 * (19 + 2 * 8))),
        ("s4", 6 * (30 + 3 * (19 + 3 * 2 + 2 * 4 * 8))),
    ],
)
def test_a_gather_costs_its_slices(name: str, cycles: int) -> None:
    operands = [Tensor(name, (100, 8)), Tensor("s32", (13, 1))]
    work = Gather(ROWS, (1, 8)).work(TINY, operands, [Tensor(name, (13, 8))])
    assert work.cycles == cycles
    candidates = GatherCandidates(ROWS, (1, 8), 0, 100)
    assert candidates.work(TINY, operands, [Tensor(name, (1, 13, 8))]) == work


def test_slices_are_taken_to_be_spread_evenly_over_ranges() -> None:
    """130 slices over 10 ranges, of which a tile has 2: 22 a worker, 5 of them in its ranges."""
    operands = [Tensor("f32", (20, 8)), Tensor("s32", (130, 1))]
    result = Tensor("f32", (2, 130, 8))
    work = GatherCandidates(ROWS, (1, 8), 0, 10, 10).work(TINY, operands, [result])
    slices = 6 * (30 + 5 * (19 + 2 * 4) + 17 * 8)
    # Zeros first: 2,080 words, 347 a worker, two at a time.
    assert work.cycles == slices + 6 * (23 + 174)


def test_no_slices_cost_nothing() -> None:
    operands = [Tensor("f32", (100, 8)), Tensor("s32", (0, 1))]
    assert Gather(ROWS, (1, 8)).work(TINY, operands, [Tensor("f32", (0, 8))]).cycles == 0
