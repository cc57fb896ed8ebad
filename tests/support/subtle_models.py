"""Training steps whose gradients or statistics are easily taken for something else.

Cotangents that are gradients as they are; averages that the loss is made of; counts beside sums of
metrics; vectors of a power iteration; gradients at shifted weights; products of gradients that no
optimizer state goes into.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from tests.support.training_models import BATCH, Model, Tree
from tests.support.training_steps import OPTIMIZERS, Step
from tests.support.unusual_models import perceptron, regression

_SIZES = (6, 5, 4, 6, 5, 3)


def _one_row() -> Model:
    """A batch of one row: no sum over rows comes between a cotangent and a bias."""

    def weights(rng: np.random.Generator) -> Tree:
        found = perceptron(rng, sizes=_SIZES)
        for layer in found[:-1]:
            layer["scale"] = np.ones_like(layer["b"])
        return found

    def loss(weights: Tree, statistics: Tree, x: Any, y: Any) -> tuple[Any, Tree]:
        for layer in weights[:-1]:
            h = x @ layer["w"] + layer["b"]
            spread = jnp.var(h, -1, keepdims=True) + 0.1
            x = jnp.tanh((h - jnp.mean(h, -1, keepdims=True)) * lax.rsqrt(spread) * layer["scale"])
        return jnp.mean((x @ weights[-1]["w"] + weights[-1]["b"] - y) ** 2), statistics

    def data(rng: np.random.Generator) -> tuple[Any, Any]:
        x, y = regression(rng)
        return x[:1], y[:1]

    return Model("one_row", weights, loss, data)


def _centred() -> Model:
    """Features less a centre that follows them, experts chosen with a bias, a queue with a place.

    The loss has a derivative by the centre and none by the bias; it is not made of the place.
    """
    length = 2 * BATCH

    def loss(weights: Tree, old: Tree, x: Any, y: Any) -> tuple[Any, Tree]:
        for layer in weights:
            x = jnp.tanh(x @ layer["w"] + layer["b"])
        chosen = jax.nn.one_hot(jnp.argmax(x + old["bias"], -1), x.shape[1])
        load = jnp.sum(chosen, 0)
        near = jax.nn.softmax(x @ old["queue"].T)
        away = (x - old["centre"]) * (0.5 + chosen) - y
        new = {
            "bias": old["bias"] + 0.125 * jnp.sign(jnp.mean(load) - load),
            "centre": 0.75 * old["centre"] + 0.25 * jnp.mean(x, 0),
            "place": (old["place"] + BATCH) % length,
            "queue": lax.dynamic_update_slice(old["queue"], x, (old["place"], 0)),
        }
        return jnp.mean(away**2) + jnp.mean(near**2), new

    def statistics() -> Tree:
        last = _SIZES[-1]
        return {
            "bias": np.zeros(last, np.float32), "centre": np.zeros(last, np.float32),
            "place": np.int32(0), "queue": np.zeros((length, last), np.float32),
        }  # fmt: skip

    return Model("centred", perceptron, loss, regression, statistics, couples=True)


def _spectral() -> Model:
    """Weights over their largest singular value, whose vector a power iteration follows."""

    def loss(weights: Tree, old: Tree, x: Any, y: Any) -> tuple[Any, Tree]:
        new = []
        for layer, u in zip(weights, old, strict=True):
            v = layer["w"].T @ u
            u = layer["w"] @ (v / jnp.linalg.norm(v))
            u, v = lax.stop_gradient((u / jnp.linalg.norm(u), v / jnp.linalg.norm(v)))
            new.append(u)
            x = jnp.tanh(x @ (layer["w"] / (u @ layer["w"] @ v)) + layer["b"])
        return jnp.mean((x - y) ** 2), new

    def statistics() -> Tree:
        each = [len(layer["w"]) for layer in perceptron(np.random.default_rng(0))]
        return [np.full(n, 1 / np.sqrt(n), np.float32) for n in each]

    return Model("spectral", perceptron, loss, regression, statistics, couples=True)


def _measured() -> Model:
    """Sums of metrics with counts of what is in them, which no weight is made of."""

    def loss(weights: Tree, old: Tree, x: Any, y: Any) -> tuple[Any, Tree]:
        for layer in weights[:-1]:
            x = jnp.tanh(x @ layer["w"] + layer["b"])
        each = jnp.mean((x @ weights[-1]["w"] + weights[-1]["b"] - y) ** 2, -1)
        times = old["times"] + 1
        new = {
            "total": old["total"] + jnp.sum(each), "count": old["count"] + BATCH,
            "seen": old["seen"] + BATCH, "times": times, "batches": old["batches"] + 1.0,
            "mean": old["mean"] + (jnp.mean(each) - old["mean"]) / times,
        }  # fmt: skip
        return jnp.mean(each), new

    def statistics() -> Tree:
        floats = ("total", "count", "batches", "mean")
        whole = ("seen", "times")
        return {x: np.float32(0) for x in floats} | {x: np.int32(0) for x in whole}

    return Model("measured", perceptron, loss, regression, statistics, couples=True)


class SharpenedStep(Step):
    """Sharpness-aware: the gradient is that at weights moved along the micro-batch's own one.

    Source: P. Foret et al., "Sharpness-Aware Minimization", ICLR 2021, section 3: the two gradients
    of a batch are computed on the parts that it is in, each for itself.
    """

    def gradients(self, state: Tree, x: Any, y: Any) -> tuple[Any, Tree, Tree]:
        """Return the loss where the weights are, the gradients beside, and the statistics."""
        weights, _, statistics = state
        loss, slopes, statistics = super().gradients(state, x, y)
        size = 0.05 / jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(slopes)))
        moved = jax.tree.map(lambda w, g: w + size * g, weights, slopes)
        _, slopes, _ = super().gradients((moved, None, statistics), x, y)
        return loss, slopes, statistics


def _orthogonal(g: Any) -> Any:
    """Return a matrix with singular values nearer to 1, by two steps of Newton and Schulz."""
    if g.ndim < 2:
        return g
    x = g / (jnp.linalg.norm(g) + 0.1)
    for _ in range(2):
        x = 1.5 * x - 0.5 * (x @ x.T) @ x
    return x


def _preconditioned() -> optax.GradientTransformation:
    """Return an optimizer that multiplies gradients with sums of their products."""

    def update(slopes: Tree, state: Tree, _: Tree = None) -> tuple[Tree, Tree]:
        flat, tree = jax.tree.flatten(slopes)
        new = [0.5 * old + jnp.outer(g, g) if g.ndim < 2 else 0.5 * old + g @ g.T
               for g, old in zip(flat, state, strict=True)]  # fmt: skip
        changes = [-0.1 * (g + each @ g) for g, each in zip(flat, new, strict=True)]
        return tree.unflatten(changes), new

    def begin(weights: Tree) -> Tree:
        return [np.zeros((len(w), len(w)), np.float32) for w in jax.tree.leaves(weights)]

    return optax.GradientTransformation(begin, update)


MIXING = {
    "orthogonal": optax.stateless(
        lambda slopes, _: jax.tree.map(lambda g: -0.1 * _orthogonal(g), slopes)
    ),
    "preconditioned": _preconditioned(),
}
"""Optimizers that multiply gradients with themselves."""


def subtle_steps(plain: Model) -> dict[str, Step]:
    """Return them all by name; `plain`: a model without statistics."""
    found = [
        Step(_one_row(), "sgd", OPTIMIZERS["sgd"]),
        Step(_one_row(), "adamw_clipped", OPTIMIZERS["adamw_clipped"]),
        Step(_centred(), "momentum", OPTIMIZERS["momentum"]),
        Step(_measured(), "adamw_clipped", OPTIMIZERS["adamw_clipped"]),
        Step(_spectral(), "sgd", OPTIMIZERS["sgd"]),
        SharpenedStep(replace(plain, couples=True), "sharpened", OPTIMIZERS["momentum"]),
        *(Step(plain, name, optimizer) for name, optimizer in MIXING.items()),
    ]
    return {step.name: step for step in found}
