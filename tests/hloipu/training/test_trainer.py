"""The trainer against the same steps in numpy."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import hloipu
from hloipu.training.record import mean_of
from hloipu.training.trainer import Trainer
from hloipu_runtime.errors import UsageError
from tests.support.fitted_plane import (
    GUESS,
    LOSS,
    ROWS,
    START,
    STEP,
    STEPS,
    X,
    Y,
    by_numpy,
    trainer,
    weights,
)


def test_fit_does_the_steps() -> None:
    made = trainer()
    history = made.fit((X, Y), 3, steps_per_execution=2)
    losses, w = by_numpy(3 * STEPS)
    np.testing.assert_allclose(history.steps["loss"], losses, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(weights(made), w, rtol=1e-5)
    means = np.reshape(losses, (3, STEPS)).mean(1)
    np.testing.assert_allclose(history.history["loss"], means, rtol=1e-4, atol=1e-6)
    assert (made.steps, history.samples) == (3 * STEPS, 3 * ROWS)
    np.testing.assert_array_equal(START, [0, 0])


def test_steps_per_execution_change_the_calls_and_nothing_else() -> None:
    calls, values, cycles = [], [], []
    for in_a_run in (1, 3):
        made = trainer()
        history = made.fit((X, Y), 2, steps_per_execution=in_a_run)
        assert made.profile is not None
        calls.append(made.profile.runs)
        values.append((history.steps["loss"], weights(made).tolist()))
        cycles.append(history.cycles)
    assert calls == [2 * STEPS, 2 * STEPS // 3]
    assert values[0] == values[1]
    assert cycles[0] > cycles[1]


def test_processes_train_as_one() -> None:
    found = []
    for where in ({}, {"processes": 2}):
        made = trainer(replicas=2, **where)
        history = made.fit((X, Y), 2, steps_per_epoch=2, steps_per_execution=1)
        found.append((history.steps["loss"], history.cycles, weights(made).tolist(), made.steps))
    assert found[0] == found[1]


def test_fit_goes_on_where_it_was() -> None:
    made = trainer()
    made.fit((X, Y), 1)
    made.fit((X, Y), 2)
    np.testing.assert_allclose(weights(made), by_numpy(3 * STEPS)[1], rtol=1e-5)


def test_elements_of_an_iterable_are_taken_as_they_are() -> None:
    made = trainer()
    elements = [(X[at : at + 4], Y[at : at + 4]) for at in range(0, ROWS, 4)]
    made.fit(iter(elements), steps_per_epoch=STEPS)
    np.testing.assert_allclose(weights(made), by_numpy(STEPS)[1], rtol=1e-5)


def test_shuffling_takes_every_row_once_an_epoch() -> None:
    first, again, other = (trainer() for _ in range(3))
    losses = [
        made.fit((X, Y), 1, shuffle=seed).steps["loss"]
        for made, seed in ((first, 1), (again, 1), (other, 2))
    ]
    assert losses[0] == losses[1] != losses[2]


def test_evaluation_is_a_mean_over_batches() -> None:
    made = trainer(evaluation=LOSS)
    history = made.fit((X, Y), 2, validation_data=(X, Y))
    w = weights(made).astype(np.float64)
    wanted = float(((X @ w - Y) ** 2).reshape(STEPS, 4).sum(1).mean())
    assert made.evaluate((X, Y)) == {"loss": pytest.approx(wanted, rel=1e-4, abs=1e-9)}
    assert history.history["val_loss"][-1] == pytest.approx(wanted, rel=1e-4, abs=1e-9)
    assert len(history.history["val_loss"]) == 2


def test_cuts_that_are_given_count_ops_of_the_training_step() -> None:
    """The forward step of a prediction has fewer."""
    made = trainer(prediction=GUESS, cut_at=(2,))
    made.fit((X, Y), 1)
    np.testing.assert_allclose(made.predict(X[:8]), X[:8] @ weights(made), rtol=1e-4, atol=1e-6)


def test_prediction_gives_a_result_for_every_row() -> None:
    made = trainer(prediction=GUESS, state={0: np.array([3, 5], np.float32)})
    found = made.predict(X[:10])  # two batches and a half
    np.testing.assert_allclose(found, X[:10] @ np.array([3, 5], np.float32), rtol=1e-5, atol=1e-5)


def test_forward_steps_may_be_compiled_before() -> None:
    ready = hloipu.compile(
        GUESS, loop=2, role={"0": "const"}, feed={"data": (1,)}, outfeed=("out=0",), target="tiny"
    )
    made = trainer(prediction=ready, state=[np.array([1, 1], np.float32)])
    np.testing.assert_allclose(made.predict(X[:7]), X[:7].sum(1), rtol=1e-5, atol=1e-5)


def test_a_compiled_step_is_trained_as_it_is(tmp_path: Path) -> None:
    ready = hloipu.compile(
        STEP, loop=3, feed={"data": (1, 2)}, outfeed=("loss=1",), target="tiny", cache=False
    )
    ready.save(tmp_path / "step.ipux")
    made = Trainer(hloipu.load(tmp_path / "step.ipux"), state=[START])
    made.fit((X, Y), 1)
    np.testing.assert_allclose(weights(made), by_numpy(STEPS)[1], rtol=1e-5)
    with pytest.raises(UsageError, match="does 3 in a run") as error:
        made.fit((X, Y), 1, steps_per_execution=2)
    assert error.value.code == "E3170"


def test_metrics_that_the_device_adds_up_come_once_an_execution() -> None:
    ready = hloipu.compile(
        STEP, loop=3, feed={"data": (1, 2)}, outfeed=("loss=mean:1",), target="tiny", cache=False
    )
    history = Trainer(ready, state=[START]).fit((X, Y), 2, steps_per_execution=3)
    losses = by_numpy(2 * STEPS)[0]
    means = np.reshape(losses, (4, 3)).mean(1)
    np.testing.assert_allclose(history.steps["loss"], means, rtol=1e-4, atol=1e-6)
    epochs = np.reshape(losses, (2, STEPS)).mean(1)
    np.testing.assert_allclose(history.history["loss"], epochs, rtol=1e-4, atol=1e-6)
    assert history.samples == 2 * ROWS


def test_state_comes_back_from_a_file(tmp_path: Path) -> None:
    made = trainer()
    made.fit((X, Y), 1)
    made.save_state(tmp_path / "state")
    other = trainer(state=None)
    other.load_state(tmp_path / "state")
    other.fit((X, Y), 1)
    made.fit((X, Y), 1)
    assert weights(made).tolist() == weights(other).tolist()
    assert other.steps == 2 * STEPS


def test_several_feeds_have_a_dataset_each() -> None:
    made = trainer(feeds={"images": (1,), "labels": (2,)}, metrics={"cost": 1})
    history = made.fit({"images": X, "labels": Y})
    np.testing.assert_allclose(history.steps["cost"], by_numpy(STEPS)[0], rtol=1e-4)


def test_metrics_of_narrow_types_are_added_up_wide() -> None:
    """A sum of bf16 stops growing at 256 ones, one of s4 wraps around at eight."""
    for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4, np.float16):
        assert mean_of(np.full(1000, 3, dtype), "three") == 3
    assert mean_of((np.float32(1), np.full(3, 2, np.int8)), "both") == 1.75
    with pytest.raises(UsageError, match="metric 'wave' is complex"):
        mean_of(np.ones(2, np.complex64), "wave")
