from typing import Any

import pytest

from hloipu_compiler.inference import faults
from tests.support.shape_rules import infer, refuse


@pytest.mark.parametrize(
    ("kind", "operand", "length", "result"),
    [
        ("FFT", "c64[2,8]", (8,), "c64[2,8]"),
        ("IFFT", "c128[8,8]", (8, 8), "c128[8,8]"),
        ("RFFT", "f32[2,8]", (8,), "c64[2,5]"),
        ("RFFT", "f64[7]", (7,), "c128[4]"),
        ("RFFT", "f32[0]", (0,), "c64[0]"),
        ("IRFFT", "c64[5]", (8,), "f32[8]"),
        ("IRFFT", "c64[3,4]", (3, 7), "f32[3,7]"),
        ("IRFFT", "c64[0]", (0,), "f32[0]"),
    ],
)
def test_fft(kind: str, operand: str, length: tuple[int, ...], result: str) -> None:
    assert infer("fft", operand, fft_type=kind, fft_length=length) == result


@pytest.mark.parametrize(
    ("code", "kind", "operand", "length"),
    [
        (faults.ELEMENT_TYPE, "FFT", "f32[8]", (8,)),
        (faults.ELEMENT_TYPE, "RFFT", "c64[8]", (8,)),
        (faults.ELEMENT_TYPE, "RFFT", "bf16[8]", (8,)),
        (faults.SIZE_MISMATCH, "RFFT", "f32[8]", (7,)),
        (faults.SIZE_MISMATCH, "IRFFT", "c64[5]", (10,)),
        (faults.SIZE_MISMATCH, "IRFFT", "c64[3,5]", (4, 8)),
        (faults.SIZE_MISMATCH, "FFT", "c64[8]", (-8,)),
        (faults.DIMENSION_COUNT, "FFT", "c64[8]", ()),
        (faults.DIMENSION_COUNT, "FFT", "c64[8]", (8, 8)),
        (faults.DIMENSION_COUNT, "FFT", "c64[2,2,2,2]", (2, 2, 2, 2)),
        (faults.ATTRIBUTE_VALUE, "DCT", "c64[8]", (8,)),
    ],
)
def test_fft_refused(code: str, kind: str, operand: str, length: tuple[int, ...]) -> None:
    refuse(code, "fft", operand, fft_type=kind, fft_length=length)


def test_cholesky() -> None:
    assert infer("cholesky", "f32[2,3,3]", lower=True) == "f32[2,3,3]"
    refuse(faults.ELEMENT_TYPE, "cholesky", "s32[3,3]", at=0)
    refuse(faults.SIZE_MISMATCH, "cholesky", "f32[3,4]", at=0)
    refuse(faults.SIZE_MISMATCH, "cholesky", "f32[3]", at=0)


SOLVE: dict[str, Any] = {"left_side": True, "transpose_a": "NO_TRANSPOSE"}


def test_triangular_solve() -> None:
    assert infer("triangular-solve", "f32[2,3,3]", "f32[2,3,4]", **SOLVE) == "f32[2,3,4]"
    right = {**SOLVE, "left_side": False}
    assert infer("triangular-solve", "f32[3,3]", "f32[4,3]", **right) == "f32[4,3]"


@pytest.mark.parametrize(
    ("code", "matrix", "sides"),
    [
        (faults.SIZE_MISMATCH, "f32[3,3]", "f32[4,3]"),
        (faults.SIZE_MISMATCH, "f32[3,3]", "f32[3]"),
        (faults.SIZE_MISMATCH, "f32[2,3,3]", "f32[1,3,4]"),
        (faults.SIZE_MISMATCH, "f32[3,4]", "f32[3,4]"),
        (faults.SIZE_MISMATCH, "f32[3]", "f32[3]"),
        (faults.ELEMENT_TYPES_DIFFER, "f32[3,3]", "f64[3,4]"),
        (faults.ELEMENT_TYPE, "s32[3,3]", "s32[3,4]"),
    ],
)
def test_triangular_solve_refused(code: str, matrix: str, sides: str) -> None:
    refuse(code, "triangular-solve", matrix, sides, **SOLVE)


def test_triangular_solve_says_how_it_transposes() -> None:
    for case in ({"left_side": True}, {**SOLVE, "transpose_a": "FLIP"}):
        refuse(faults.ATTRIBUTE_VALUE, "triangular-solve", "f32[3,3]", "f32[3,4]",
               at="transpose_a", **case)  # fmt: skip
