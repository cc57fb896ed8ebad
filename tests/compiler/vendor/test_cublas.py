"""Matrix products of cuBLAS and cuBLASLt against numpy."""

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from hloipu_compiler.formulas.call import FormulaError
from tests.support.popops_call import called, drawn

A, B, C, BIAS = drawn(4, 5), drawn(5, 3), drawn(4, 3), drawn(3)
FULL = A.astype(np.float64) @ B


def _said(**others: Any) -> dict[str, Any]:
    numbers = {"lhs_contracting_dimensions": ["1"], "rhs_contracting_dimensions": ["0"],
               "lhs_batch_dimensions": [], "rhs_batch_dimensions": []}  # fmt: skip
    gemm = {"alpha_real": 1, "alpha_imag": 0, "beta": 0, "dot_dimension_numbers": numbers,
            "precision_config": {"operand_precision": ["DEFAULT", "DEFAULT"]},
            "epilogue": "DEFAULT", "selected_algorithm": "13"}  # fmt: skip
    return {"operation_queue_id": "0", "gemm_backend_config": gemm | others}


def _gelu(x: NDArray[Any]) -> NDArray[Any]:
    made: NDArray[Any] = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return made


EPILOGUES: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "DEFAULT": lambda x: x, "RELU": lambda x: np.maximum(x, 0), "GELU": _gelu,
    "SILU": lambda x: x / (1 + np.exp(-x)),
}  # fmt: skip


def test_a_product_with_a_workspace() -> None:
    made, space = called("__cublas$gemm", [A, B], "(f32[4,3], s8[64])", _said())
    np.testing.assert_allclose(made, FULL, 1e-5, 1e-6)
    assert not space.any()
    (alone,) = called("__cublas$gemm", [A, B], "f32[4,3]", _said())
    np.testing.assert_array_equal(alone, made)
    (older,) = called("__cublas$gemm", [A, B], "f32[4,3]", _said()["gemm_backend_config"])
    np.testing.assert_array_equal(older, made)


def test_factors_and_a_matrix_to_add() -> None:
    said = _said(alpha_real=0.5, beta=-2)
    for target in ("__cublas$gemm", "__cublas$lt$matmul"):
        (made, _) = called(target, [A, B, C], "(f32[4,3], s8[64])", said)
        np.testing.assert_allclose(made, 0.5 * FULL - 2 * C, 1e-5, 1e-6)


def test_batches_and_other_orders() -> None:
    one, other = drawn(2, 5, 4), drawn(3, 2, 5)
    numbers = {"lhs_contracting_dimensions": ["1"], "rhs_contracting_dimensions": ["2"],
               "lhs_batch_dimensions": ["0"], "rhs_batch_dimensions": ["1"]}  # fmt: skip
    said = _said(dot_dimension_numbers=numbers, alpha_real=2)
    (made, _) = called("__cublas$gemm", [one, other], "(f32[2,4,3], s8[64])", said)
    np.testing.assert_allclose(made, 2 * np.einsum("bkm,nbk->bmn", one, other), 1e-5, 1e-5)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues(name: str, bias: bool) -> None:
    epilogue = (f"BIAS_{name}" if name != "DEFAULT" else "BIAS") if bias else name
    said = _said(epilogue=epilogue, beta=1)
    given = [A, B, C, BIAS] if bias else [A, B, C]
    wanted = FULL + C + (BIAS if bias else 0)
    (made, _) = called("__cublas$lt$matmul", given, "(f32[4,3], s8[64])", said)
    np.testing.assert_allclose(made, EPILOGUES[name](wanted), 1e-5, 1e-5)


def test_what_goes_into_gelu_is_kept() -> None:
    said = _said(epilogue="BIAS_GELU_AUX", alpha_real=3)
    made, kept, _ = called("__cublas$lt$matmul", [A, B, BIAS], "(f32[4,3], f32[4,3], s8[64])", said)
    np.testing.assert_allclose(kept, 3 * FULL + BIAS, 1e-5, 1e-5)
    np.testing.assert_allclose(made, _gelu(3 * FULL + BIAS), 1e-5, 1e-5)


