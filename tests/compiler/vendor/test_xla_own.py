"""XLA's own calls: numbers in blocks with a scale, wide numbers in halves, rotations."""

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

import hloipu
from hloipu_compiler.formulas.call import FormulaError
from tests.support.arrays import Array
from tests.support.popops_call import called, drawn

DRAWS = np.random.default_rng(5)
SMALL, SCALE = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu


def _blocks(*sizes: int) -> tuple[Array, Array, Array]:
    """Return numbers of 8 bits, a scale for 32 of a row each, and what they stand for."""
    x = DRAWS.standard_normal(sizes).astype(SMALL)
    scale = (2.0 ** DRAWS.integers(-3, 4, (*sizes[:-1], sizes[-1] // 32))).astype(SCALE)
    return x, scale, x.astype(np.float32) * np.repeat(scale.astype(np.float32), 32, -1)


@pytest.mark.parametrize("divided", ["[2,1,1]<=[2]", "[1,2,1]<=[2]", "[1,1,2]<=[2]"])
def test_products_of_scaled_blocks_are_divided(divided: str) -> None:
    (x, a, wide), (y, b, other) = _blocks(2, 8, 64), _blocks(2, 16, 64)
    text = f"""HloModule m
    ENTRY e {{
      x = f8e4m3fn[2,8,64] parameter(0), sharding={{devices={divided}}}
      a = f8e8m0fnu[2,8,2] parameter(1)
      y = f8e4m3fn[2,16,64] parameter(2)
      b = f8e8m0fnu[2,16,2] parameter(3)
      ROOT d = f32[2,8,16] custom-call(x, y, a, b), custom_call_target="__op$block_scaled_dot",
        sharding={{devices=[1,1,2]<=[2]}}
    }}"""
    program = hloipu.compile(text, target="tiny")
    assert program.program.participants == 2
    (found,) = program.run(x, a, y, b).outputs
    np.testing.assert_allclose(found, wide @ other.transpose(0, 2, 1), rtol=1e-5, atol=1e-4)


def test_blocks_are_scaled_and_back() -> None:
    x = drawn(4, 64)
    small, scale = called("__op$quantize", [x], "(f8e4m3fn[4,64], f8e8m0fnu[4,2])")
    largest = np.abs(x).reshape(4, 2, 32).max(-1)
    np.testing.assert_array_equal(scale, (largest / 256).astype(SCALE))
    (wide,) = called("__op$dequantize", [small, scale], "f32[4,64]")
    assert np.abs(wide - x).max() <= largest.max() / 16


def test_wide_numbers_are_put_together_and_taken_apart() -> None:
    x = np.array([0, 1, 2**32 - 1, 2**32, 2**63 + 7], np.uint64)
    (low,), (high,) = (called(f"X64Split{half}", [x], "u32[5]") for half in ("Low", "High"))
    np.testing.assert_array_equal(low, (x % 2**32).astype(np.uint32))
    np.testing.assert_array_equal(high, (x >> np.uint64(32)).astype(np.uint32))
    np.testing.assert_array_equal(called("X64Combine", [low, high], "u64[5]")[0], x)
    wide = np.array([np.pi, -1e-3, 1e20])
    (low,), (high,) = (called(f"X64Split{half}", [wide], "f32[3]") for half in ("Low", "High"))
    np.testing.assert_array_equal(high, wide.astype(np.float32))
    np.testing.assert_allclose(called("X64Combine", [low, high], "f64[3]")[0], wide, rtol=1e-13)
    endless = np.array([np.inf, -np.inf, 1e300])
    halves = [called(f"X64Split{half}", [endless], "f32[3]")[0] for half in ("Low", "High")]
    np.testing.assert_array_equal(
        called("X64Combine", halves, "f64[3]")[0], np.copysign(np.inf, endless)
    )


@pytest.mark.parametrize("amount", [0, 2, 5, 9])
def test_rotations(amount: int) -> None:
    said = f'backend_config="dimension=1,amount={amount}"'
    x = drawn(2, 5)
    (found,) = called("_SPMDInternalOp_RotateRight", [x], "f32[2,5]", line=said)
    np.testing.assert_array_equal(found, np.roll(x, amount, 1))


_SHIFTED: dict[str, tuple[str, str, Callable[[Array], list[Array]]]] = {
    "MultiRotate": (
        "f32[2,5], f32[2,5], f32[2,5], f32[2,5]", "dimension=1,left_amount=2,right_amount=1",
        lambda x: [np.roll(x, -k, 1) for k in (2, 1, 0, -1)],
    ),
    "Wrap": (
        "f32[2,8]", "dimension=1,left_amount=2,right_amount=1",
        lambda x: [np.pad(x, ((0, 0), (2, 1)), "wrap")],
    ),
    "MultiSlice": (
        "f32[1,2], f32[1,2]",
        "dimension=1,amount=1,start_indices=[1,0],limit_indices=[2,3],strides=[1,2],bufferize=0",
        lambda x: [x[1:2, :3:2], x[1:2, 1:4:2]],
    ),
    "MultiPad": (
        "f32[2,7], f32[2,7], f32[2,7]", "dimension=1,amt=2,bufferize=0",
        lambda x: [np.pad(x, ((0, 0), (k, 2 - k)), constant_values=3) for k in (2, 1, 0)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("target", _SHIFTED)
def test_shifted_copies(target: str) -> None:
    shapes, config, expected = _SHIFTED[target]
    x = drawn(2, 5)
    operands = [x, *([np.array(3, np.float32)] if target == "MultiPad" else [])]
    shape = shapes if ", " not in shapes else f"({shapes})"
    line = f'backend_config="{config}"'
    results = called(f"_SPMDInternalOp_{target}", operands, shape, line=line)
    for result, own in zip(results, expected(x), strict=True):
        np.testing.assert_array_equal(result, own)


def test_slices_of_no_numbers_are_refused() -> None:
    config = (
        'backend_config="dimension=0,amount=0,start_indices=[0 1],limit_indices=[1],strides=[1]"'
    )
    with pytest.raises(FormulaError, match="it slices"):
        called("_SPMDInternalOp_MultiSlice", [drawn(2)], "(f32[1])", line=config)


def test_scales_that_do_not_fit_are_refused() -> None:
    x, scale, _ = _blocks(2, 64)
    with pytest.raises(FormulaError, match="scales"):
        called("__op$dequantize", [x[:, :48], scale[:, :1].repeat(5, 1)], "f32[2,48]")
