"""Keras models in every way that `hloipu.keras` offers, against Keras's own fit on JAX.

    python -m tools.keras_models [--only TEXT]

Five models, each for two epochs: as they are, with accumulated gradients, over two stages, and on
two replicas. Losses and weights are compared with Keras's: accumulation with its optimizer's own,
replicas with one batch of all their rows, and so only for models without batch statistics or noise.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras

from hloipu.keras import attach

_TOLERANCE = 2e-5
"""Of losses and weights after 8 steps or fewer: sums in another order, f32."""
_ROWS = 64
_SIZE = 16


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
    for name, case in _cases().items():
        if asked.only not in name:
            continue
        for label, way in _WAYS.items():
            if case.is_coupled and way.batches > 1 and not way.accumulates:
                print(f"{name:<12}{label:<14}not compared: statistics and noise of each replica")
                continue
            began = time.monotonic()
            loss, weights = _off_by(case, way)
            verdict = "ok" if max(loss, weights) <= _TOLERANCE else "FAILS"
            failed += verdict != "ok"
            print(
                f"{name:<12}{label:<14}{verdict:<7}losses {loss:.1e}  weights {weights:.1e}  "
                f"{time.monotonic() - began:.1f} s",
                flush=True,
            )
    return 1 if failed else 0


def _off_by(case: Case, way: Way) -> tuple[float, float]:
    """Return how far losses and weights are from Keras's own, at most."""
    labels = np.random.default_rng(1).integers(0, 4, _ROWS)

    def trained(size: int, optimizer: Mapping[str, Any], *, here: bool) -> tuple[Any, Any]:
        keras.utils.set_random_seed(1)
        model = case.make()
        model.compile(
            optimizer=keras.optimizers.SGD(0.05, momentum=0.9, **optimizer),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            steps_per_execution=way.batches if here else 1,
        )
        if here:
            attach(model, target="gc200", over_memory="allow", **way.options)
        history = model.fit(case.data, labels, batch_size=size, epochs=2, shuffle=False, verbose=0)
        return history.history["loss"], model.get_weights()

    many = way.batches
    ours = trained(_SIZE, {}, here=True)
    if way.accumulates:
        theirs = trained(_SIZE, {"gradient_accumulation_steps": many}, here=False)
    else:
        theirs = trained(_SIZE * many, {}, here=False)
    pairs = zip(ours[1], theirs[1], strict=True)
    return (
        float(np.abs(np.subtract(ours[0], theirs[0])).max()),
        max(float(np.abs(a - b).max()) for a, b in pairs),
    )


if __name__ == "__main__":
    sys.exit(main())
