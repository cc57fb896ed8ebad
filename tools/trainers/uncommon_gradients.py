"""Recipes whose gradients are uncommon: by hand, by fixed points, by losses of layers."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from tools.trainers.nets import (
    CLIPPED,
    ROWS,
    SIZES,
    WORDS,
    classes,
    cross_entropy,
    layers,
    normal,
    regression,
    rows,
    squares,
    supervised,
    through,
    tokens,
    updated,
)
from tools.trainers.recipe import Batch, Metrics, Recipe, Refusal, Rng, State, Tree

_FIRST, _LAST = SIZES[0], SIZES[-1]
_OWN_KEYS = "each micro-batch draws with a key of its own"
_ADAM = optax.adam(1e-2, eps=1e-4)


def _with_curvature() -> Recipe:
    """Return a recipe that whitens inputs by a moving covariance, which the update reads.

    Source: J. Martens, R. Grosse, "Optimizing neural networks with K-FAC", ICML 2015, section 3.
    """

    def learned(rng: Rng) -> Tree:
        return {"w": normal(rng, _FIRST, _LAST)}

    def gradients(state: State, x: Any, y: Any) -> tuple[Tree, Tree, Metrics]:
        value, slopes = jax.value_and_grad(lambda w: jnp.mean((jnp.tanh(x @ w) - y) ** 2))(
            state.learned["w"]
        )
        cover = 0.9 * state.carried["cover"] + 0.1 * x.T @ x / len(x)
        return slopes, {"cover": cover}, {"loss": value}

    def update(state: State, slopes: Tree) -> tuple[Tree, Metrics]:
        cover = state.carried["cover"]
        return {"w": state.learned["w"] - 0.05 * (2 * slopes - cover @ slopes)}, {}

    refusal = Refusal("E0505", "the update reads what micro-batches carry on")
    return Recipe(
        "curvature_by_inputs", learned, regression, gradients, update,
        lambda: {"cover": np.eye(_FIRST, dtype=np.float32)}, coupled="moving covariance",
        refusals={"": refusal},
    )  # fmt: skip


def _narrow_floats() -> Recipe:
    """Return a recipe of products in eight bits, scaled by the largest inputs seen before.

    Source: P. Micikevicius et al., "FP8 formats for deep learning" (2022), section 4.
    """

    def loss(w: Tree, state: State, x: Any, y: Any) -> Any:
        new = []
        for layer, seen in zip(w, state.carried, strict=True):
            scale = lax.stop_gradient(jnp.maximum(jnp.max(seen), 1e-3) / 448)
            new.append(jnp.concatenate([lax.stop_gradient(jnp.max(jnp.abs(x)))[None], seen[:-1]]))
            narrow = jnp.clip(x / scale, -448, 448).astype(jnp.float8_e4m3fn)
            x = jnp.tanh((narrow.astype(jnp.float32) * scale) @ layer["w"] + layer["b"])
        return jnp.mean((x - y) ** 2), (new, {})

    def kept() -> Tree:
        return [np.full(3, 2.0, np.float32) for _ in SIZES[:-1]]

    coupled = "scales follow micro-batch by micro-batch"
    return supervised("float8", loss, carried=kept, coupled=coupled, near=1e-2, absolute=1e-3)


def _forward_only() -> Recipe:
    """Return a recipe of a slope along a random direction, without a backward pass.

    Source: A. Baydin et al., "Gradients without backpropagation" (2022), algorithm 1.
    """
    plain = supervised("forward_gradient", optimizer=optax.sgd(0.05), coupled=_OWN_KEYS)

    def gradients(state: State, x: Any, y: Any) -> tuple[Tree, Tree, Metrics]:
        key, own = jax.random.split(state.carried["key"])
        flat, tree = jax.tree.flatten(state.learned["weights"])
        keys = jax.random.split(own, len(flat))
        along = tree.unflatten(
            [jax.random.normal(k, w.shape) for k, w in zip(keys, flat, strict=True)]
        )
        value, slope = jax.jvp(
            lambda w: squares(w, state, x, y)[0], (state.learned["weights"],), (along,)
        )
        return jax.tree.map(lambda v: slope * v, along), {"key": key}, {"loss": value}

    refusal = Refusal("E0502", "a number times a direction drawn anew looks like no gradient")
    return replace(
        plain, gradients=gradients, carried=lambda: {"key": np.array([0, 6], np.uint32)},
        refusals={"": refusal},
    )  # fmt: skip


def _by_hand(name: str, *, machine: bool) -> Recipe:
    """Return a recipe of gradients written out: a linear model, or a Boltzmann machine.

    Source of the latter: G. Hinton, "A practical guide to training RBMs" (2010), section 2.
    """

    def learned(rng: Rng) -> Tree:
        return {
            "a": 0.1 * normal(rng, _FIRST),
            "b": 0.1 * normal(rng, _LAST),
            "w": normal(rng, _FIRST, _LAST),
        }

    def gradients(state: State, x: Any, y: Any) -> tuple[Tree, Tree, Metrics]:
        w, a, b = (state.learned[k] for k in "wab")
        if not machine:
            wrong = (x + a) @ w + b - y
            slopes = {
                "a": jnp.mean(wrong @ w.T, 0),
                "b": jnp.mean(wrong, 0),
                "w": (x + a).T @ wrong / len(x),
            }
            return slopes, (), {"loss": 0.5 * jnp.mean(jnp.sum(wrong**2, -1))}
        hidden = jax.nn.sigmoid(x @ w + b)
        again = jax.nn.sigmoid((hidden > y) @ w.T + a)
        later = jax.nn.sigmoid(again @ w + b)
        slopes = {
            "a": jnp.mean(again - x, 0), "b": jnp.mean(later - hidden, 0),
            "w": (again.T @ later - x.T @ hidden) / len(x),
        }  # fmt: skip
        return slopes, (), {"loss": jnp.mean((again - x) ** 2)}

    def update(state: State, slopes: Tree) -> tuple[Tree, Metrics]:
        return jax.tree.map(lambda w, g: w - 0.1 * g, state.learned, slopes), {}

    def batch(rng: Rng) -> Batch:
        x, y = regression(rng)
        return (x > 0).astype(np.float32) if machine else x, np.abs(y) / 3 if machine else y

    refusal = Refusal("E0504", "no derivative of the error, whose steps have none, is a gradient")
    return Recipe(
        name, learned, batch, gradients, update, refusals={"": refusal} if machine else {}
    )


def _second_head() -> Recipe:
    """Return a recipe of two heads, of which the loss of one alone is a result."""

    def weights(rng: Rng) -> Tree:
        heads = {"main": normal(rng, 8, _LAST), "other": normal(rng, 8, _LAST)}
        return {"heads": heads, "trunk": layers(rng, (_FIRST, 7, 8))}

    def loss(w: Tree, state: State, x: Any, y: Any) -> Any:
        h = jnp.tanh(through(w["trunk"], x))
        first = jnp.mean((h @ w["heads"]["main"] - y) ** 2)
        second = jnp.mean((jnp.tanh(h @ w["heads"]["other"]) - y) ** 2)
        return first + 0.3 * second, ((), {"main": first})

    plain = supervised("second_head", loss, weights=weights)

    def gradients(state: State, x: Any, y: Any) -> tuple[Tree, Tree, Metrics]:
        slopes, carried, metrics = plain.gradients(state, x, y)
        return slopes, carried, {"loss": metrics["main"]}

    refusal = Refusal("E0502", "no result is the loss of the second head's weights")
    return replace(
        plain, name="second_head_unreported", gradients=gradients, refusals={"": refusal}
    )


def _preferred() -> Recipe:
    """Return a recipe of preferences against a frozen reference.

    Source: R. Rafailov et al., "Direct preference optimization", NeurIPS 2023, equation 7.
    """

    def weights(rng: Rng) -> Tree:
        return {"net": layers(rng, (6, 8, WORDS)), "words": normal(rng, WORDS, 6)}

    def chance(w: Tree, x: Any) -> Any:
        scores = through(w["net"], jnp.cumsum(w["words"][x[:, :-1]], 1))
        return -jnp.sum(cross_entropy(scores, x[:, 1:]), -1)

    def loss(w: Tree, state: State, good: Any, bad: Any) -> Any:
        first = chance(w, good) - chance(state.frozen, good)
        second = chance(w, bad) - chance(state.frozen, bad)
        margin = 0.1 * (first - second)
        right = jnp.mean((margin > 0).astype(jnp.float32))
        return -jnp.mean(jax.nn.log_sigmoid(margin)), ((), {"right": right})

    return supervised("dpo", loss, weights=weights, batch=tokens, frozen=weights)


def _centred() -> Recipe:
    """Return a recipe of a student against a sharpened teacher less a moving centre.

    Source: M. Caron et al., "Emerging properties in self-supervised ViTs", ICCV 2021, algorithm 1.
    """

    def learned(rng: Rng) -> Tree:
        weights = layers(rng)
        return {"optimizer": CLIPPED.init(weights), "teacher": layers(rng), "weights": weights}

    def gradients(state: State, x: Any, y: Any) -> tuple[Tree, Tree, Metrics]:
        told = through(state.learned["teacher"], y)
        wanted = jax.nn.softmax((told - state.carried["centre"]) / 0.3)

        def loss(w: Tree) -> Any:
            return -jnp.mean(jnp.sum(wanted * jax.nn.log_softmax(through(w, x) / 0.5), -1))

        value, slopes = jax.value_and_grad(loss)(state.learned["weights"])
        centre = 0.9 * state.carried["centre"] + 0.1 * jnp.mean(told, 0)
        return slopes, {"centre": centre}, {"loss": value}

    def update(state: State, slopes: Tree) -> tuple[Tree, Metrics]:
        new = updated(CLIPPED, state.learned, slopes)
        follow = optax.incremental_update(new["weights"], state.learned["teacher"], 0.05)
        return new | {"teacher": follow}, {}

    return Recipe(
        "dino", learned, lambda rng: rows(rng, _FIRST, _FIRST), gradients, update,
        lambda: {"centre": np.zeros(_LAST, np.float32)},
        coupled="the centre follows micro-batch by micro-batch",
    )  # fmt: skip


def _by_local_losses() -> Recipe:
    """Return a recipe whose layers learn each by a loss of its own."""

    def weights(rng: Rng) -> Tree:
        return [{"head": normal(rng, 7, _LAST), "w": normal(rng, n, 7)} for n in (_FIRST, 7, 7)]

    def loss(w: Tree, state: State, x: Any, y: Any) -> Any:
        each = []
        for layer in w:
            x = jnp.tanh(lax.stop_gradient(x) @ layer["w"])
            each.append(jnp.mean(cross_entropy(x @ layer["head"], y)))
        return sum(each), ((), {f"loss_{n}": value for n, value in enumerate(each)})

    return supervised("local_losses", loss, weights=weights, batch=classes)


def _lists_of_features() -> Recipe:
    """Return a recipe of a recommender: tables of features, their products, two towers."""

    def weights(rng: Rng) -> Tree:
        tables = [normal(rng, WORDS, 4) for _ in range(3)]
        return {
            "bottom": layers(rng, (_FIRST, 7, 4)),
            "tables": tables,
            "top": layers(rng, (10, 6, 1)),
        }

    def loss(w: Tree, state: State, x: Any, words: Any, y: Any) -> Any:
        dense = through(w["bottom"], x)
        each = [dense, *(jnp.sum(t[words[:, n]], 1) for n, t in enumerate(w["tables"]))]
        z = jnp.stack(each, 1)
        meets = jnp.einsum("bnd,bmd->bnm", z, z)[:, *np.triu_indices(4, 1)]
        score = through(w["top"], jnp.concatenate([dense, meets], -1))[:, 0]
        return jnp.mean(optax.sigmoid_binary_cross_entropy(score, y)), ((), {})

    def batch(rng: Rng) -> Batch:
        words = rng.integers(0, WORDS, (ROWS, 3, 2)).astype(np.int32)
        return *rows(rng, _FIRST), words, rng.integers(0, 2, ROWS).astype(np.float32)

    return supervised("recommender", loss, optax.adagrad(0.05), weights, batch)


def _in_equilibrium() -> Recipe:
    """Return a recipe whose layer is a fixed point, and whose backward pass is another.

    Source: S. Bai et al., "Deep equilibrium models", NeurIPS 2019, theorem 1.
    """

    def solved(f: Callable[[Any], Any], z: Any) -> Any:
        return lax.fori_loop(0, 6, lambda _, z: f(z), z)

    @jax.custom_vjp  # type: ignore[untyped-decorator]
    def layer(w: Any, x: Any) -> Any:
        return solved(lambda z: jnp.tanh(0.3 * z @ w + x), jnp.zeros_like(x))

    def there(w: Any, x: Any) -> Any:
        z = layer(w, x)
        return z, (w, x, z)

    def back(kept: Any, slope: Any) -> Any:
        w, x, z = kept
        _, pull = jax.vjp(lambda w, x, z: jnp.tanh(0.3 * z @ w + x), w, x, z)
        full = solved(lambda u: slope + pull(u)[2], slope)
        return pull(full)[:2]

    layer.defvjp(there, back)

    def weights(rng: Rng) -> Tree:
        return {
            "first": normal(rng, _FIRST, 8),
            "last": normal(rng, 8, _LAST),
            "w": normal(rng, 8, 8),
        }

    def loss(w: Tree, state: State, x: Any, y: Any) -> Any:
        return jnp.mean((layer(w["w"], x @ w["first"]) @ w["last"] - y) ** 2), ((), {})

    return supervised("deep_equilibrium", loss, weights=weights)


def uncommon_gradients() -> list[Recipe]:
    """Return the recipes."""
    return [
        _with_curvature(), _narrow_floats(), _forward_only(),
        _by_hand("linear_by_hand", machine=False), _by_hand("boltzmann_machine", machine=True),
        _second_head(), _preferred(), _centred(), _by_local_losses(), _lists_of_features(),
        _in_equilibrium(),
    ]  # fmt: skip
