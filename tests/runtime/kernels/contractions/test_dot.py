from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hloipu_runtime.kernels.contractions import blas_pieces
from hloipu_runtime.kernels.contractions.contraction import DotDimensions
from hloipu_runtime.kernels.contractions.dot import (
    RaggedDotDimensions,
    ScaledOperand,
    dot_general,
    dotting,
    is_matrix_product,
    ragged_dot,
    scaled_dot,
)
from hloipu_runtime.kernels.contractions.matmul import exact_integer
from hloipu_runtime.kernels.core.quiet import warnings_off
from tests.support.arrays import Array
from tests.support.cases import each

MATRICES = DotDimensions((), (), (1,), (0,))
CASES = [
    # lhs shape, rhs shape, dimensions, the same as einsum
    ((5, 7), (7, 3), MATRICES, "mk,kn->mn"),
    ((7, 5), (3, 7), DotDimensions((), (), (0,), (1,)), "km,nk->mn"),
    ((4,), (4,), DotDimensions((), (), (0,), (0,)), "k,k->"),
    ((), (), DotDimensions(), ",->"),
    ((3,), (4,), DotDimensions(), "m,n->mn"),
    ((2, 5, 7), (7, 3, 2), DotDimensions((0,), (2,), (2,), (0,)), "bmk,knb->bmn"),
    ((2, 3, 4, 5), (4, 2, 5, 6), DotDimensions((0,), (1,), (2, 3), (0, 2)), "bmkl,kbln->bmn"),
    ((2, 3, 4, 5), (5, 2, 4, 6), DotDimensions((0,), (1,), (3, 2), (0, 2)), "bmkl,lbkn->bmn"),
    ((2, 3, 2, 4, 3), (3, 4, 2), DotDimensions((0, 4), (2, 0), (3,), (1,)), "bmnkc,ckb->bcmn"),
    ((2, 3), (2, 3), DotDimensions((0, 1), (0, 1)), "ab,ab->ab"),
    ((100, 2, 2), (100, 2, 2), DotDimensions((0,), (0,), (2,), (1,)), "bmk,bkn->bmn"),
    ((100, 2, 0), (100, 0, 2), DotDimensions((0,), (0,), (2,), (1,)), "bmk,bkn->bmn"),
    ((90, 6), (90, 6), DotDimensions((0,), (0,), (1,), (1,)), "bk,bk->b"),
    ((3, 0), (0, 4), MATRICES, "mk,kn->mn"),
    ((0, 4), (4, 3), MATRICES, "mk,kn->mn"),
]


def exact(equation: Any, lhs: Any, rhs: Any) -> Any:
    """The contraction in Python integers."""
    inputs, output = equation.split("->")
    a, b = inputs.split(",")
    sizes = dict(zip(a + b, lhs.shape + rhs.shape, strict=True))
    names = list(sizes)
    out = np.zeros([sizes[n] for n in output], object)
    for at in np.ndindex(*sizes.values()):
        index = dict(zip(names, at, strict=True))
        product = int(lhs[tuple(index[n] for n in a)]) * int(rhs[tuple(index[n] for n in b)])
        out[tuple(index[n] for n in output)] += product
    return out


@each(("lhs_shape", "rhs_shape", "dims", "equation"), CASES)
@each("element_type", ["f32", "f64", "c64", "c128"])
def test_any_dimensions(
    lhs_shape: Any, rhs_shape: Any, dims: Any, equation: Any, element_type: Any
) -> None:
    rng = np.random.default_rng(0)
    dtype = {"f32": np.float32, "f64": np.float64, "c64": np.complex64, "c128": np.complex128}
    lhs = (rng.standard_normal(lhs_shape) + 1j * rng.standard_normal(lhs_shape)).astype(
        np.complex128
    )
    rhs = (rng.standard_normal(rhs_shape) - 1j * rng.standard_normal(rhs_shape)).astype(
        np.complex128
    )
    if element_type.startswith("f"):
        lhs, rhs = lhs.real, rhs.real
    lhs, rhs = lhs.astype(dtype[element_type]), rhs.astype(dtype[element_type])
    result = dot_general(lhs, rhs, dims, element_type)
    wide = np.float64 if lhs.dtype.kind == "f" else np.complex128
    expected = np.einsum(equation, lhs.astype(wide), rhs.astype(wide))
    assert result.dtype == dtype[element_type]
    tolerance = 1e-5 if result.dtype.itemsize == (8 if result.dtype.kind == "c" else 4) else 1e-13
    np.testing.assert_allclose(result, expected, rtol=0, atol=tolerance * 10)


