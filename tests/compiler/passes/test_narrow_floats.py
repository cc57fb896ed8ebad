"""`narrow-floats`: what the model would print in half precision, and what stays as it is."""

import ml_dtypes
import numpy as np
import pytest

from hloipu_compiler.interpret.participants import evaluate_everywhere
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.passes import run_passes
from hloipu_runtime.errors import UsageError
from tests.support.passes import entry, opcodes, parsed

SMALL = entry(
    """  x = f32[4] parameter(0)
  c = f32[4] constant({0.1, 1, 70000, -3})
  m = f32[4] multiply(x, c)
  k = s32[4] convert(m)
  ROOT t = (f32[4], s32[4]) tuple(m, k)"""
)


def narrowed(text: str, options: str = "") -> Module:
    return run_passes(parsed(text), None, f"narrow-floats{options}")[0]


def kinds(module: Module) -> list[str]:
    return [str(x.shape).split("[")[0].strip("(") for x in module.entry.instructions]


def test_every_f32_is_f16_and_integers_stay() -> None:
    module = narrowed(SMALL)
    assert kinds(module) == ["f16", "f16", "f16", "s32", "f16"]


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
    assert opcodes(module) == ["convert", "bitcast-convert", "bitcast-convert", "convert"]
    x = np.array([1.5, -2, 0.25, 8], np.float16)
    np.testing.assert_array_equal(evaluate_everywhere(module, x)[0], x)


def test_inner_computations_and_the_header_change_too() -> None:
    text = """HloModule m, entry_computation_layout={(f32[8]{0})->f32[]}

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY e {
  x = f32[8] parameter(0)
  z = f32[] constant(0)
  ROOT r = f32[] reduce(x, z), dimensions={0}, to_apply=sum
}
"""
    module = narrowed(text)
    assert {str(x.shape)[:3] for c in module.computations for x in c.instructions} == {"f16"}
    assert "entry_computation_layout" not in module.attributes


@pytest.mark.parametrize(
    "body",
    [
        "  x = s32[4] parameter(0)\n  ROOT y = s32[4] negate(x)",
        "  x = f32[4] parameter(0)\n  y = c64[4] complex(x, x)\n  ROOT z = f32[4] real(y)",
    ],
)
def test_where_there_is_nothing_to_narrow_or_complex_numbers_the_module_stays(body: str) -> None:
    module = parsed(entry(body))
    assert run_passes(module, None, "narrow-floats")[0] is module


def test_another_type_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        narrowed(SMALL, "{to=f8e5m2}")
    assert caught.value.code == "E1010"
