"""Sort: the law, values against numpy, sorting over tiles, and cycles worked out by hand."""

import numpy as np
import pytest

from hloipu_runtime.codelets.core.expression import Expression, Node
from hloipu_runtime.codelets.core.tensors import Array, Tensor
from hloipu_runtime.codelets.ops import sort
from hloipu_runtime.codelets.ops.sort import Sort
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.kernels.sorting import Order, SortKey
from hloipu_runtime.machine.load import load_machine
from tests.support.codelet_law import Given, check_every_split, run_whole, same_values

RNG = np.random.default_rng(5)


def _floats(*shape: int) -> Given:
    values = RNG.integers(-20, 20, shape).astype(np.float32)
    values[RNG.random(shape) < 0.1] = np.nan
    values[RNG.random(shape) < 0.1] = -0.0
    return Given("f32", values)


def _tensors(operands: list[Given]) -> list[Tensor]:
    return [x.tensor for x in operands]


@pytest.mark.parametrize("dimension", [0, 1, 2])
def test_split_sorts_are_parts_of_the_whole(dimension: int) -> None:
    x = Given("s32", RNG.integers(-9, 9, (4, 5, 6)).astype(np.int32))
    y = Given("f32", RNG.standard_normal((4, 5, 6)).astype(np.float32))
    whole = check_every_split(Sort(dimension, (SortKey(0),)), [x, y], _tensors([x, y]))
    order = np.argsort(x.array, axis=dimension, kind="stable")
    for made, given in zip(whole, [x, y], strict=True):
        np.testing.assert_array_equal(made, np.take_along_axis(given.array, order, dimension))


def test_single_operand_sorts_by_value() -> None:
    x = Given("f32", RNG.standard_normal((3, 33)).astype(np.float32))
    (down,) = check_every_split(Sort(1, (SortKey(0, descending=True),)), [x], [x.tensor])
    np.testing.assert_array_equal(down, -np.sort(-x.array, axis=1))


def test_splits_of_a_sort_by_comparator() -> None:
    # By magnitude: |a| < |b|.
    nodes = (
        Node("abs", (0,), "s32"),
        Node("abs", (1,), "s32"),
        Node("compare", (4, 5), "pred", (("direction", "LT"),)),
    )
    comparator = Expression(("s32", "s32", "f32", "f32"), nodes, (6,))
    x = Given("s32", RNG.integers(-5, 6, (3, 11)).astype(np.int32))
    y = Given("f32", np.arange(33, dtype=np.float32).reshape(3, 11))
    whole = check_every_split(Sort(1, comparator=comparator), [x, y], _tensors([x, y]))
    order = np.argsort(np.abs(x.array), axis=1, kind="stable")
    np.testing.assert_array_equal(whole[1], np.take_along_axis(y.array, order, 1))


def test_odd_rows_backwards_whatever_the_split() -> None:
    x = Given("u8", RNG.integers(0, 255, (5, 3, 7)).astype(np.uint8))
    (made,) = check_every_split(Sort(2, (SortKey(0),), alternating=0), [x], [x.tensor])
    expected = np.sort(x.array, axis=2)
    expected[1::2] = expected[1::2, :, ::-1]
    np.testing.assert_array_equal(made, expected)


def test_odd_rows_backwards_where_the_sorted_dimension_comes_first() -> None:
    x = Given("s32", RNG.integers(0, 255, (6, 3)).astype(np.int32))
    (made,) = check_every_split(Sort(0, (SortKey(0),), alternating=1), [x], [x.tensor])
    expected = np.sort(x.array, axis=0)
    expected[:, 1] = expected[::-1, 1]
    np.testing.assert_array_equal(made, expected)


