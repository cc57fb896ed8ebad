"""Keras models that train on the simulated device, against Keras's own fit on JAX."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hloipu_runtime.errors import UsageError

os.environ.setdefault("KERAS_BACKEND", "jax")
pytest.importorskip("jax")
keras = pytest.importorskip("keras")

from hloipu.keras import DroppedBatchesWarning, attach, detach  # noqa: E402 - after the skips

# Of Keras's own variables.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
RANDOM = np.random.default_rng(0)
ROWS = RANDOM.normal(size=(64, 12)).astype(np.float32)
IMAGES = RANDOM.normal(size=(40, 6, 6, 2)).astype(np.float32)
LABELS = RANDOM.integers(0, 4, 64)
TINY: dict[str, Any] = {"target": "tiny", "over_memory": "allow", "cache": False}


def mlp() -> Any:
    layers = keras.layers
    return keras.Sequential(
        [layers.Input((12,)), layers.Dense(8, activation="relu", name="hidden"),
         layers.Dense(4, name="head")]
    )  # fmt: skip


def cnn() -> Any:
    layers = keras.layers
    return keras.Sequential(
        [layers.Input((6, 6, 2)), layers.Conv2D(4, 3, use_bias=False), layers.BatchNormalization(),
         layers.ReLU(), layers.Flatten(), layers.Dropout(0.3), layers.Dense(4)]
    )  # fmt: skip


def compiled(make: Callable[[], Any], per_execution: int = 1, **optimizer: Any) -> Any:
    keras.utils.set_random_seed(1)
    model = make()
    model.compile(
        optimizer=keras.optimizers.SGD(0.05, momentum=0.9, **optimizer),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=per_execution,
    )
    return model


def fit(model: Any, x: Any, size: int, **more: Any) -> dict[str, list[float]]:
    labels = LABELS[: len(x)]
    history = model.fit(x, labels, batch_size=size, epochs=2, shuffle=False, verbose=0, **more)
    return dict(history.history)


def assert_trained_alike(ours: Any, theirs: Any, here: Any, there: Any) -> None:
    assert here.keys() == there.keys()
    for name, values in there.items():
        np.testing.assert_allclose(here[name], values, rtol=1e-5, atol=1e-6)
    for a, b in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6)


WAYS: list[tuple[dict[str, Any], int]] = [
    ({"micro_batches": 2}, 2),
    ({"replicas": 2, "micro_batches": 2}, 4),
    ({"stages": {"hidden": 0, "head": 1}, "micro_batches": 4, "recompute": "full"}, 4),
]


@pytest.mark.parametrize(("way", "batches"), WAYS)
def test_a_step_of_many_batches_is_one_of_their_rows(way: dict[str, Any], batches: int) -> None:
    theirs, ours = compiled(mlp), compiled(mlp, 4)
    attached = attach(ours, **way, **TINY)
    here, there = fit(ours, ROWS, 8), fit(theirs, ROWS, 8 * batches)
    assert_trained_alike(ours, theirs, here, there)
    assert attached.batches_per_step == batches
    assert attached.steps == 2 * 64 // (8 * batches)
    assert attached.cycles > 0
    assert attached.profile is not None


def test_statistics_noise_and_short_batches_are_as_in_keras() -> None:
    theirs, ours = compiled(cnn), compiled(cnn, 2)
    attach(ours, **TINY)
    more = {"validation_data": (IMAGES[:8], LABELS[:8])}
    here, there = fit(ours, IMAGES, 16, **more), fit(theirs, IMAGES, 16, **more)  # 16, 16 and 8
    assert_trained_alike(ours, theirs, here, there)
    kept = ours.predict(IMAGES, batch_size=16, verbose=0)
    np.testing.assert_allclose(kept, theirs.predict(IMAGES, verbose=0), rtol=1e-4, atol=1e-5)
    detach(ours)
    np.testing.assert_allclose(ours.predict(IMAGES, verbose=0), kept, rtol=1e-4, atol=1e-5)


def test_micro_batches_accumulate_as_kerass_optimizer_does() -> None:
    theirs, ours = compiled(cnn, gradient_accumulation_steps=2), compiled(cnn, 2)
    attach(ours, micro_batches=2, **TINY)
    here, there = fit(ours, IMAGES[:32], 8), fit(theirs, IMAGES[:32], 8)
    assert_trained_alike(ours, theirs, here, there)


def test_batches_that_are_left_over_are_told() -> None:
    ours = compiled(mlp, 2)
    attach(ours, micro_batches=2, **TINY)
    with pytest.warns(DroppedBatchesWarning, match="1 of the last batches"):
        fit(ours, ROWS[:24], 8)


def test_callbacks_change_the_learning_rate_and_see_the_weights() -> None:
    seen: list[list[float]] = []

    def halved(epoch: int, rate: float) -> float:
        return rate / 2 if epoch else rate

    for way in ({}, TINY):
        model = compiled(mlp)
        if way:
            attach(model, **way)
        norms: list[float] = []
        record = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs, m=model, n=norms: n.append(
                float(np.linalg.norm(m.get_weights()[0]))
            )
        )
        fit(model, ROWS, 16, callbacks=[keras.callbacks.LearningRateScheduler(halved), record])
        seen.append([*norms, float(model.optimizer.learning_rate)])
    np.testing.assert_allclose(seen[1], seen[0], rtol=1e-5)


def test_what_cannot_be_attached_is_refused() -> None:
    def code_of(model: Any, **options: Any) -> str:
        with pytest.raises(UsageError) as error:
            attach(model, **options)
        return str(error.value.code)

    assert code_of(mlp()) == "E3178"
    assert code_of(compiled(mlp, gradient_accumulation_steps=2), micro_batches=2) == "E3178"
    assert code_of(compiled(mlp, 3), micro_batches=2) == "E3178"
    assert code_of(compiled(mlp), stages={"heads": 0}) == "E3178"
    assert code_of(compiled(mlp), tagret="bow") == "E3010"
