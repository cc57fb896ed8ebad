"""Keras models in every way that `hloipu.keras` offers, against Keras's own fit on JAX.

    python -m tools.keras_models [--only TEXT]

Five models, each for two epochs: as they are, with accumulated gradients, over two stages, and on
two replicas; then evaluation and prediction of rows that are no whole number of batches. Losses,
weights with all other state of layers, results and outputs are compared with Keras's: accumulation
with its optimizer's own, replicas with one batch of all their rows. Where rows of a batch depend
on each other, replicas are compared with Keras's pure functions, called for each replica.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import keras

from hloipu.keras import attach

_TOLERANCE = 2e-5
"""Of everything compared, after 8 steps or fewer: sums in another order, f32."""
_ROWS = 64
_SIZE = 16
_EPOCHS = 2
_EVALUATED = 55
"""Rows: 3 batches and a smaller one."""


class Way(NamedTuple):
    """How a model is trained here, and what Keras does for the same."""

    options: Mapping[str, Any]
    batches: int = 1
    accumulates: bool = False
    """Whether Keras's optimizer accumulates as many batches; else it has one of all rows."""


_WAYS = {
    "plain": Way({}),
    "accumulation": Way({"micro_batches": 2}, 2, accumulates=True),
    "stages": Way({"stages": 2, "micro_batches": 2}, 2, accumulates=True),
    "replicas": Way({"replicas": 2}, 2),
}


def _mlp() -> Any:
    layers = keras.layers
    return keras.Sequential(
        [layers.Input((12,)), layers.Dense(16, activation="relu"), layers.Dense(4)]
    )


def _cnn() -> Any:
    layers = keras.layers
    return keras.Sequential(
        [layers.Input((8, 8, 3)), layers.Conv2D(8, 3, use_bias=False), layers.BatchNormalization(),
         layers.ReLU(), layers.MaxPooling2D(), layers.Flatten(), layers.Dropout(0.3),
         layers.Dense(4)]
    )  # fmt: skip


def _lstm() -> Any:
    layers = keras.layers
    return keras.Sequential([layers.Input((6, 5)), layers.LSTM(8), layers.Dense(4)])


def _two_inputs() -> Any:
    layers = keras.layers
    a, b = layers.Input((6,), name="a"), layers.Input((4,), name="b")
    joined = layers.concatenate(
        [layers.Dense(8, activation="relu")(a), layers.Dense(8, activation="tanh")(b)]
    )
    return keras.Model({"a": a, "b": b}, layers.Dense(4)(joined))


def _transformer() -> Any:
    layers = keras.layers
    tokens = layers.Input((6,), dtype="int32")
    x = layers.Embedding(20, 8)(tokens)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4)(x, x))
    x = layers.LayerNormalization()(x + layers.Dense(8)(layers.Dense(16, activation="gelu")(x)))
    return keras.Model(tokens, layers.Dense(4)(layers.GlobalAveragePooling1D()(x)))


class Case(NamedTuple):
    """A model and its data."""

    make: Callable[[], Any]
    data: Any
    is_coupled: bool = False
    """Whether rows of a batch depend on each other, so that a batch of all rows is another."""


class Trained(NamedTuple):
    """What a model has become; arrays to be compared."""

    losses: Any
    weights: Any
    """All variables of layers but seeds."""
    evaluated: Any = ()
    predicted: Any = ()


def _cases() -> dict[str, Case]:
    random = np.random.default_rng(0)

    def rows(*shape: int) -> Any:
        return random.normal(size=(_ROWS, *shape)).astype(np.float32)

    return {
        "mlp": Case(_mlp, rows(12)),
        "cnn": Case(_cnn, rows(8, 8, 3), is_coupled=True),
        "lstm": Case(_lstm, rows(6, 5)),
        "two inputs": Case(_two_inputs, {"a": rows(6), "b": rows(4)}),
        "transformer": Case(_transformer, random.integers(0, 20, (_ROWS, 6))),
    }


def main() -> int:
    """Train all and print how far off they are; return 1 if any is too far."""
    parser = argparse.ArgumentParser(prog="python -m tools.keras_models", description=__doc__)
    parser.add_argument("--only", default="", help="models whose name has this in it")
    asked = parser.parse_args()
    failed = 0
    print(f"Far off at most, allowed {_TOLERANCE:.0e}:")
    for name, case in _cases().items():
        if asked.only not in name:
            continue
        for label, cut in _WAYS.items():
            began = time.monotonic()
            off_by = _off_by(case, cut)
            verdict = "ok" if max(off_by.values()) <= _TOLERANCE else "FAILS"
            failed += verdict != "ok"
            told = "  ".join(f"{what} {most:.1e}" for what, most in off_by.items())
            print(
                f"{name:<12}{label:<14}{verdict:<7}{told}  {time.monotonic() - began:.1f} s",
                flush=True,
            )
    return 1 if failed else 0