def test_places_decide_last_and_filling_stands_last() -> None:
    x = Given("f32", np.array([[2, 1, 2, np.inf, -7, 2]], np.float32))
    places = Given("s32", np.array([[3, 2, 0, 1, 9, 8]], np.int32))
    sort = Sort(1, (SortKey(0),), places=1, count=9)
    values, order = run_whole(sort, [x, places], _tensors([x, places]))
    np.testing.assert_array_equal(order, [[2, 0, 3, 8, 1, 9]])
    np.testing.assert_array_equal(values[:, :5], [[1, 2, 2, 2, np.inf]])


_GREATER = Expression(
    ("f32", "f32", "s32", "s32"),
    (Node("compare", (0, 1), "pred", (("direction", "GT"), ("type", "TOTALORDER"))),),
    (4,),
)
_KEYS = {
    "one": Sort(0, (SortKey(0, order="equal_zeros"),)),
    "down": Sort(0, (SortKey(0, descending=True),)),
    "two": Sort(0, (SortKey(0, order="equal_zeros"), SortKey(1, descending=True))),
    "wide": Sort(0, (SortKey(1), SortKey(0))),
    "comparator": Sort(0, comparator=_GREATER),
}


@pytest.mark.parametrize("name", _KEYS)
@pytest.mark.parametrize(
    ("length", "parts", "block"), [(24, 4, 6), (21, 4, 6), (9, 8, 2), (64, 8, 8)]
)
def test_sorting_over_tiles_is_sorting(name: str, length: int, parts: int, block: int) -> None:
    x, y = _floats(length), Given("s32", RNG.integers(-3, 3, length).astype(np.int32))
    given = _KEYS[name]
    expected = run_whole(given, [x, y], _tensors([x, y]))
    made = _sorted_over_tiles(given, [x, y], parts, block)
    for array, whole in zip(made, expected, strict=True):
        np.testing.assert_array_equal(array, whole)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("order", ["total", "equal_zeros"])
@pytest.mark.parametrize("kind", ["pred", "u8", "s8", "u32", "s64", "u64", "f64", "f16"])
def test_sorting_one_operand_of_any_type_over_tiles(
    kind: str, order: Order, descending: bool
) -> None:
    dtype = storage_dtype(kind)
    x = Given(kind, RNG.integers(0, 100, 21).astype(dtype))
    if dtype.kind == "f":
        x.array[::5], x.array[::6] = -0.0, np.nan
    sort = Sort(0, (SortKey(0, descending, order),))
    (expected,) = run_whole(sort, [x], [x.tensor])
    (made,) = _sorted_over_tiles(sort, [x], 4, 6)
    same_values(made, expected)


def test_sorting_over_tiles_splits_every_step() -> None:
    x = _floats(2 * 13)
    y = Given("s32", np.arange(26, dtype=np.int32))
    made = _sorted_over_tiles(_KEYS["one"], [x, y], 4, 7, check=True)
    order = np.argsort(np.where(np.isnan(x.array), np.inf, x.array), kind="stable")
    np.testing.assert_array_equal(made[1], order)


