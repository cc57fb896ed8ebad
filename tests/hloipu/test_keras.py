"""Keras models that train on the simulated device, against Keras's own fit on JAX."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hloipu_runtime.errors import UsageError

os.environ.setdefault("KERAS_BACKEND", "jax")
jax = pytest.importorskip("jax")
keras = pytest.importorskip("keras")

from hloipu.keras import (  # noqa: E402 - after the skips
    DroppedBatchesWarning,
    InputContext,
    IPUMultiWorkerStrategy,
    attach,
    detach,
)
from hloipu.keras.loops import SEEDS, TRAINABLE, spread  # noqa: E402
from hloipu_runtime.session.session import Session  # noqa: E402

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


def test_hosts_train_on_data_of_their_own() -> None:
    labels = LABELS[: len(ROWS)]
    strategy = IPUMultiWorkerStrategy(hosts=2, replicas=4, **TINY)

    def batches(context: InputContext) -> Any:
        size = context.get_per_replica_batch_size(16)
        shard = slice(context.input_pipeline_id, None, context.num_input_pipelines)
        own = list(zip(ROWS[shard], labels[shard], strict=True))
        while True:
            for at in range(0, len(own), size):
                rows, answers = zip(*own[at : at + size], strict=True)
                yield np.stack(rows), np.stack(answers)

    with strategy.scope():
        ours = compiled(mlp, 4)
    theirs = compiled(mlp)
    assert theirs.train_function is None  # compiled outside of the scope
    data = strategy.distribute_datasets_from_function(batches)
    here = dict(ours.fit(data, epochs=2, steps_per_epoch=16, shuffle=False, verbose=0).history)
    order = np.concatenate([
        np.arange(64)[host::2][at : at + 8] for at in range(0, 32, 8) for host in range(2)
    ])  # fmt: skip
    there = dict(
        theirs.fit(ROWS[order], labels[order], batch_size=16, epochs=2, shuffle=False, verbose=0)
        .history
    )  # fmt: skip
    assert_trained_alike(ours, theirs, here, there)
    assert strategy.attached is not None
    assert strategy.attached.program().program.program.hosts == 2
    np.testing.assert_allclose(
        ours.predict(ROWS[:12], batch_size=4, verbose=0),
        theirs.predict(ROWS[:12], verbose=0), rtol=1e-4, atol=1e-5,
    )  # fmt: skip


def test_statistics_noise_and_short_batches_are_as_in_keras() -> None:
    theirs, ours = compiled(cnn), compiled(cnn, 2)
    attach(ours, **TINY)
    here, there = fit(ours, IMAGES, 16), fit(theirs, IMAGES, 16)  # 16, 16 and 8
    assert_trained_alike(ours, theirs, here, there)


FORWARD: list[dict[str, Any]] = [
    {"replicas": 2},
    {"stages": [0, 1], "micro_batches": 2},
]


@pytest.mark.parametrize("way", FORWARD)
def test_evaluation_and_prediction_run_over_replicas_and_stages(way: dict[str, Any]) -> None:
    """Of 8 batches, the last one smaller: executions of 4 and 2, one alone, the smaller one."""
    model = compiled(mlp, 4)
    rows, labels = ROWS[:60], LABELS[:60]
    wanted = model.evaluate(rows, labels, batch_size=8, verbose=0)
    outputs = model.predict(rows, batch_size=8, verbose=0)
    attached = attach(model, **way, **TINY)
    found = model.evaluate(rows, labels, batch_size=8, verbose=0)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    kept = model.predict(rows, batch_size=8, verbose=0)
    np.testing.assert_allclose(kept, outputs, rtol=1e-4, atol=1e-5)
    assert (attached.spent["test"].executions, attached.spent["test"].steps) == (4, 5)
    assert attached.spent["predict"].cycles > 0
    assert attached.steps == 0


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


class Watcher(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
    """Looks at weights and changes the learning rate within an epoch; else at the end of one."""

    def __init__(self, *, within: bool) -> None:
        super().__init__()
        self.within = within
        self.seen: list[float] = []

    def look(self) -> None:
        weights, rate = self.model.get_weights()[0], self.model.optimizer.learning_rate
        self.seen += [float(np.linalg.norm(weights)), float(rate)]
        self.model.optimizer.learning_rate = float(rate) * 0.8

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append(float(logs["accuracy"]))
        if self.within:
            self.model.jax_state_sync()
            self.look()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.look()


@pytest.mark.parametrize("within", [False, True])
def test_callbacks_see_the_weights_and_change_the_learning_rate(within: bool) -> None:
    seen = []
    for here in (False, True):
        model, watcher = compiled(mlp, 2), Watcher(within=within)
        if here:
            attach(model, **TINY)
        plateau = keras.callbacks.ReduceLROnPlateau("val_loss", min_delta=1.0, patience=1)
        history = fit(
            model, ROWS, 16, callbacks=[watcher, plateau], validation_data=(ROWS[:8], LABELS[:8])
        )
        rate = float(model.optimizer.learning_rate)
        seen.append([*watcher.seen, rate, *history["val_loss"], *history["learning_rate"]])
    np.testing.assert_allclose(seen[1], seen[0], rtol=1e-5)


def test_state_stays_on_the_device_within_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[tuple[str, int]] = []

    def counted(name: str, count: Callable[[Any], int]) -> None:
        method = getattr(Session, name)

        def called(session: Session, *given: Any, **named: Any) -> Any:
            moved.append((name, count(named.get("names") or given)))
            return method(session, *given, **named)

        monkeypatch.setattr(Session, name, called)

    counted("state", len)
    counted("give_state", len)
    model = compiled(mlp)
    attach(model, **TINY)
    fit(model, ROWS, 16)
    metrics, weights, optimizer = 4, 4, 6
    epoch = [("state", metrics)] * 4 + [("state", weights), ("state", optimizer)]
    assert moved == [*epoch, ("give_state", 1), *epoch]


def test_an_array_that_the_device_has_replaced_is_told() -> None:
    model = compiled(mlp)
    attach(model, **TINY)
    kept: list[Any] = []

    def keep(batch: int, logs: Any) -> None:
        kept.append(model._jax_state["trainable_variables"][0])

    fit(model, ROWS, 16, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=keep)])
    np.testing.assert_array_equal(np.asarray(kept[-1]), model.get_weights()[0])
    with pytest.raises(UsageError, match="has done steps since"):
        np.asarray(kept[-2])


class OwnStep(keras.Model):  # type: ignore[misc, name-defined]
    """Logs of its own, and layers that are built late."""

    def __init__(self) -> None:
        super().__init__()
        self.head = keras.layers.Dense(4)

    def call(self, rows: Any) -> Any:
        return self.head(rows)

    def train_step(self, state: Any, data: Any) -> Any:
        logs, new = super().train_step(state, data)
        return {"loss twice": 2 * logs["loss"], "norm": keras.ops.norm(new[0][0])}, new


def test_logs_of_a_step_of_the_users_own_come_back() -> None:
    theirs, ours = compiled(OwnStep, 2), compiled(OwnStep, 2)
    attach(ours, **TINY)
    assert_trained_alike(ours, theirs, fit(ours, ROWS, 16), fit(theirs, ROWS, 16))


def test_a_model_compiled_again_stays_and_one_detached_goes_on_alone() -> None:
    theirs, ours = compiled(mlp, 2), compiled(mlp, 2)
    attached = attach(ours, **TINY)
    leave = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: detach(ours) if batch == 1 else None
    )
    for model in (theirs, ours):
        model.compile(optimizer="adam", loss="mse", steps_per_execution=2)
    # One execution of the first epoch, and of the second, is the device's at most.
    there = theirs.fit(ROWS, ROWS[:, :4], batch_size=16, verbose=0, shuffle=False).history
    here = ours.fit(
        ROWS, ROWS[:, :4], batch_size=16, verbose=0, shuffle=False, callbacks=[leave]
    ).history
    assert_trained_alike(ours, theirs, here, there)
    assert attached.steps == 2


def test_replicas_have_seeds_of_their_own() -> None:
    seed = np.array([7, 3], np.uint32)
    key = jax.random.wrap_key_data(seed, impl="threefry2x32")
    other = jax.random.key_data(jax.random.fold_in(key, 0x9E3779B9))
    np.testing.assert_array_equal(spread(seed, SEEDS, 2), np.stack([seed, other]))
    assert spread(seed, TRAINABLE, 2) is seed


class Largest(keras.metrics.Metric):  # type: ignore[misc, name-defined]
    """Keeps no sum."""

    def __init__(self) -> None:
        super().__init__(name="largest")
        self.kept = self.add_variable((), "zeros", name="kept")

    def update_state(self, labels: Any, outputs: Any, sample_weight: Any = None) -> None:
        self.kept.assign(keras.ops.maximum(self.kept, keras.ops.max(outputs)))

    def result(self) -> Any:
        return self.kept + 0.0


def test_what_fails_gives_the_weights_back() -> None:
    """A metric that replicas cannot add up is refused when the step is known, in fit."""
    model = compiled(mlp)
    model.compile(optimizer="sgd", loss="mse", metrics=["mae", Largest()])
    attach(model, replicas=2, **TINY)
    before = model.get_weights()
    with pytest.raises(UsageError, match="largest/kept, which is not a sum"):
        model.fit(ROWS, ROWS[:, :4], batch_size=8, verbose=0)
    for a, b in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_cannot_be_attached_is_refused() -> None:
    def code_of(model: Any, **options: Any) -> str:
        with pytest.raises(UsageError) as error:
            attach(model, **options)
        return str(error.value.code)

    assert code_of("a model") == "E3178"
    assert code_of(compiled(mlp, gradient_accumulation_steps=2), micro_batches=2) == "E3178"
    assert code_of(compiled(mlp, 3), micro_batches=2) == "E3178"
    assert code_of(compiled(mlp), stages={"heads": 0}) == "E3178"
    assert code_of(compiled(mlp), stages=[0, 1, 1]) == "E3178"
    assert code_of(compiled(mlp), loop=2) == "E3151"
    assert code_of(compiled(mlp), scheduler="local") == "E2075"
    assert code_of(compiled(mlp), tagret="bow") == "E3010"