@each(("lhs_shape", "rhs_shape", "dims", "equation"), CASES)
@each("dtype", [np.int8, np.uint8, np.int16, np.uint32, np.int64, np.uint64])
def test_integers_wrap(
    lhs_shape: Any, rhs_shape: Any, dims: Any, equation: Any, dtype: Any
) -> None:
    rng = np.random.default_rng(1)
    info = np.iinfo(dtype)
    lhs, rhs = (
        rng.integers(info.min, info.max, shape, dtype, endpoint=True)
        for shape in (lhs_shape, rhs_shape)
    )
    result = dot_general(lhs, rhs, dims, f"{'s' if info.min else 'u'}{info.bits}")
    expected = exact(equation, lhs, rhs) % (1 << info.bits)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result.astype(object) % (1 << info.bits), expected)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
def test_exact_integer_at_the_extremes(dtype: Any) -> None:
    info = np.iinfo(dtype)
    row = np.array([[info.min, info.max, info.max - 1, 3]] * 9, dtype)
    column = np.array([[info.max, info.min, 7, info.max]] * 5, dtype).T
    result = exact_integer(np.matmul, row, column, 4, np.dtype(dtype))
    expected = exact("mk,kn->mn", row, column) % (1 << info.bits)
    np.testing.assert_array_equal(result.astype(object) % (1 << info.bits), expected)


def test_long_integer_sums_are_split_exactly() -> None:
    lhs = np.full((2, 5000), -(1 << 31), np.int32)
    rhs = np.full((5000, 2), (1 << 31) - 1, np.int32)
    result = dot_general(lhs, rhs, MATRICES, "s64")
    assert set(result.ravel().tolist()) == {
        (5000 * -(1 << 31) * ((1 << 31) - 1) + (1 << 63)) % (1 << 64) - (1 << 63)
    }


def test_result_types() -> None:
    byte = np.array([[100, 100]], np.int8)
    assert dot_general(byte, byte.T, MATRICES, "s32").tolist() == [[20000]]
    assert dot_general(byte, byte.T, MATRICES, "s8").tolist() == [[20000 % 256]]
    assert dot_general(byte, byte.T, MATRICES, "f32").tolist() == [[20000.0]]
    nibble = np.array([[7, 7]], np.int8)
    assert dot_general(nibble, nibble.T, MATRICES, "s4").tolist() == [[2]]  # 98 = 6 * 16 + 2
    assert dot_general(nibble, nibble[:, ::-1].T + 1, MATRICES, "s4").tolist() == [[0]]
    halves = np.array([[1.5, 2.25]], np.float32)
    assert dot_general(halves, halves.T, MATRICES, "s32").tolist() == [[7]]
    assert dot_general(halves, halves.T, MATRICES, "f64").dtype == np.float64
    turned = np.array([[1 + 2j, 3j]], np.complex64)
    for kind in ("f32", "bf16", "s32"):  # the real part of products, not products of real parts
        assert dot_general(turned, turned.T, MATRICES, kind).tolist() == [[-12]]
    truth = np.array([[True, False]])
    assert dot_general(truth, truth.T, MATRICES, "pred").tolist() == [[True]]
    assert dot_general(truth, ~truth.T, MATRICES, "pred").tolist() == [[False]]
    assert dot_general(truth, truth.T, MATRICES, "s32").tolist() == [[1]]


@pytest.mark.parametrize(
    ("element_type", "dtype"),
    [
        ("f16", np.float16),
        ("bf16", ml_dtypes.bfloat16),
        ("f8e4m3fn", ml_dtypes.float8_e4m3fn),
        ("f8e5m2", ml_dtypes.float8_e5m2),
    ],
)
def test_narrow_floats_round_once(element_type: Any, dtype: Any) -> None:
    rng = np.random.default_rng(2)
    lhs, rhs = (rng.integers(-4, 5, s).astype(np.float32) / 4 for s in ((6, 9), (9, 5)))
    result = dot_general(lhs, rhs, MATRICES, element_type)
    # The sums of sixteenths are exact in float32, so one rounding is all that may happen.
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, (lhs @ rhs).astype(dtype).astype(np.float32))


