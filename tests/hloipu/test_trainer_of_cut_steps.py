"""A trainer over micro-batches, stages and replicas: one step is one update."""

import numpy as np
import pytest

from hloipu_runtime.errors import UsageError
from hloipu_runtime.streams.per_host import PerHost
from tests.support.fitted_plane import LOSS, ROWS, START, X, Y, trainer

MICRO_BATCHES, BATCH = 3, 4


def updates(each: int) -> tuple[np.ndarray, list[float]]:
    """Return the weights after a pass and the losses of its updates of `each` micro-batches."""
    w, losses = START.astype(np.float64), []
    for first in range(0, ROWS, each * BATCH):
        slopes, loss = [], []
        for k in range(each):
            rows = slice(first + k * BATCH, first + (k + 1) * BATCH)
            off = X[rows] @ w - Y[rows]
            loss.append(float((off**2).sum()))
            slopes.append(X[rows].T @ off)
        w = w - np.mean(slopes, axis=0) / 16
        losses.append(float(np.mean(loss)))
    return w, losses


@pytest.mark.parametrize("cut", [{}, {"stages": 2}, {"stages": 2, "io_tiles": 1}])
def test_a_step_is_an_update_of_all_its_micro_batches(cut: dict[str, int]) -> None:
    made = trainer(micro_batches=MICRO_BATCHES, over_memory="allow", **cut)
    history = made.fit((X, Y), progress=False)
    weights, losses = updates(MICRO_BATCHES)
    assert made.steps == len(losses) == ROWS // (MICRO_BATCHES * BATCH)
    np.testing.assert_allclose(history.steps["loss"], losses, rtol=1e-5)
    assert history.samples == ROWS
    assert made.state is not None
    (found,) = made.state.values()  # type: ignore[union-attr]
    np.testing.assert_allclose(found, weights, rtol=1e-5)


def test_too_few_rows_for_an_update_are_refused_with_what_it_takes() -> None:
    made = trainer(micro_batches=MICRO_BATCHES, replicas=2, over_memory="allow")
    rows = 2 * MICRO_BATCHES * BATCH - 1
    with pytest.raises(UsageError, match="good for 0 steps: a step takes 6 batches"):
        made.fit((X[:rows], Y[:rows]), progress=False)


def test_replicas_are_samples_of_a_step_too() -> None:
    made = trainer(micro_batches=MICRO_BATCHES, replicas=2, over_memory="allow")
    history = made.fit((X, Y), progress=False)
    weights, losses = updates(2 * MICRO_BATCHES)
    np.testing.assert_allclose(history.steps["loss"], losses, rtol=1e-5)
    assert history.samples == ROWS
    (found,) = made.state.values()  # type: ignore[union-attr]
    np.testing.assert_allclose(found, weights, rtol=1e-5)


def test_hosts_train_on_batches_of_their_own() -> None:
    def of_host(host: int) -> tuple[np.ndarray, np.ndarray]:
        parts = np.arange(ROWS).reshape(-1, 2, BATCH)[:, host].ravel()  # every other batch
        return X[parts], Y[parts]

    made = trainer(micro_batches=MICRO_BATCHES, replicas=2, hosts=2, over_memory="allow")
    history = made.fit(PerHost([of_host(0), of_host(1)]), progress=False)
    weights, losses = updates(2 * MICRO_BATCHES)
    np.testing.assert_allclose(history.steps["loss"], losses, rtol=1e-5)
    assert history.samples == ROWS
    (found,) = made.state.values()  # type: ignore[union-attr]
    np.testing.assert_allclose(found, weights, rtol=1e-5)


def test_validation_of_a_cut_step_takes_single_batches() -> None:
    made = trainer(micro_batches=MICRO_BATCHES, over_memory="allow", evaluation=LOSS)
    history = made.fit((X, Y), progress=False, validation_data=(X, Y))
    weights, _ = updates(MICRO_BATCHES)
    off = (X @ weights - Y).reshape(-1, BATCH)
    expected = float(np.mean((off**2).sum(axis=1)))
    np.testing.assert_allclose(history.history["val_loss"], [expected], rtol=1e-4)