def test_whole_numbers_add_up_in_32_bits() -> None:
    a = np.full((2, 300), 100, np.int8)
    (made, _) = called("__cublas$gemm", [a, a.T.copy()], "(s32[2,2], s8[64])", _said())
    np.testing.assert_array_equal(made, np.full((2, 2), 300 * 100 * 100))
    (half, _) = called(
        "__cublas$gemm", [a, a.T.copy()], "(f32[2,2], s8[64])", _said(alpha_real=0.5)
    )
    np.testing.assert_array_equal(half, np.full((2, 2), 1.5e6))


E4M3, E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)
SCALES = [np.array(x, np.float32) for x in (0.5, 4.0)]


def test_8_bit_floats_with_scales() -> None:
    a, b = (4 * A).astype(E4M3), B.astype(E5M2)
    full = 2 * (a.astype(np.float64) @ b.astype(np.float64))
    bias = BIAS.astype(ml_dtypes.bfloat16)
    said = _said(epilogue="BIAS_RELU", damax_output=True)
    ones = np.ones((), np.float32)
    for more in ([], [ones, ones]):  # earlier versions give the scales of c and of the result
        made, most, _ = called(
            "__cublas$lt$matmul$f8", [a, b, *SCALES, *more, bias],
            "(f32[4,3], f32[], s8[64])", said,
        )  # fmt: skip
        wanted = np.maximum(full + bias.astype(np.float64), 0)
        np.testing.assert_allclose(made, wanted, 1e-5, 1e-5)
        np.testing.assert_allclose(most, wanted.max(), 1e-5)
    scale = np.array(64, np.float32)
    for more in ([scale], [ones, scale]):
        narrow, most, _ = called(
            "__cublas$lt$matmul$f8", [a, b, *SCALES, *more], "(f8e4m3fn[4,3], f32[], s8[64])",
            _said(damax_output=True),
        )  # fmt: skip
        assert np.abs(64 * full).max() > 448
        rounded = np.clip(64 * full, -448, 448).astype(np.float32).astype(E4M3)
        np.testing.assert_array_equal(narrow.astype(np.float32), rounded.astype(np.float32))
        np.testing.assert_allclose(most, np.abs(full).max(), 1e-5)


def test_triangular_solves() -> None:
    a = np.tril(drawn(3, 3)) + 3 * np.eye(3, dtype=np.float32)
    b = drawn(3, 2)
    said = {"left_side": True, "lower": True, "unit_diagonal": False, "transpose_a": "TRANSPOSE"}
    (made, _) = called("__cublas$triangularSolve", [a, b], "(f32[3,2], s8[8])", said)
    np.testing.assert_allclose(made, np.linalg.solve(a.T, b), 1e-4, 1e-5)


REFUSED = {
    "epilogue": (_said(epilogue="TANH"), "E0530", "epilogue"),
    "complex": (_said(alpha_imag=1), "E0530", "complex"),
    "factor": ({"gemm_backend_config": {"beta": 0}}, "E0531", "alpha_real"),
    "matrix": (_said(beta=1), "E0531", "takes 3"),
    "dimension": (_said(dot_dimension_numbers={"lhs_contracting_dimensions": ["2"]}), "E0531",
                  "dimensions"),
    "sizes": (_said(dot_dimension_numbers={"lhs_contracting_dimensions": ["0"],
                                           "rhs_contracting_dimensions": ["0"]}), "E0531",
              "differ in size"),
    "bias": (_said(epilogue="BIAS"), "E0531", "takes 3"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_fit_is_refused(what: str) -> None:
    said, code, words = REFUSED[what]
    with pytest.raises(FormulaError, match=words) as caught:
        called("__cublas$lt$matmul", [A, B], "(f32[4,3], s8[64])", said)
    assert caught.value.code == code