def test_transposed_operands_are_not_copied_and_strided_ones_are_right() -> None:
    rng = np.random.default_rng(3)
    big = rng.standard_normal((6, 8, 10))
    lhs, rhs = big[::2, ::3, 1::2], big[::-2, 2::3, ::2]
    dims = DotDimensions((0,), (0,), (2,), (2,))
    np.testing.assert_allclose(
        dot_general(lhs, rhs, dims, "f64"), np.einsum("bmk,bnk->bmn", lhs, rhs)
    )


def test_infinities_and_nan_raise_no_warning() -> None:
    lhs = np.array([[np.inf, np.nan], [3e38, 3e38]], np.float32)
    result = dot_general(lhs, np.array([[0.0, 1.0], [0.0, 1.0]], np.float32), MATRICES, "f32")
    np.testing.assert_array_equal(result, [[np.nan, np.nan], [0, np.inf]])


def ragged_reference(lhs: Any, rhs: Any, sizes: Any) -> Any:
    out, start = np.zeros((lhs.shape[0], rhs.shape[2])), 0
    for group, size in enumerate(sizes):
        rows = slice(start, min(start + size, len(lhs)))
        out[rows] = lhs[rows] @ rhs[group]
        start += size
    return out


@pytest.mark.parametrize("sizes", [[4, 3, 2], [4, 0, 7], [0, 0, 0], [4, 3, 9]])
def test_ragged_rows(sizes: Any) -> None:
    rng = np.random.default_rng(4)
    lhs, rhs = rng.standard_normal((11, 5)), rng.standard_normal((3, 5, 7))
    dims = RaggedDotDimensions(DotDimensions((), (), (1,), (1,)), 0, 0)
    result = ragged_dot(lhs, rhs, np.array(sizes, np.int32), dims, "f64")
    np.testing.assert_allclose(result, ragged_reference(lhs, rhs, sizes), atol=1e-14)


def test_ragged_rows_with_batch_and_middle_group_dim() -> None:
    rng = np.random.default_rng(5)
    lhs, rhs = rng.standard_normal((2, 11, 5)), rng.standard_normal((2, 3, 5, 7))
    sizes = np.array([[4, 3, 4], [1, 2, 3]], np.int32)
    dims = RaggedDotDimensions(DotDimensions((0,), (0,), (2,), (2,)), 1, 1)
    result = ragged_dot(lhs, rhs, sizes, dims, "f64")
    for b in range(2):
        np.testing.assert_allclose(
            result[b], ragged_reference(lhs[b], rhs[b], sizes[b].tolist()), atol=1e-14
        )


@pytest.mark.parametrize("per_batch", [False, True])
def test_ragged_contraction(per_batch: Any) -> None:
    rng = np.random.default_rng(6)
    lhs, rhs = rng.standard_normal((2, 5, 11)), rng.standard_normal((2, 11, 7))
    sizes = np.array([[4, 3, 4], [1, 9, 0]] if per_batch else [4, 3, 1], np.int32)
    dims = RaggedDotDimensions(DotDimensions((0,), (0,), (2,), (1,)), 2)
    result = ragged_dot(lhs, rhs, sizes, dims, "f64")
    assert result.shape == (3, 2, 5, 7)
    for b in range(2):
        ends = np.cumsum(sizes[b] if per_batch else sizes)
        for group, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            np.testing.assert_allclose(
                result[group, b], lhs[b][:, start:end] @ rhs[b][start:end], atol=1e-14
            )


def test_ragged_contraction_inside_another_contracted_dim() -> None:
    rng = np.random.default_rng(7)
    lhs, rhs = rng.standard_normal((4, 2, 9)), rng.standard_normal((2, 9, 3))
    sizes = np.array([[4, 5], [1, 2]], np.int32)
    dims = RaggedDotDimensions(DotDimensions((), (), (1, 2), (0, 1)), 2)
    result = ragged_dot(lhs, rhs, sizes, dims, "f64")
    np.testing.assert_allclose(result[0], lhs[:, 0, :4] @ rhs[0, :4] + lhs[:, 1, :1] @ rhs[1, :1])
    np.testing.assert_allclose(result[1], lhs[:, 0, 4:] @ rhs[0, 4:] + lhs[:, 1, 1:3] @ rhs[1, 1:3])


