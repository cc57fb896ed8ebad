"""What the perceptron computes: state to begin with, data, and a run by the formulas in f64."""

import numpy as np
from numpy.typing import NDArray

from tests.support.poplar_spelling import BATCH, BETA1, BETA2, EPSILON, RATE, WIDTH, Written

Array = NDArray[np.float32]


def start(written: Written) -> list[Array]:
    """Return weights, moments and the count of steps to begin with."""
    rng = np.random.default_rng(7)
    weights = [
        (rng.normal(size=(WIDTH, WIDTH)) / WIDTH**0.5).astype(np.float32)
        for _ in range(written.stages)
    ]
    moments = [np.zeros((WIDTH, WIDTH), np.float32) for _ in range(2 * written.stages)]
    return [*weights, *moments, np.zeros((), np.float32)]


def batches(written: Written) -> list[tuple[Array, Array]]:
    """Return the elements of the queue for one run."""
    rng = np.random.default_rng(8)
    return [
        (
            rng.normal(size=(BATCH, WIDTH)).astype(np.float32),
            np.tanh(rng.normal(size=(BATCH, WIDTH))).astype(np.float32),
        )
        for _ in range(written.repeat * written.micro_batches)
    ]


def trained(written: Written) -> tuple[list[NDArray[np.float64]], list[float]]:
    """Return state and losses after one run, computed in f64 from the formulas."""
    n, k = written.stages, written.micro_batches
    state = [np.asarray(x, np.float64) for x in start(written)]
    elements, losses = batches(written), []
    for turn in range(written.repeat):
        w, m, v, t = state[:n], state[n : 2 * n], state[2 * n : 3 * n], state[-1] + 1
        total = [np.zeros_like(x) for x in w]
        for x, y in elements[turn * k : (turn + 1) * k]:
            loss, slopes = _gradients(w, np.asarray(x, np.float64), np.asarray(y, np.float64))
            losses.append(loss)
            total = [a + b for a, b in zip(total, slopes, strict=True)]
        if written.reduction != "sum":
            total = [a / k for a in total]
        m = [BETA1 * a + (1 - BETA1) * g for a, g in zip(m, total, strict=True)]
        v = [BETA2 * a + (1 - BETA2) * g * g for a, g in zip(v, total, strict=True)]
        w = [
            a - RATE * (b / (1 - BETA1**t)) / (np.sqrt(c / (1 - BETA2**t)) + EPSILON)
            for a, b, c in zip(w, m, v, strict=True)
        ]
        state = [*w, *m, *v, t]
    return state, losses


def _gradients(
    weights: list[NDArray[np.float64]], x: NDArray[np.float64], y: NDArray[np.float64]
) -> tuple[float, list[NDArray[np.float64]]]:
    values = [x]
    for w in weights:
        values.append(np.tanh(values[-1] @ w))
    loss = float(np.mean((values[-1] - y) ** 2))
    cotangent = 2 * (values[-1] - y) / y.size
    found = []
    for n in reversed(range(len(weights))):
        dz = cotangent * (1 - values[n + 1] ** 2)
        found.append(values[n].T @ dz)
        cotangent = dz @ weights[n].T
    return loss, found[::-1]