def _off_by(case: Case, cut: Way) -> dict[str, float]:
    """Return how far everything is from Keras's own, at most."""
    ours = _trained(case, _SIZE, {}, cut)
    if cut.accumulates:
        theirs = _trained(case, _SIZE, {"gradient_accumulation_steps": cut.batches})
    elif case.is_coupled and cut.batches > 1:
        theirs = _in_parallel(case, cut.batches)
    else:
        theirs = _trained(case, _SIZE * cut.batches, {})
    return {
        what: max(
            float(np.abs(np.subtract(a, b)).max())
            for a, b in zip(getattr(ours, what), getattr(theirs, what), strict=True)
        )
        for what in Trained._fields
        if len(getattr(theirs, what))
    }


def _compiled(case: Case, optimizer: Mapping[str, Any], per_execution: int) -> Any:
    keras.utils.set_random_seed(1)
    model = case.make()
    model.compile(
        optimizer=keras.optimizers.SGD(0.05, momentum=0.9, **optimizer),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=per_execution,
    )
    return model


def _labels() -> Any:
    return np.random.default_rng(1).integers(0, 4, _ROWS)


def _trained(
    case: Case, size: int, optimizer: Mapping[str, Any], here: Way | None = None
) -> Trained:
    """Train by Keras, or `here` in some way; evaluate, predict."""
    model, labels = _compiled(case, optimizer, 4 if here else 1), _labels()
    if here:
        attach(model, target="gc200", over_memory="allow", **here.options)
    history = model.fit(
        case.data, labels, batch_size=size, epochs=_EPOCHS, shuffle=False, verbose=0
    )
    some = jax.tree.map(lambda rows: rows[:_EVALUATED], case.data)
    evaluated = model.evaluate(some, labels[:_EVALUATED], batch_size=_SIZE, verbose=0)
    predicted = model.predict(some, batch_size=_SIZE, verbose=0)
    return Trained(history.history["loss"], model.get_weights(), evaluated, [predicted])


def _in_parallel(case: Case, replicas: int) -> Trained:
    """Train replicas by Keras's pure functions: each has statistics and noise of its own.

    As `docs/keras.md` has it, statistics become their mean after each epoch, and each replica's
    seeds are the first one's with the replica's number folded in.
    """
    model, labels = _compiled(case, {}, 1), _labels()
    gradients = jax.jit(jax.value_and_grad(model.compute_loss_and_updates, has_aux=True),
                        static_argnames="training")  # fmt: skip
    weights = [v.value for v in model.trainable_variables]
    statistics = [v.value for v in model.non_trainable_variables]
    model.optimizer.build(model.trainable_variables)
    optimizer = [v.value for v in model.optimizer.variables]
    losses = []
    for _ in range(_EPOCHS):
        mine = [[_of_replica(x, n) for x in statistics] for n in range(replicas)]
        seen = []
        for at in range(0, _ROWS, _SIZE * replicas):
            slopes = []
            for n in range(replicas):
                rows = slice(at + n * _SIZE, at + (n + 1) * _SIZE)
                (loss, aux), gradient = gradients(
                    weights, mine[n], [], case.data[rows], labels[rows], None,
                    training=True, optimizer_variables=optimizer,
                )  # fmt: skip
                mine[n] = aux[2]
                slopes.append(gradient)
                seen.append(float(loss))
            mean = jax.tree.map(lambda *parts: sum(parts) / replicas, *slopes)
            weights, optimizer = model.optimizer.stateless_apply(optimizer, mean, weights)
        losses.append(np.mean(seen))
        statistics = [
            parts[0] if parts[0].dtype == np.uint32 else sum(parts) / replicas
            for parts in zip(*mine, strict=True)
        ]
    for variable, value in zip(
        [*model.trainable_variables, *model.non_trainable_variables],
        [*weights, *statistics],
        strict=True,
    ):
        variable.assign(value)
    return Trained(losses, model.get_weights())


def _of_replica(array: Any, replica: int) -> Any:
    """Return what a replica begins with: seeds with its number folded in, all else as it is."""
    if array.dtype != np.uint32 or not replica:
        return array
    key = jax.random.wrap_key_data(array, impl="threefry2x32")
    return jax.random.key_data(jax.random.fold_in(key, replica * 0x9E3779B9 % 2**32))


if __name__ == "__main__":
    sys.exit(main())
