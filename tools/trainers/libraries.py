"""Recipes of networks that are written with libraries; those that are not there are left out."""

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tools.trainers.nets import (
    CLIPPED,
    LENGTH,
    ROWS,
    SIZES,
    WORDS,
    classes,
    cross_entropy,
    supervised,
    tokens,
)
from tools.trainers.recipe import Batch, Metrics, Recipe, Rng, State, Tree

_FIRST, _LAST = SIZES[0], SIZES[-1]
_SEEDS = "each micro-batch draws with a key of its own"
_NORMED = "means and variances are those of the micro-batch"


def _images(rng: Rng) -> Batch:
    images = rng.normal(size=(ROWS, 5, 5, 2)).astype(np.float32)
    return images, rng.integers(0, _LAST, ROWS).astype(np.int32)


def _linen() -> list[Recipe]:
    """Return a residual net with `batch_stats`, and a transformer scanned by `nn.scan`."""
    from flax import linen as nn
    from flax.training import train_state

    class Net(nn.Module):  # type: ignore[misc]
        @nn.compact  # type: ignore[untyped-decorator]
        def __call__(self, x: Any, train: bool) -> Any:
            x = nn.Conv(4, (3, 3), use_bias=False)(x)
            x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(x))
            y = nn.Conv(4, (3, 3), use_bias=False)(x)
            x = nn.relu(x + nn.BatchNorm(use_running_average=not train, momentum=0.9)(y))
            return nn.Dense(_LAST)(nn.Dropout(0.2, deterministic=not train)(jnp.mean(x, (1, 2))))

    class Block(nn.Module):  # type: ignore[misc]
        @nn.compact  # type: ignore[untyped-decorator]
        def __call__(self, x: Any, mask: Any) -> Any:
            y = nn.LayerNorm()(x)
            x = x + nn.MultiHeadDotProductAttention(2, qkv_features=8)(y, y, mask=mask)
            y = nn.gelu(nn.Dense(12)(nn.LayerNorm()(x)))
            return x + nn.Dense(x.shape[-1])(y), None

    class Words(nn.Module):  # type: ignore[misc]
        @nn.compact  # type: ignore[untyped-decorator]
        def __call__(self, x: Any) -> Any:
            table = nn.Embed(WORDS, 8)
            mask = nn.make_causal_mask(x)
            block = nn.scan(
                nn.remat(Block, prevent_cse=False), variable_axes={"params": 1},
                split_rngs={"params": True}, in_axes=nn.broadcast, length=3,
            )  # fmt: skip
            x, _ = block()(table(x), mask)
            return table.attend(nn.LayerNorm()(x))

    net, optimizer = Net(), optax.chain(optax.add_decayed_weights(1e-3), optax.sgd(0.05, 0.9, True))
    first = net.init(jax.random.key(0), np.zeros((1, 5, 5, 2), np.float32), train=False)

    def learned(_: Rng) -> Tree:
        state = train_state.TrainState.create(
            apply_fn=net.apply, params=first["params"], tx=optimizer
        )
        return state.replace(step=np.int32(0))

    def gradients(state: State, x: Any, y: Any) -> tuple[Tree, Tree, Metrics]:
        key = jax.random.fold_in(state.frozen, state.carried["drawn"])

        def loss(weights: Tree) -> Any:
            variables = {"params": weights, "batch_stats": state.carried["statistics"]}
            scores, new = net.apply(
                variables, x, train=True, mutable=["batch_stats"], rngs={"dropout": key}
            )
            return jnp.mean(cross_entropy(scores, y)), (new["batch_stats"], scores)

        (value, (new, scores)), slopes = jax.value_and_grad(loss, has_aux=True)(
            state.learned.params
        )
        right = jnp.mean((jnp.argmax(scores, -1) == y).astype(jnp.float32))
        carried = {"drawn": state.carried["drawn"] + 1, "statistics": new}
        return slopes, carried, {"accuracy": right, "loss": value}

    def update(state: State, slopes: Tree) -> tuple[Tree, Metrics]:
        return state.learned.apply_gradients(grads=slopes), {}

    words = Words()
    example = np.zeros((1, LENGTH), np.int32)

    def weights(_: Rng) -> Tree:
        return words.init(jax.random.key(1), example)["params"]

    def loss(weights: Tree, state: State, x: Any, y: Any) -> Any:
        return jnp.mean(cross_entropy(words.apply({"params": weights}, x), y)), ((), {})

    return [
        Recipe(
            "linen_residual", learned, _images, gradients, update,
            lambda: {"drawn": np.int32(0), "statistics": first["batch_stats"]},
            lambda _: np.array([0, 4], np.uint32), coupled=_NORMED,
        ),
        supervised("linen_scanned", loss, CLIPPED, weights, tokens, layers=3),
    ]  # fmt: skip


