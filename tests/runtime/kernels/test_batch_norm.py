from typing import Any

import numpy as np
import pytest

from hloipu_runtime.kernels.batch_norm import (
    batch_norm_grad,
    batch_norm_inference,
    batch_norm_training,
)

SHAPES = [((4, 3), 1), ((2, 3, 4, 5), 1), ((2, 3, 4, 5), 3), ((5, 3, 2), 0), ((64, 5, 700), 1)]


def case(shape: Any, feature: Any) -> Any:
    rng = np.random.default_rng(0)
    x, grad = rng.standard_normal(shape) + 3, rng.standard_normal(shape)
    scale, offset, mean = rng.standard_normal((3, shape[feature]))
    variance = rng.random(shape[feature]) + 0.5
    return x, grad, scale, offset, mean, variance


def spread(v: Any, rank: Any, feature: Any) -> Any:
    return v.reshape([-1 if d == feature else 1 for d in range(rank)])


@pytest.mark.parametrize(("shape", "feature"), SHAPES)
@pytest.mark.parametrize("element_type", ["f32", "f64"])
def test_training_and_inference(shape: Any, feature: Any, element_type: Any) -> None:
    dtype = {"f32": np.float32, "f64": np.float64}[element_type]
    x, _, scale, offset, _, _ = (v.astype(dtype) for v in case(shape, feature))
    axes = tuple(d for d in range(x.ndim) if d != feature)
    exact = x.astype(np.float64)
    mean, variance = exact.mean(axes), exact.var(axes)
    epsilon = float(np.float32(1e-3))
    s, o, m, v = (spread(p, x.ndim, feature) for p in (scale, offset, mean, variance))
    expected = (exact - m) / np.sqrt(v + epsilon) * s + o
    limits: Any = (
        {"rtol": 2e-5, "atol": 2e-5} if element_type == "f32" else {"rtol": 0, "atol": 1e-11}
    )
    y, got_mean, got_variance = batch_norm_training(x, scale, offset, 1e-3, feature, element_type)
    assert y.dtype == got_mean.dtype == got_variance.dtype == dtype
    np.testing.assert_allclose(got_mean, mean, **limits)
    np.testing.assert_allclose(got_variance, variance, **limits)
    np.testing.assert_allclose(y, expected, **limits)
    again = batch_norm_inference(
        x, scale, offset, got_mean, got_variance, 1e-3, feature, element_type
    )
    np.testing.assert_allclose(again, expected, **limits)


@pytest.mark.parametrize(("shape", "feature"), SHAPES)
def test_grad_is_the_derivative_of_training(shape: Any, feature: Any) -> None:
    x, grad, scale, offset, _, _ = case(shape, feature)
    _, mean, variance = batch_norm_training(x, scale, offset, 1e-3, feature, "f64")
    dx, dscale, doffset = batch_norm_grad(x, scale, mean, variance, grad, 1e-3, feature, "f64")

    def loss(x: Any, scale: Any, offset: Any) -> Any:
        return (batch_norm_training(x, scale, offset, 1e-3, feature, "f64")[0] * grad).sum()

    rng = np.random.default_rng(1)
    steps = [rng.standard_normal(v.shape) for v in (x, scale, offset)]
    h = 1e-5
    ahead = loss(x + h * steps[0], scale + h * steps[1], offset + h * steps[2])
    behind = loss(x - h * steps[0], scale - h * steps[1], offset - h * steps[2])
    slope = sum((d * s).sum() for d, s in zip((dx, dscale, doffset), steps, strict=True))
    np.testing.assert_allclose((ahead - behind) / (2 * h), slope, rtol=1e-5)


def test_variance_does_not_cancel_under_a_large_mean() -> None:
    x = (np.array([[0.0], [1.0], [2.0], [3.0]]) + 30000).astype(np.float32)
    ones, zeros = np.ones(1, np.float32), np.zeros(1, np.float32)
    _, mean, variance = batch_norm_training(x, ones, zeros, 0.0, 1, "f32")
    assert mean.item() == 30001.5
    assert variance.item() == 1.25


def test_no_elements_give_nan_statistics() -> None:
    x = np.zeros((2, 3, 0), np.float32)
    y, mean, variance = batch_norm_training(
        x, np.ones(3, np.float32), np.ones(3, np.float32), 0.1, 1, "f32"
    )
    assert y.shape == x.shape
    assert np.isnan(mean).all()
    assert np.isnan(variance).all()


def test_narrow_floats_are_rounded() -> None:
    x = np.array([[1.0], [2.0], [4.0]], np.float32)
    _, mean, _ = batch_norm_training(
        x, np.ones(1, np.float32), np.ones(1, np.float32), 0.1, 1, "bf16"
    )
    assert mean.item() == 2.328125  # 7 / 3 on the bf16 grid


def test_a_mean_that_its_type_cannot_hold_does_not_bias_the_variance() -> None:
    """Around 1e8 floats are 8 apart; the mean of 1e8 and three times 1e8 + 8 lies between."""
    x = np.array([[1e8], [1e8 + 8], [1e8 + 8], [1e8 + 8]], np.float32)
    one = np.ones(1, np.float32)
    _, _, variance = batch_norm_training(x, one, one, 1e-3, 1, "f32")
    assert variance.tolist() == [8 * 8 * 0.75 * 0.25]