def _sorted_over_tiles(
    given: Sort, operands: list[Given], parts: int, block: int, *, check: bool = False
) -> list[Array]:
    """Sort one row as the module's docstring says."""
    length, total = operands[0].array.size, parts * block
    types = [x.element_type for x in operands] + ["s32"]
    arrays = [np.concatenate([x.array, x.array[: total - length]]) for x in operands]
    arrays.append(np.arange(total, dtype=np.int32))
    run = 1
    while run <= parts:
        for dimension, shape in ((1, (parts // run, run, block)), (2, (parts // run, run, block))):
            if run == 1 and dimension == 1:
                continue
            # Of blocks, runs of one, every other one is backwards; so of longer runs.
            sort = Sort(
                dimension,
                given.keys,
                given.comparator,
                alternating=0,
                places=len(operands),
                count=length,
                rises_and_falls=run > 1,
            )
            steps = [Given(t, x.reshape(shape)) for t, x in zip(types, arrays, strict=True)]
            call = check_every_split if check else run_whole
            arrays = [x.reshape(-1) for x in call(sort, steps, _tensors(steps))]
        run *= 2
    return [x[:length] for x in arrays[:-1]]


def _cycles(sort: Sort, *tensors: Tensor, machine: str = "tiny") -> tuple[int, int]:
    work = sort.work(load_machine(machine), tensors, tensors)
    return work.cycles, work.assumed_cycles


def test_cycles_by_hand() -> None:
    x = Tensor("f32", (6, 4))
    # 3 stages of 12 pairs; a worker takes 2 of 13 slots, after 40 + 17 + 3.
    assert _cycles(Sort(1, (SortKey(0),)), x) == (3 * (19 + 6 * (60 + 2 * 13)), 0)
    assert _cycles(Sort(1, (SortKey(0),)), x, machine="unit") == (3 * (19 + 60 + 12 * 13), 0)
    # Rows that rise and fall once take 2 stages.
    merge = Sort(1, (SortKey(0),), rises_and_falls=True)
    assert _cycles(merge, x, machine="unit") == (2 * (19 + 60 + 12 * 13), 0)
    # A value goes along: 23 + 4 + 11 and 11 a pair; sorted along the other dimension, 16 pairs.
    pair = _cycles(Sort(0, (SortKey(0),)), Tensor("f32", (8, 4)), Tensor("s32", (8, 4)))
    assert pair == (6 * (19 + 6 * (38 + 3 * 11)), 0)


def test_unknown_kinds_are_assumed_and_dearer() -> None:
    keys = (SortKey(0),)
    f32 = _cycles(Sort(0, keys), Tensor("f32", (100,)))
    for element_type in ("bf16", "f64", "s64", "s4", "f8e4m3fn", "f16", "u8"):
        other = _cycles(Sort(0, keys), Tensor(element_type, (100,)))
        assert other[0] == other[1] > 0.9 * f32[0]
    three = [Tensor("f32", (100,))] * 3
    assert _cycles(Sort(0, keys), *three)[0] > _cycles(Sort(0, keys), *three[:2])[0]


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (4, 1)])
def test_nothing_to_sort_costs_nothing(shape: tuple[int, ...]) -> None:
    x = Given("f32", np.zeros(shape, np.float32))
    assert _cycles(Sort(1, (SortKey(0),)), x.tensor) == (0, 0)
    (made,) = check_every_split(Sort(1, (SortKey(0),)), [x], [x.tensor])
    assert made.shape == shape


def test_cycles_grow_with_the_part() -> None:
    sort = Sort(0, (SortKey(0),))
    costs = [_cycles(sort, Tensor("f32", (n, rows)))[0] for n in range(2, 40) for rows in (1, 7)]
    assert costs[::2] == sorted(costs[::2])
    assert costs[1::2] == sorted(costs[1::2])


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_rows_sorted_a_few_at_a_time_are_those_sorted_at_once(
    axis: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filling, rows sorted backwards, and a third operand, against numpy's sort of each row."""
    rng = np.random.default_rng(axis)
    x = rng.integers(-9, 9, (5, 6, 7)).astype(np.float32)
    places = np.indices(x.shape, np.int32)[axis]
    turns = np.take(rng.integers(0, 2, x.shape), [0], axis=axis).astype(bool)
    monkeypatch.setattr(sort, "CACHED_ELEMENTS", 16)
    given = [x, places, x + 1]
    count = x.shape[axis] - 1
    key = SortKey(0)
    found = Sort(axis, (key,), None, 0, 1, count)._sorted_packed(given, axis, [None] * 3, turns)
    for at in np.ndindex(turns.shape):
        row = (*at[:axis], slice(None), *at[axis + 1 :])
        order = np.lexsort((places[row], np.where(places[row] < count, x[row], np.inf)))
        order = order[::-1] if turns[at] else order
        values = np.where(places[row] < count, x[row], 0)
        for result, operand in zip(found, (values, places[row], x[row] + 1), strict=True):
            assert np.array_equal(result[row], operand[order])