def test_ragged_batch_is_a_plain_dot() -> None:
    lhs, rhs = np.ones((4, 5, 6)), np.ones((4, 6, 7))
    dims = RaggedDotDimensions(DotDimensions((0,), (0,), (2,), (1,)), 0)
    result = ragged_dot(lhs, rhs, np.array([2, 2], np.int32), dims, "f64")
    np.testing.assert_array_equal(result, np.full((4, 5, 7), 6.0))


def test_scaled_dot_multiplies_each_block_by_its_scale() -> None:
    rng = np.random.default_rng(8)
    lhs, rhs = (rng.integers(-4, 5, (n, 64)).astype(np.float32) for n in (8, 16))
    left, right = (np.exp2(rng.integers(-3, 4, (n, 2))).astype(np.float32) for n in (8, 16))
    result = scaled_dot(
        ScaledOperand(lhs, "f8e4m3fn", left, "f8e8m0fnu"),
        ScaledOperand(rhs, "f8e4m3fn", right, "f8e8m0fnu"),
        DotDimensions((), (), (1,), (1,)),
        "f32",
    )
    np.testing.assert_array_equal(
        result, (lhs * np.repeat(left, 32, 1)) @ (rhs * np.repeat(right, 32, 1)).T
    )


def test_scaled_dot_rounds_dequantised_operands_to_bf16() -> None:
    values = np.array([[1.75]], np.float32)
    scale = np.array([[1.875]], np.float32)
    operand = ScaledOperand(values, "f8e4m3fn", scale, "f8e4m3fn")
    one = ScaledOperand(np.ones((1, 1), np.float32), "bf16", np.array(1, np.float32), "f32")
    result = scaled_dot(operand, one, MATRICES, "f32")
    assert result.item() == float(ml_dtypes.bfloat16(1.75 * 1.875))


def test_scaled_dot_takes_scales_to_the_wider_type_of_integers() -> None:
    """As XLA's scaled_dot_rewriter.cc: both are converted, which cuts fractions off."""
    values = np.array([[3, -5, 7, 2]], np.int16)
    scale = np.array([[2.0, 0.5]], np.float32)
    operand = ScaledOperand(values, "s16", scale, "f8e8m0fnu")
    numbers = ScaledOperand(
        np.array([[1.5], [1], [1], [1]], np.float32), "f16", np.full((1, 1), 3, np.int32), "s32"
    )
    result = scaled_dot(operand, numbers, MATRICES, "f32")
    assert result.item() == 3 * (6 - 10)


DRAWN = np.random.default_rng(7)


def layouts(shape: tuple[int, int]) -> list[Array]:
    """Return equal matrices that lie differently in memory."""
    x = DRAWN.standard_normal(shape).astype(np.float32)
    wide = np.zeros((shape[0], 2 * shape[1]), np.float32)
    wide[:, ::2] = x
    return [x, np.asfortranarray(x), wide[:, ::2]]


@pytest.mark.parametrize("left", [0, 1])
@pytest.mark.parametrize("right", [0, 1])
@pytest.mark.parametrize("depth", [1, 2, 24])
def test_matrices_of_any_layout_with_and_without_a_place(left: int, right: int, depth: int) -> None:
    lhs = (depth, 5) if left == 0 else (5, depth)
    rhs = (depth, 7) if right == 0 else (7, depth)
    dims = DotDimensions((), (), (left,), (right,))
    run = dotting(lhs, rhs, dims, "f32")
    assert is_matrix_product(lhs, rhs, dims, "f32") == (depth > 1)
    for a, b in product(layouts(lhs), layouts(rhs)):
        wanted = np.tensordot(a.astype(np.float64), b.astype(np.float64), ((left,), (right,)))
        place = np.full((5, 7), np.nan, np.float32)
        with warnings_off():
            for found in (run(a, b), run(a, b, out=place)):
                assert found.dtype == np.float32
                np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("depth", [2, 5, 16, 33, 65])
