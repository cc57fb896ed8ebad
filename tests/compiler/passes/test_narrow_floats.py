"""`narrow-floats`: values in half precision, and the types there are."""

import ml_dtypes
import numpy as np
import pytest

from hloipu_compiler.interpret.participants import evaluate_everywhere
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.passes import run_passes
from hloipu_runtime.errors import UsageError
from tests.support.passes import entry, parsed

SMALL = entry(
    """  x = f32[4] parameter(0)
  c = f32[4] constant({0.1, 1, 70000, -3})
  m = f32[4] multiply(x, c)
  k = s32[4] convert(m)
  ROOT t = (f32[4], s32[4]) tuple(m, k)"""
)


def narrowed(text: str, options: str = "") -> Module:
    return run_passes(parsed(text), None, f"narrow-floats{options}")[0]


def test_constants_are_rounded_to_the_new_type() -> None:
    (product, _) = evaluate_everywhere(narrowed(SMALL), np.ones(4, np.float16))
    with np.errstate(over="ignore"):
        expected = np.array([0.1, 1, 70000, -3], np.float32).astype(np.float16)
    np.testing.assert_array_equal(product, expected)
    (product, _) = evaluate_everywhere(narrowed(SMALL, "{to=bf16}"), np.ones(4, ml_dtypes.bfloat16))
    wide = np.array([0.1, 1, 70000, -3], np.float32).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(np.asarray(product), wide)


def test_what_sees_bits_keeps_its_type_between_conversions() -> None:
    text = entry(
        """  x = f32[4] parameter(0)
  b = s32[4] bitcast-convert(x)
  ROOT y = f32[4] bitcast-convert(b)"""
    )
    module = narrowed(text)
    x = np.array([1.5, -2, 0.25, 8], np.float16)
    np.testing.assert_array_equal(evaluate_everywhere(module, x)[0], x)


def test_another_type_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        narrowed(SMALL, "{to=f8e5m2}")
    assert caught.value.code == "E1010"
