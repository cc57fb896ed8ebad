"""Ten models in TensorFlow and Keras, by `hloipu.tensorflow.lower`, against TensorFlow without XLA.

python -m tools.newcomer.models_tensorflow [NAME]
"""

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

import hloipu.tensorflow
from tools.newcomer.judging import Model, judge

_RANDOM = np.random.default_rng(0)
layers = tf.keras.layers


def _array(*shape: int) -> Any:
    return _RANDOM.normal(size=shape).astype("float32")


def _tokens(most: int, *shape: int) -> Any:
    return _RANDOM.integers(0, most, shape).astype("int32")


def _model(function: Callable[..., Any], *arguments: Any, variables: Any = ()) -> Model:
    """Lower a function, then do it op by op; `variables` are those that it changes."""
    step = hloipu.tensorflow.lower(function, *arguments)
    results = tf.nest.flatten(function(*map(tf.constant, arguments)))
    state = {v.path: v.numpy() for v in variables}
    return Model(step, [x.numpy() for x in results], state)


def _training(model: Any, loss_of: Callable[..., Any], *batch: Any, rate: float = 0.0) -> Model:
    """Return the loss and gradients of a built model; with a rate, its step of Adam."""
    optimizer = tf.keras.optimizers.Adam(rate)
    optimizer.build(model.trainable_variables)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        if not rate:
            return loss, [tf.convert_to_tensor(g) for g in gradients]
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return _model(step, *batch, variables=(*model.variables, *optimizer.variables) if rate else ())


_SPARSE = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
_SQUARES = tf.keras.losses.MeanSquaredError()


def _built(*stack: Any) -> Any:
    return tf.keras.Sequential(list(stack))


def _mlp() -> Model:
    model = _built(
        layers.Input((64,)), layers.Dense(128, activation="gelu"), layers.Dense(10),
        layers.Softmax(),
    )  # fmt: skip
    return _model(lambda x: model(x), _array(32, 64))


def _cnn_with_batch_norm() -> Model:
    model = _built(
        layers.Input((12, 12, 1)), layers.Conv2D(8, 3, use_bias=False),
        layers.BatchNormalization(), layers.ReLU(), layers.MaxPooling2D(), layers.Flatten(),
        layers.Dense(10),
    )  # fmt: skip
    return _training(model, _SPARSE, _array(16, 12, 12, 1), _tokens(10, 16), rate=1e-3)


def _lstm() -> Model:
    model = _built(layers.Input((12, 16)), layers.LSTM(32), layers.Dense(4))
    return _training(model, _SQUARES, _array(8, 12, 16), _array(8, 4))


def _gru_forward() -> Model:
    model = _built(layers.Input((12, 16)), layers.Bidirectional(layers.GRU(16)), layers.Dense(4))
    return _model(lambda x: model(x), _array(8, 12, 16))


def _transformer_block() -> Model:
    given = layers.Input((16, 32))
    x = layers.LayerNormalization()(given)
    x = layers.MultiHeadAttention(4, 8)(x, x, use_causal_mask=True)
    x = y = layers.Add()([given, x])
    x = layers.Dense(128, activation="gelu")(layers.LayerNormalization()(x))
    model = tf.keras.Model(given, layers.Add()([y, layers.Dense(32)(x)]))
    return _training(model, _SQUARES, _array(2, 16, 32), _array(2, 16, 32))


def _embedding() -> Model:
    model = _built(
        layers.Input((12,), dtype="int32"), layers.Embedding(500, 24),
        layers.GlobalAveragePooling1D(), layers.Dense(2),
    )  # fmt: skip
    return _training(model, _SPARSE, _tokens(500, 8, 12), _tokens(2, 8))


def _unet() -> Model:
    given = layers.Input((16, 16, 3))
    wide = layers.Conv2D(8, 3, padding="same", activation="swish")(given)
    deep = layers.Conv2D(16, 3, 2, padding="same", activation="swish")(wide)
    up = layers.Conv2DTranspose(8, 3, 2, padding="same")(deep)
    up = layers.Concatenate()([up, layers.UpSampling2D()(deep), wide])
    model = tf.keras.Model(given, layers.Conv2D(3, 3, padding="same")(up))
    return _training(model, _SQUARES, _array(2, 16, 16, 3), _array(2, 16, 16, 3))


def _mixture_of_experts() -> Model:
    router, up = tf.Variable(_array(16, 4)), tf.Variable(_array(4, 16, 32))
    down = tf.Variable(_array(4, 32, 16))

    def forward(x: Any) -> Any:
        gates, chosen = tf.math.top_k(tf.nn.softmax(x @ router), 2)
        hidden = tf.nn.relu(tf.einsum("td,tkdf->tkf", x, tf.gather(up, chosen)))
        each = tf.einsum("tkf,tkfd->tkd", hidden, tf.gather(down, chosen))
        load = tf.scatter_nd(tf.reshape(chosen, (-1, 1)), tf.ones(48), (4,))
        return tf.reduce_sum(each * gates[..., None], 1), load

    return _model(forward, _array(24, 16))


def _sorting() -> Model:
    def forward(x: Any) -> Any:
        return tf.sort(x, -1), tf.argsort(x, -1, "DESCENDING"), *tf.math.top_k(x, 5)

    return _model(forward, _array(8, 100))


def _adam() -> Model:
    model = _built(layers.Input((16,)), layers.Dense(32, activation="tanh"), layers.Dense(4))
    return _training(model, _SQUARES, _array(64, 16), _array(64, 4), rate=1e-3)


MODELS = (
    _mlp, _cnn_with_batch_norm, _lstm, _gru_forward, _transformer_block, _embedding, _unet,
    _mixture_of_experts, _sorting, _adam,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(judge(MODELS, *sys.argv[1:]) > 0)
