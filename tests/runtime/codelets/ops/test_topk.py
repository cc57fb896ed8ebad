"""Top-k: the law, pieces and merges against sorting, and cycles worked out by hand."""

import numpy as np
import pytest

from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.codelets.core.tensors import Array, Tensor
from hloipu_runtime.codelets.ops.topk import NO_PLACE, TopK, TopKMerge, TopKPieces
from hloipu_runtime.machine.load import load_machine
from tests.support.codelet_law import Given, check_every_split, run_whole

RNG = np.random.default_rng(6)


def _pair(element_type: str, *shape: int) -> list[Tensor]:
    return [Tensor(element_type, shape), Tensor("s32", shape)]


def _best(x: Array, k: int, *, largest: bool = True) -> tuple[Array, Array]:
    order = np.argsort(-x if largest else x, axis=-1, kind="stable")[..., :k]
    return np.take_along_axis(x, order, -1), order


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("k", [1, 3, 12])
def test_split_rows_are_parts_of_the_whole(k: int, largest: bool) -> None:
    x = Given("s32", RNG.integers(-20, 20, (3, 4, 12)).astype(np.int32))
    made = check_every_split(TopK(k, largest), [x], _pair("s32", 3, 4, k))
    for array, expected in zip(made, _best(x.array, k, largest=largest), strict=True):
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize(
    ("length", "block", "k", "fan"),
    [(40, 8, 3, 2), (41, 8, 3, 5), (43, 5, 5, 3), (30, 4, 7, 2), (7, 7, 2, 1), (20, 6, 20, 4)],
)
@pytest.mark.parametrize("element_type", ["f32", "s64", "u8", "bf16"])
@pytest.mark.parametrize("largest", [True, False])
def test_pieces_merge_to_the_whole(
    length: int, block: int, k: int, fan: int, element_type: str, largest: bool
) -> None:
    kinds = {"f32": np.float32, "bf16": np.float32, "s64": np.int64, "u8": np.uint8}
    values = RNG.integers(0, 9, (2, length)).astype(kinds[element_type])
    pieces = -(-length // block)
    x = Given(element_type, values)
    at_once: Codelet = TopKPieces(k, block, largest)
    made = check_every_split(at_once, [x], _pair(element_type, 2, pieces, k))
    while pieces > 1:
        pieces = -(-pieces // fan) if fan > 1 else 1
        candidates = [Given(element_type, made[0]), Given("s32", made[1])]
        merge = TopKMerge(k, max(fan, 2) if pieces > 1 else made[0].shape[1], largest)
        made = check_every_split(merge, candidates, _pair(element_type, 2, pieces, k))
        joined = at_once.combined_with(merge, [])
        assert joined is not None
        at_once = joined[0]
        for whole, merged in zip(run_whole(at_once, [x], _pair(element_type, 2, pieces, k)), made,
                                 strict=True):  # fmt: skip
            np.testing.assert_array_equal(whole, merged)
    order = np.argsort(-values.astype(int) if largest else values, axis=-1, kind="stable")[:, :k]
    np.testing.assert_array_equal(made[1][:, 0], order)
    np.testing.assert_array_equal(made[0][:, 0], np.take_along_axis(values, order, -1))


def test_filling_loses_against_the_worst_value() -> None:
    x = Given("f32", np.array([[3, 1, 2, -np.nan]], np.float32))
    values, places = run_whole(TopKPieces(3, 3), [x], _pair("f32", 1, 2, 3))
    np.testing.assert_array_equal(places, [[[0, 2, 1], [3, NO_PLACE, NO_PLACE]]])
    candidates = [Given("f32", values), Given("s32", places)]
    best, at = run_whole(TopKMerge(4, 2), candidates, _pair("f32", 1, 1, 4))
    np.testing.assert_array_equal(at, [[[0, 2, 1, 3]]])
    np.testing.assert_array_equal(best, [[[3, 2, 1, np.nan]]])


def _cycles(codelet: TopK, rows: int, length: int, machine: str) -> tuple[int, int]:
    work = codelet.work(
        load_machine(machine), [Tensor("f32", (rows, length))], _pair("f32", rows, codelet.k)
    )
    return work.cycles, work.assumed_cycles


def test_cycles_by_hand() -> None:
    # k = 1: 35 + 8, then 13 for each of the other 9, then 10: dearer than to look at each for 3.
    assert _cycles(TopK(1), 6, 10, "tiny") == (6 * (43 + 13 + 10 * 3 + 13 + 3),) * 2
    # k = 2 of 3: 13 and 20 ln 1 for the second, 13 + 20 ln 2 for the third, then 20 + 20 ln 2.
    slots = 35 + 16 + round(13 + 13 + 20 + 40 * np.log(2))
    assert _cycles(TopK(2), 1, 3, "unit") == (slots, 0)
    # Eight groups of 8, looked at once; then of their bests the best, and its group's next one.
    groups, looked, best, following = 8 * 13, 64 * 3, 8 * 3 + 13, 2 * 8 * 3 + 13
    slots = 35 + groups + looked + 3 * (best + 8) + 2 * following
    assert _cycles(TopK(3), 6, 64, "tiny") == (6 * slots, 6 * slots)
    # One row: six workers take 100 elements each, and one of them merges their bests; assumed.
    team = 19 + 6 * (43 + 13 + 100 * 3 + 13 + 3) + 6 * (35 + 10 + 6 * 5)
    assert _cycles(TopK(1), 1, 600, "tiny") == (team, team)


def test_merging_what_is_sorted_by_hand() -> None:
    """16 results, each the best of 4 pieces' first: taken in 10 slots, compared in 5 each."""
    given = [Tensor("f32", (1, 4, 16)), Tensor("s32", (1, 4, 16))]
    work = TopKMerge(16, 4).work(load_machine("tiny"), given, _pair("f32", 1, 1, 16))
    assert (work.cycles, work.assumed_cycles) == (6 * (35 + 16 * 30), 6 * (35 + 16 * 30))
    # One result of one piece: the heap has it at once.
    given = [Tensor("f32", (1, 1, 1)), Tensor("s32", (1, 1, 1))]
    assert TopKMerge(1, 1).work(load_machine("tiny"), given, _pair("f32", 1, 1, 1)).cycles > 0


def test_nothing_costs_nothing() -> None:
    assert _cycles(TopK(1), 0, 10, "tiny") == (0, 0)
    assert _cycles(TopK(0), 3, 10, "tiny") == (0, 0)
    pieces = TopKPieces(2, 4)
    work = pieces.work(load_machine("tiny"), [Tensor("f32", (0,))], _pair("f32", 0, 2))
    assert work.cycles == 0


def test_cycles_grow_with_the_part() -> None:
    lengths = [_cycles(TopK(4), 3, n, "tiny")[0] for n in range(1, 300)]
    rows = [_cycles(TopK(4), r, 50, "tiny")[0] for r in range(40)]
    assert lengths == sorted(lengths)
    assert rows == sorted(rows)