def _nnx() -> list[Recipe]:
    """Return a net whose dropout and statistics are its variables, and its optimizer a module."""
    from flax import nnx

    class Net(nnx.Module):  # type: ignore[misc]
        def __init__(self, rngs: Any) -> None:
            self.first = nnx.Linear(_FIRST, 8, rngs=rngs)
            self.norm = nnx.BatchNorm(8, momentum=0.9, rngs=rngs)
            self.dropout = nnx.Dropout(0.2, rngs=rngs)
            self.last = nnx.Linear(8, _LAST, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.last(self.dropout(nnx.relu(self.norm(self.first(x)))))

    def begin() -> Any:
        model = Net(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.adamw(1e-2, eps=1e-4), wrt=nnx.Param)
        return nnx.split((model, optimizer), nnx.Param, nnx.OptState, ...)

    graph, weights, optimizer, rest = begin()

    def learned(_: Rng) -> Tree:
        return {"optimizer": optimizer, "weights": weights}

    def gradients(state: State, x: Any, y: Any) -> tuple[Tree, Tree, Metrics]:
        kept = state.learned["weights"], state.learned["optimizer"], state.carried
        model, holder = nnx.merge(graph, *kept)

        def loss(model: Any) -> Any:
            scores = model(x)
            return jnp.mean(cross_entropy(scores, y)), scores

        (value, _), slopes = nnx.value_and_grad(loss, has_aux=True)(model)
        _, _, _, new = nnx.split((model, holder), nnx.Param, nnx.OptState, ...)
        return slopes, new, {"loss": value}

    def update(state: State, slopes: Tree) -> tuple[Tree, Metrics]:
        kept = state.learned["weights"], state.learned["optimizer"], state.carried
        model, holder = nnx.merge(graph, *kept)
        holder.update(model, slopes)
        _, new, following, _ = nnx.split((model, holder), nnx.Param, nnx.OptState, ...)
        return {"optimizer": following, "weights": new}, {}

    recipe = Recipe(
        "nnx_batch_norm", learned, classes, gradients, update, lambda: rest, coupled=_NORMED
    )
    return [recipe]


def _haiku() -> list[Recipe]:
    """Return a transformed net with state, and a penalty on its weights."""
    import haiku as hk

    def forward(x: Any) -> Any:
        x = hk.Conv2D(4, 3, with_bias=False)(x)
        x = jax.nn.relu(hk.BatchNorm(True, True, 0.9)(x, is_training=True))
        return hk.Linear(_LAST)(hk.dropout(hk.next_rng_key(), 0.2, jnp.mean(x, (1, 2))))

    net = hk.transform_with_state(forward)
    first, state = net.init(jax.random.PRNGKey(0), np.zeros((1, 5, 5, 2), np.float32))

    def loss(weights: Tree, given: State, x: Any, y: Any) -> Any:
        key, own = jax.random.split(given.carried["key"])
        scores, new = net.apply(weights, given.carried["net"], own, x)
        penalty = sum(jnp.sum(w * w) for w in jax.tree.leaves(weights))
        value = jnp.mean(cross_entropy(scores, y)) + 1e-3 * penalty
        return value, ({"key": key, "net": new}, {})

    def kept() -> Tree:
        return {"key": np.array([0, 3], np.uint32), "net": state}

    return [
        supervised(
            "haiku_batch_norm", loss, optax.rmsprop(1e-2, eps=1e-4), lambda _: first, _images,
            carried=kept, coupled=_NORMED,
        )
    ]  # fmt: skip


def _equinox() -> list[Recipe]:
    """Return a module whose arrays are filtered from the rest, mapped over the batch."""
    import equinox as eqx

    class Net(eqx.Module):  # type: ignore[misc]
        words: eqx.nn.Embedding
        attention: eqx.nn.MultiheadAttention
        norm: eqx.nn.LayerNorm
        last: eqx.nn.MLP
        dropout: eqx.nn.Dropout

        def __init__(self, key: Any) -> None:
            keys = jax.random.split(key, 3)
            self.words = eqx.nn.Embedding(WORDS, 8, key=keys[0])
            self.attention = eqx.nn.MultiheadAttention(2, 8, key=keys[1])
            self.norm = eqx.nn.LayerNorm(8)
            self.last = eqx.nn.MLP(8, WORDS, 9, 1, key=keys[2])
            self.dropout = eqx.nn.Dropout(0.1)

        def __call__(self, x: Any, key: Any) -> Any:
            h = jax.vmap(self.words)(x)
            h = h + self.attention(h, h, h, mask=jnp.tril(jnp.ones((len(x), len(x)), bool)))
            return jax.vmap(self.last)(self.dropout(jax.vmap(self.norm)(h), key=key))

    weights, rest = eqx.partition(Net(jax.random.PRNGKey(0)), eqx.is_inexact_array)

    def loss(weights: Tree, state: State, x: Any, y: Any) -> Any:
        key, own = jax.random.split(state.carried["key"])
        net = eqx.combine(weights, rest)
        scores = jax.vmap(net)(x, jax.random.split(own, len(x)))
        return jnp.mean(cross_entropy(scores, y)), ({"key": key}, {})

    return [
        supervised(
            "equinox_attention", loss, CLIPPED, lambda _: weights, tokens,
            carried=lambda: {"key": np.array([0, 3], np.uint32)}, coupled=_SEEDS,
        )
    ]  # fmt: skip


def _keras() -> list[Recipe]:
    """Return a model and an optimizer called without state of their own, as Keras's guide has it.

    Source: keras-team/keras: guides/writing_a_custom_training_loop_in_jax.py.
    """
    os.environ.setdefault("KERAS_BACKEND", "jax")
    import keras

    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((_FIRST,)), keras.layers.Dense(8), keras.layers.BatchNormalization(),
            keras.layers.Activation("relu"), keras.layers.Dense(_LAST),
        ]
    )  # fmt: skip
    optimizer = keras.optimizers.AdamW(1e-2, epsilon=1e-4, clipnorm=1.0)
    optimizer.build(model.trainable_variables)
    metric = keras.metrics.SparseCategoricalAccuracy()
    crossing = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def values(variables: Any) -> list[Any]:
        return [jnp.asarray(x.value) for x in variables]

    def learned(_: Rng) -> Tree:
        return {
            "optimizer": values(optimizer.variables),
            "weights": values(model.trainable_variables),
        }

    def kept() -> Tree:
        return {"metric": values(metric.variables), "others": values(model.non_trainable_variables)}

    def gradients(state: State, x: Any, y: Any) -> tuple[Tree, Tree, Metrics]:
        def loss(weights: Tree) -> Any:
            scores, others = model.stateless_call(
                weights, state.carried["others"], x, training=True
            )
            return crossing(y, scores), (others, scores)

        sloping = jax.value_and_grad(loss, has_aux=True)
        (value, (others, scores)), slopes = sloping(state.learned["weights"])
        seen = metric.stateless_update_state(state.carried["metric"], y, scores)
        return slopes, {"metric": list(seen), "others": others}, {"loss": value}

    def update(state: State, slopes: Tree) -> tuple[Tree, Metrics]:
        new, following = optimizer.stateless_apply(
            state.learned["optimizer"], slopes, state.learned["weights"]
        )
        return {"optimizer": following, "weights": new}, {}

    return [Recipe("keras_dense", learned, classes, gradients, update, kept, coupled=_NORMED)]


_MAKERS: dict[str, tuple[str, Callable[[], list[Recipe]]]] = {
    "Linen": ("flax", _linen),
    "NNX": ("flax", _nnx),
    "Haiku": ("haiku", _haiku),
    "Equinox": ("equinox", _equinox),
    "Keras": ("keras", _keras),
}


def of_libraries() -> tuple[list[Recipe], list[str]]:
    """Return the recipes of the libraries that are there, and a line for each that is not."""
    recipes, missing = list[Recipe](), list[str]()
    for name, (package, make) in _MAKERS.items():
        if find_spec(package):
            recipes += make()
        else:
            missing.append(f"{name} is skipped: there is no {package}; see the group `trainers`")
    return recipes, missing
