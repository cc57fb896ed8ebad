"""Batch normalisation: the law, and values in float64 by the formulas."""

import numpy as np
import pytest

from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.dense.batch_norm import (
    BatchNormGrad,
    BatchNormTraining,
)
from hloipu_runtime.machine.load import load_machine
from tests.support.codelet_law import Given, check_every_split, close_values

RNG = np.random.default_rng(9)
EPSILON = 0.125
SHAPES = [((4, 3, 7), 2), ((4, 7, 5), 1), ((7, 6), 0), ((7,), 0)]


def _given(*shape: int, positive: bool = False) -> Given:
    values = RNG.standard_normal(shape)
    return Given("f32", np.asarray(np.abs(values) if positive else values, np.float32))


def _along(
    x: Given, shape: tuple[int, ...], feature: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    sizes = [n if d == feature else 1 for d, n in enumerate(shape)]
    return x.array.astype(np.float64).reshape(sizes)


@pytest.mark.parametrize(("shape", "feature"), SHAPES)
def test_training(shape: tuple[int, ...], feature: int) -> None:
    x, scale, offset = _given(*shape), _given(7), _given(7)
    small, large = Tensor("f32", (7,)), Tensor("f32", shape)
    made = check_every_split(
        BatchNormTraining(EPSILON.hex(), feature, "f32"),
        [x, scale, offset],
        [large, small, small],
        same=close_values(1e-5, 1e-5),
    )
    others = tuple(d for d in range(len(shape)) if d != feature)
    wide = x.array.astype(np.float64)
    mean, variance = wide.mean(axis=others, keepdims=True), wide.var(axis=others, keepdims=True)
    y = (wide - mean) / np.sqrt(variance + EPSILON) * _along(scale, shape, feature)
    np.testing.assert_allclose(made[0], y + _along(offset, shape, feature), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(made[1], mean.reshape(-1), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(made[2], variance.reshape(-1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("shape", "feature"), SHAPES)
def test_gradient(shape: tuple[int, ...], feature: int) -> None:
    x, scale, mean = _given(*shape), _given(7), _given(7)
    variance, gradient = _given(7, positive=True), _given(*shape)
    small, large = Tensor("f32", (7,)), Tensor("f32", shape)
    made = check_every_split(
        BatchNormGrad(EPSILON.hex(), feature, "f32"),
        [x, scale, mean, variance, gradient],
        [large, small, small],
        same=close_values(1e-5, 1e-5),
    )
    others = tuple(d for d in range(len(shape)) if d != feature)
    root = np.sqrt(_along(variance, shape, feature) + EPSILON)
    normal = (x.array - _along(mean, shape, feature)) / root
    wide = gradient.array.astype(np.float64)
    scale_gradient = (normal * wide).sum(axis=others, keepdims=True)
    offset_gradient = wide.sum(axis=others, keepdims=True)
    count = wide.size / 7
    inner = wide - (offset_gradient + normal * scale_gradient) / count
    expected = _along(scale, shape, feature) / root * inner
    np.testing.assert_allclose(made[0], expected, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(made[1], scale_gradient.reshape(-1), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(made[2], offset_gradient.reshape(-1), rtol=1e-4, atol=1e-4)


def test_larger_parts_never_cost_less() -> None:
    machine, last = load_machine("gc200"), 0
    for size in range(50):
        x, small = Tensor("bf16", (8, size, 3)), Tensor("bf16", (size,))
        codelet = BatchNormTraining(EPSILON.hex(), 1, "bf16")
        work = codelet.work(machine, [x, small, small], [x, small, small])
        assert work.cycles == work.assumed_cycles >= last
        last = work.cycles
