"""Counting and filling: the law, values, cycles by hand."""

import ml_dtypes
import numpy as np
import pytest

from hloipu_runtime.codelets.core.tensors import Sizes, Tensor
from hloipu_runtime.codelets.ops.generate import Fill, Iota
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.machine.costs import TileWork
from hloipu_runtime.machine.load import load_machine
from tests.support.codelet_law import check_every_split, check_law

TINY = load_machine("tiny")


@pytest.mark.parametrize("element_type", ["s32", "f32", "u8", "s4", "c64", "f64", "s64"])
@pytest.mark.parametrize("dimension", [0, 1])
def test_counts(element_type: str, dimension: int) -> None:
    shape = (7, 5)
    (whole,) = check_every_split(Iota(dimension, element_type), [], [Tensor(element_type, shape)])
    want = np.indices(shape)[dimension]
    np.testing.assert_array_equal(whole, want.astype(storage_dtype(element_type)))


def test_counts_of_narrow_types_wrap_or_round() -> None:
    (bytes_,) = check_law(Iota(0, "u8"), [], [Tensor("u8", (300,))], {0: 70})
    np.testing.assert_array_equal(bytes_, np.arange(300) % 256)
    (nibbles,) = check_law(Iota(0, "s4"), [], [Tensor("s4", (20,))], {0: 7})
    np.testing.assert_array_equal(nibbles, (np.arange(20) + 8) % 16 - 8)
    (rounded,) = check_law(Iota(0, "bf16"), [], [Tensor("bf16", (3000,))], {0: 701})
    want = np.arange(3000, dtype=np.float32).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(rounded, want.astype(np.float32))


@pytest.mark.parametrize(
    ("value", "element_type", "want"),
    [
        ("0x1.8p+0", "f32", 1.5),
        ("-7", "s8", -7),
        ("true", "pred", True),
        ("0x0p0,0x1p0", "c64", 1j),
    ],
)
def test_fills(value: str, element_type: str, want: complex) -> None:
    (whole,) = check_every_split(Fill(value, element_type), [], [Tensor(element_type, (4, 3))])
    np.testing.assert_array_equal(whole, np.full((4, 3), want))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_few_or_no_elements(shape: Sizes) -> None:
    (whole,) = check_law(Fill("3", "s32"), [], [Tensor("s32", shape)], {})
    assert whole.shape == shape
    if len(shape):
        assert check_law(Iota(0, "s32"), [], [Tensor("s32", shape)], {})[0].size == 0


def test_cycles() -> None:
    part = Tensor("f32", (60,))  # ten for each worker
    assert Iota(0, "f32").work(TINY, [], [part]) == TileWork(6 * (10 + 4 + 3 * 5), 0)
    assert Fill("0x0p0", "f32").work(TINY, [], [part]) == TileWork(6 * (23 + 5), 0)
    assert Fill("0x0p0", "f16").work(TINY, [], [Tensor("f16", (60,))]) == TileWork(6 * 28, 0)
    assert Fill("0", "s8").work(TINY, [], [Tensor("s8", (480,))]) == TileWork(6 * (39 + 10), 0)
    assert Fill("0", "s64").work(TINY, [], [Tensor("s64", (60,))]) == TileWork(6 * 15, 0)
    assert Fill("0", "s64").work(TINY, [], [Tensor("s64", (0,))]) == TileWork(0)


@pytest.mark.parametrize("element_type", ["f32", "f16", "u8", "s64", "c128", "bf16"])
def test_larger_parts_cost_no_less(element_type: str) -> None:
    for codelet in (Iota(0, element_type), Fill("0", element_type)):
        cycles = [codelet.work(TINY, [], [Tensor(element_type, (n,))]).cycles for n in range(500)]
        assert cycles == sorted(cycles)
