"""Reduce: the law, values against numpy, and cycles worked out by hand."""

import numpy as np
import pytest

from hloipu_runtime.codelets.core.expression import Expression, Node
from hloipu_runtime.codelets.core.tensors import Block, Tensor
from hloipu_runtime.codelets.ops.reduce import Reduce
from hloipu_runtime.machine.load import load_machine
from tests.support.codelet_law import Given, check_every_split, close_values, run_whole

RNG = np.random.default_rng(11)
TINY = load_machine("tiny")
GC200 = load_machine("gc200")


def _scalar(value: float, element_type: str = "f32") -> Given:
    return Given(element_type, np.asarray(value, "float32" if element_type[0] in "fb" else "int32"))


def _sum(dimensions: tuple[int, ...], element_type: str = "f32", *parts: int) -> Reduce:
    return Reduce(dimensions, "add", None, (element_type,), parts)


@pytest.mark.parametrize("dimensions", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2), ()])
def test_split_sums_are_parts_of_the_whole(dimensions: tuple[int, ...]) -> None:
    x = Given("f32", RNG.standard_normal((5, 6, 7)).astype(np.float32))
    kept = tuple(n for d, n in enumerate((5, 6, 7)) if d not in dimensions)
    whole = check_every_split(
        _sum(dimensions), [x, _scalar(3)], [Tensor("f32", kept)], same=close_values(1e-5, 1e-5)
    )
    expected = x.array.astype(np.float64).sum(axis=dimensions) + 3
    np.testing.assert_allclose(whole[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("monoid", ["minimum", "maximum", "and", "or", "xor", "multiply"])
def test_other_monoids(monoid: str) -> None:
    x = Given("s32", RNG.integers(-50, 50, (5, 6, 3)).astype(np.int32))
    reduction = Reduce((1,), monoid, None, ("s32",))
    whole = check_every_split(reduction, [x, _scalar(5, "s32")], [Tensor("s32", (5, 3))])
    ufunc = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}.get(monoid)
    ufunc = ufunc or getattr(np, monoid)
    expected = ufunc(ufunc.reduce(x.array, axis=1, dtype=np.int32), np.int32(5))
    np.testing.assert_array_equal(whole[0], expected)


@pytest.mark.parametrize("parts", [(1,), (3,), (4,), (12,), (50,), (5, 7), (50, 3)])
@pytest.mark.parametrize("dimensions", [(1,), (1, 0), (0, 2)])
def test_pieces_combine_to_the_whole(parts: tuple[int, ...], dimensions: tuple[int, ...]) -> None:
    x = Given("bf16", RNG.integers(-9, 9, (12, 12, 4)).astype(np.float32))
    kept = tuple(n for d, n in enumerate(x.array.shape) if d not in dimensions)
    parts = parts[: len(dimensions)]
    counts = [-(-x.array.shape[d] // n) for d, n in zip(dimensions, parts, strict=False)]
    along = tuple(range(len(parts)))
    pieces = Tensor("f32", (*counts, *kept))
    made = check_every_split(_sum(dimensions, "f32", *parts), [x], [pieces])
    combined = run_whole(
        _sum(along, "bf16"), [Given("f32", made[0]), _scalar(1, "bf16")], [Tensor("bf16", kept)]
    )
    exact = x.array.sum(axis=dimensions) + 1
    np.testing.assert_allclose(combined[0], exact, rtol=2**-8)
    np.testing.assert_array_equal(made[0].sum(axis=along) + 1, exact)
    whole, _ = _sum(dimensions, "f32", *parts).combined_with(_sum(along), [None]) or (None, 0)
    assert whole == _sum(tuple(sorted(dimensions)))
    if len(parts) > 1:
        assert _sum(dimensions, "f32", *parts).combined_with(_sum((0,)), [None]) is None


ARG_MAX = Expression(
    ("f32", "s32", "f32", "s32"),
    (
        Node("compare", (0, 2), "pred", (("direction", "GT"), ("type", "FLOAT"))),
        Node("select", (4, 0, 2), "f32"),
        Node("select", (4, 1, 3), "s32"),
    ),
    (5, 6),
)
"""Keeps the greater value and its place; all values differ."""


@pytest.mark.parametrize("part", [0, 4])
def test_regions_on_two_operands(part: int) -> None:
    values = RNG.permutation(70).reshape(10, 7).astype(np.float32)
    places = np.broadcast_to(np.arange(10, dtype=np.int32)[:, None], (10, 7)).copy()
    operands = [Given("f32", values), Given("s32", places)]
    starts = [_scalar(-1), _scalar(0, "s32")]
    types = ("f32", "s32")
    if part:
        results = [Tensor("f32", (3, 7)), Tensor("s32", (3, 7))]
        made = check_every_split(Reduce((0,), "", ARG_MAX, types, (part,)), operands, results)
        operands = [Given(kind, x) for kind, x in zip(types, made, strict=True)]
    results = [Tensor("f32", (7,)), Tensor("s32", (7,))]
    made = check_every_split(Reduce((0,), "", ARG_MAX, types), [*operands, *starts], results)
    np.testing.assert_array_equal(made[0], values.max(axis=0))
    np.testing.assert_array_equal(made[1], values.argmax(axis=0))


def test_a_tile_with_another_init_value_shows() -> None:
    x = np.ones((3, 2, 4), np.float32)
    init = np.asarray([0, 0, 5], np.float32)
    made = _sum((1,)).run(
        [Block(x, (3,), (2, 4), (0, 0), (6, 4)), Block(init, (3,), (), (), ())],
        [Block(None, (3,), (2,), (0,), (6,))],
    )
    np.testing.assert_array_equal(made[0], [[4, 4], [4, 4], [9, 9]])


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_empty_operands(shape: tuple[int, int]) -> None:
    x = Given("f32", np.zeros(shape, np.float32))
    made = run_whole(_sum((0,)), [x, _scalar(4)], [Tensor("f32", shape[1:])])
    np.testing.assert_array_equal(made[0], np.full(shape[1:], 4.0))
    assert run_whole(_sum((0,), "f32", 2), [x], [Tensor("f32", (-(-shape[0] // 2), shape[1]))])


def _cycles(reduction: Reduce, operand: Tensor, result: Tensor) -> int:
    return reduction.work(TINY, [operand, Tensor(result.element_type, ())], [result]).cycles


def test_strided_cycles_by_hand() -> None:
    # 10 outputs a worker in 3 vectors of 4 lanes, 20 partials each; the supervisor takes 10.
    expected = 10 + 6 * (16 + 3 * (3 + 5 + 3 + 19))
    assert _cycles(_sum((0,)), Tensor("f32", (20, 60)), Tensor("f32", (60,))) == expected


def test_contiguous_cycles_by_hand() -> None:
    # 2 outputs a worker of 32 halves each, 8 lanes.
    expected = 10 + 6 * (2 * 4 + 12 * 2 + 17)
    found = _cycles(_sum((1,), "f16"), Tensor("f16", (12, 32)), Tensor("f16", (12,)))
    assert found == expected


def test_one_output_is_shared_by_all_workers() -> None:
    alone = 10 + 6 * (1000 // 4 + 12 + 17)
    together = 10 + 6 * (-(-167 // 4) + 12 + 17) + 10 + 6 * (16 + 6 + 5 + 5)
    assert together < alone
    assert _cycles(_sum((0,)), Tensor("f32", (1000,)), Tensor("f32", ())) == together


@pytest.mark.parametrize(
    ("kind", "direction", "swapped", "slots"),
    [
        # popnn's ReduceMaxClassSparse takes 3 cycles a value and its place, 6 for integers.
        ("f32", "GT", False, 3),
        ("f16", "LE", False, 3),
        ("s32", "GE", False, 6),
        # Other regions: a load, a comparison, and two selections, on vectors of 4.
        ("f32", "GT", True, 2 + 2 + 2 + 6 + 4),
    ],
)
def test_an_extremum_with_its_place_is_found_in_one_pass(
    kind: str, direction: str, swapped: bool, slots: int
) -> None:
    nodes = (
        Node("compare", (0, 2), "pred", (("direction", direction),)),
        Node("select", (4, 0, 2), kind),
        Node("select", (4, 3, 1) if swapped else (4, 1, 3), "s32"),
    )
    region = Expression((kind, "s32", kind, "s32"), nodes, (5, 6))
    shapes = [Tensor(kind, (6, 400)), Tensor("s32", (6, 400)), Tensor(kind, ()), Tensor("s32", ())]
    results = [Tensor(kind, (6,)), Tensor("s32", (6,))]
    work = Reduce((1,), "", region, (kind, "s32")).work(TINY, shapes, results)
    assert work.cycles == 10 + 6 * (slots * 400 // (4 if swapped else 1) + 12 + 17)
    assert (work.assumed_cycles > 0) is swapped


@pytest.mark.parametrize("kind", ["f16", "f32", "f64", "s8", "c64", "u4"])
@pytest.mark.parametrize("dimensions", [(0,), (1,), (0, 2), (2,)])
def test_larger_parts_never_cost_less(kind: str, dimensions: tuple[int, ...]) -> None:
    for turn in range(3):
        last = 0
        for size in range(40):
            shape = tuple(np.roll([size, 3, 10], turn).tolist())
            kept = tuple(n for d, n in enumerate(shape) if d not in dimensions)
            reduction = Reduce(dimensions, "add", None, (kind,))
            operands = [Tensor(kind, shape), Tensor(kind, ())]
            cycles = reduction.work(GC200, operands, [Tensor(kind, kept)]).cycles
            assert cycles >= last
            last = cycles
