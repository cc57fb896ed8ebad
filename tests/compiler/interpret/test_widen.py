"""The same program in f64: what is widened, what cannot be, and that values only get closer."""

from fractions import Fraction

import ml_dtypes
import numpy as np

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.evaluator import evaluate
from hloipu_compiler.interpret.widen import widened, widened_argument, widened_arguments
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.verify.verifier import faults_of
from tests.support.arrays import f32, s32


def wide(text: str) -> Module:
    module = widened(parse(text))
    assert not faults_of(module)
    return module


def test_every_float_becomes_f64_and_every_complex_c128() -> None:
    module = wide("""HloModule m
ENTRY e {
  a = bf16[2] parameter(0)
  b = (f16[], (c64[3], s32[])) parameter(1)
  c = pred[2] compare(a, a), direction=LT
  d = f32[2] convert(a)
  k = f8e5m2[2] constant({1, 2})
  ROOT r = (f32[2], pred[2], f8e5m2[2]) tuple(d, c, k)
}
""")
    shapes = {x.name: str(x.shape) for x in module.entry.instructions}
    assert shapes == {
        "a": "f64[2]", "b": "(f64[], (c128[3], s32[]))", "c": "pred[2]", "d": "f64[2]",
        "k": "f64[2]", "r": "(f64[2], pred[2], f64[2])",
    }  # fmt: skip


def test_constants_keep_the_values_of_their_own_type() -> None:
    module = wide("HloModule m\nENTRY e {\n  ROOT k = bf16[2] constant({0.1, 3})\n}\n")
    (got,) = evaluate(module)
    assert got.tolist() == [float(ml_dtypes.bfloat16(0.1)), 3]


def test_values_before_rounding() -> None:
    """In f32 the terms vanish beside 2**24; in f64 the sum is exact."""
    text = """HloModule m
ENTRY e {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  s = f32[] add(a, b)
  t = f32[] subtract(s, a)
  ROOT r = f32[] divide(t, b)
}
"""
    a, b = np.float32(2**24), np.float32(0.1)
    (narrow,) = evaluate(parse(text), a, b)
    (exact,) = evaluate(wide(text), *widened_arguments([np.asarray(a), np.asarray(b)]))
    assert narrow == 0
    error = abs(Fraction(float(exact)) - 1)
    assert error < Fraction(1, 2**24)
    assert exact.dtype == np.float64


def test_ops_that_see_bits_keep_their_type() -> None:
    """0x3f800000 is 1 in f32; widened, the bits of 1 are the same, and 1/3 is first rounded."""
    module = wide("""HloModule m
ENTRY e {
  a = f32[] parameter(0)
  b = s32[] bitcast-convert(a)
  c = f32[] bitcast-convert(b)
  ROOT r = (s32[], f32[]) tuple(b, c)
}
""")
    bits, value = evaluate(module, np.float64(1))
    assert [int(bits), float(value)] == [0x3F800000, 1]
    _, third = evaluate(module, np.float64(1 / 3))
    assert third == np.float64(np.float32(1 / 3))
    assert third.dtype == np.float64


def test_foreign_code_keeps_its_types_and_lapack_is_called_in_double_precision() -> None:
    lines = """  a = f32[2]{0} parameter(0)
  f = (f32[2]{0}, s32[]) custom-call(a), custom_call_target="unknown"
  q = f32[2,2]{1,0} parameter(1)
  ROOT d = (f32[2,2], f32[2]) custom-call(q), custom_call_target="lapack_sgeqrf_ffi"
"""
    calls = [
        x
        for x in wide(f"HloModule m\nENTRY e {{\n{lines}}}\n").entry.instructions
        if x.opcode == "custom-call"
    ]
    assert [str(x.shape) for x in calls] == ["(f32[2]{0}, s32[])", "(f64[2,2], f64[2])"]
    assert calls[1].attributes.text("custom_call_target") == "lapack_dgeqrf_ffi"


def test_bits_of_integers_are_no_obstacle() -> None:
    lines = "  a = s32[2] parameter(0)\n  ROOT r = u32[2] bitcast-convert(a)\n"
    module = wide(f"HloModule m\nENTRY e {{\n{lines}}}\n")
    assert evaluate(module, s32([-1, 1]))[0].tolist() == [2**32 - 1, 1]


def test_arguments() -> None:
    assert widened_argument(f32([1])).dtype == np.float64
    assert widened_argument(np.ones(1, ml_dtypes.bfloat16)).dtype == np.float64
    assert widened_argument(np.ones(1, ml_dtypes.float8_e5m2)).dtype == np.float64
    assert widened_argument(np.ones(1, np.complex64)).dtype == np.complex128
    for dtype in (np.int32, np.uint8, np.bool_, ml_dtypes.int4, ml_dtypes.uint4):
        assert widened_argument(np.ones(1, dtype)).dtype == dtype