def test_small_products_have_the_bits_of_matmul(depth: int, dtype: Any) -> None:
    """Sums of few are in the order that numpy's own product takes, with a place or without."""
    generator = np.random.default_rng(9)
    kind = "f32" if dtype is np.float32 else "f64"
    for left, right, turned in product((1, 3, 8, 40), (1, 4, 17), (False, True)):
        a = generator.standard_normal((depth, left) if turned else (left, depth)).astype(dtype)
        b = generator.standard_normal((depth, right)).astype(dtype)
        a[0, 0] = -0.0
        dims = DotDimensions((), (), (0 if turned else 1,), (0,))
        run = dotting(a.shape, b.shape, dims, kind)
        wanted = np.matmul(a.T if turned else a, b)
        for place in (None, np.empty(wanted.shape, dtype)):
            assert run(a, b, out=place).tobytes() == wanted.tobytes()


@pytest.mark.parametrize(("lhs", "rhs"), [((24,), (24, 7)), ((24,), (7, 24)), ((5, 24), (24,))])
def test_one_side_may_be_a_vector(lhs: tuple[int, ...], rhs: tuple[int, ...]) -> None:
    generator = np.random.default_rng(8)
    a, b = (generator.standard_normal(x).astype(np.float32) for x in (lhs, rhs))
    dims = DotDimensions((), (), (lhs.index(24),), (rhs.index(24),))
    assert is_matrix_product(lhs, rhs, dims, "f32")
    wanted = np.tensordot(
        a.astype(np.float64), b.astype(np.float64), (lhs.index(24), rhs.index(24))
    )
    for place in (None, np.full(wanted.shape, np.nan, np.float32)):
        found = dotting(lhs, rhs, dims, "f32")(a, b, out=place)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_other_types_and_dimensions_are_those_of_dot_general() -> None:
    a = DRAWN.standard_normal((3, 4, 6)).astype(np.float32)
    b = DRAWN.standard_normal((3, 6, 2)).astype(np.float32)
    dims = DotDimensions((0,), (0,), (2,), (1,))
    with warnings_off():
        for kind in ("f32", "bf16", "f16"):
            found = dotting(a.shape, b.shape, dims, kind)(a, b)
            np.testing.assert_array_equal(found, dot_general(a, b, dims, kind))
        matrices = DotDimensions((), (), (1,), (0,))
        run = dotting((3, 4), (4, 2), matrices, "f32")
        wide = run(np.ones((3, 4), np.float64), np.full((4, 2), 0.5, np.float32))
        whole = dotting((3, 4), (4, 2), matrices, "s32")(np.ones((3, 4), int), np.ones((4, 2), int))
    assert wide.dtype == np.float32
    np.testing.assert_array_equal(wide, np.full((3, 2), 2.0))
    np.testing.assert_array_equal(whole, np.full((3, 2), 4))


@pytest.mark.parametrize(
    ("lead", "rows", "depth", "columns"),
    [((), 50, 140, 300), ((), 200, 300, 40), ((2,), 70, 130, 128), ((3, 1), 16, 700, 101)],
)
@pytest.mark.parametrize("turned", ["", "a", "b", "ab"])
def test_pieces_make_the_whole(
    lead: tuple[int, ...], rows: int, depth: int, columns: int, turned: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(blas_pieces, "multiplies_in_place", lambda: True)
    calls: list[int] = []
    many = blas_pieces._many

    def counted(a: Array, b: Array, out: Array, rows: int) -> None:
        calls.append(rows)
        many(a, b, out, rows)

    monkeypatch.setattr(blas_pieces, "_many", counted)
    a = DRAWN.standard_normal((*lead, rows, depth)).astype(np.float32)
    b = DRAWN.standard_normal((depth, columns)).astype(np.float32)
    if "a" in turned:
        a = np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2)
    if "b" in turned:
        b = np.asfortranarray(b)
    place = np.full((*lead, rows, columns), np.nan, np.float32)
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    for found in (blas_pieces.product(a, b, None), blas_pieces.product(a, b, place)):
        np.testing.assert_allclose(found, wanted, atol=1e-4)
    assert len(calls) == (0 if turned == "b" and rows > 75 else 2)
