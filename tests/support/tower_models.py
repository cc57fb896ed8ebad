"""Networks with towers that do not depend on one another, in JAX, annotated with stages.

Each has a stage of branches; `marked` says whether ops are annotated with these, too.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata

from tests.support.training_models import BATCH, Model, Tree


@dataclass(frozen=True)
class Towers:
    """A network, and where its branches are."""

    model: Callable[[bool], Model]
    """By whether branches are annotated."""
    stages: int
    concurrent: int
    """The stage that has branches."""
    branches: int = 2


def _stage(number: int) -> Any:
    return set_xla_metadata(ipu_stage=str(number))


def _branch(number: int, *, marked: bool) -> Any:
    return set_xla_metadata(ipu_branch=str(number)) if marked else nullcontext()


def _normal(rng: np.random.Generator, *shape: int) -> Any:
    return rng.normal(0, 1 / np.sqrt(max(shape[0], 1)), shape).astype(np.float32)


def _pair(rng: np.random.Generator, inputs: tuple[int, ...], outputs: int) -> tuple[Any, Any]:
    return (
        rng.normal(size=(BATCH, *inputs)).astype(np.float32),
        rng.normal(size=(BATCH, outputs)).astype(np.float32),
    )


def _layers(rng: np.random.Generator, *sizes: int) -> Tree:
    return [{"w": _normal(rng, a, b), "b": np.zeros(b, np.float32)} for a, b in pairwise(sizes)]


def _dense(layers: Tree, x: Any) -> Any:
    for layer in layers:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x


def _joined(*, marked: bool, multiplied: bool) -> Model:
    """Two towers of different depth between a layer and a head."""

    def weights(rng: np.random.Generator) -> Tree:
        return {
            "first": _layers(rng, 6, 8), "short": _layers(rng, 8, 9, 9),
            "long": _layers(rng, 8, 10, 10, 9), "head": _layers(rng, 9 if multiplied else 18, 3),
        }  # fmt: skip

    def loss(w: Tree, statistics: Tree, x: Any, y: Any) -> tuple[Any, Tree]:
        with _stage(0):
            x = _dense(w["first"], x)
        with _stage(1):
            with _branch(0, marked=marked):
                a = _dense(w["short"], x)
            with _branch(1, marked=marked):
                b = _dense(w["long"], x)
            x = a * b if multiplied else jnp.concatenate([a, b], 1)
        with _stage(2):
            return jnp.mean((_dense(w["head"], x) - y) ** 2), statistics

    name = "multiplied" if multiplied else "concatenated"
    return Model(name, weights, loss, lambda rng: _pair(rng, (6,), 3))


def _added(*, marked: bool) -> Model:
    """Three towers that all read what a queue feeds, added up."""

    def weights(rng: np.random.Generator) -> Tree:
        return {"towers": [_layers(rng, 6, n, 8) for n in (7, 8, 9)], "head": _layers(rng, 8, 3)}

    def loss(w: Tree, statistics: Tree, x: Any, y: Any) -> tuple[Any, Tree]:
        with _stage(0):
            made = []
            for number, layers in enumerate(w["towers"]):
                with _branch(number, marked=marked):
                    made.append(_dense(layers, x))
            x = made[0] + made[1] + made[2]
        with _stage(1):
            return jnp.mean((_dense(w["head"], x) - y) ** 2), statistics

    return Model("added", weights, loss, lambda rng: _pair(rng, (6,), 3))


def _recommender(*, marked: bool) -> Model:
    """Embeddings beside a bottom network, products of all pairs, a top network (1906.00091)."""

    def weights(rng: np.random.Generator) -> Tree:
        return {
            "tables": [_normal(rng, rows, 8) for rows in (11, 13)],
            "bottom": _layers(rng, 6, 8, 8), "top": _layers(rng, 8 + 3, 6, 2),
        }  # fmt: skip

    def loss(w: Tree, statistics: Tree, x: Any, y: Any) -> tuple[Any, Tree]:
        with _stage(0):
            with _branch(0, marked=marked):
                chosen = x[:, :2].astype(jnp.int32)
                found = [table[chosen[:, n]] for n, table in enumerate(w["tables"])]
                found = [jnp.tanh(each) for each in found]
            with _branch(1, marked=marked):
                dense = _dense(w["bottom"], x[:, 2:])
            every = jnp.stack([dense, *found], 1)
            pairs = jnp.einsum("bif,bjf->bij", every, every)
            low = jnp.stack([pairs[:, 1, 0], pairs[:, 2, 0], pairs[:, 2, 1]], 1)
        with _stage(1):
            scores = _dense(w["top"], jnp.concatenate([dense, low], 1))
            return jnp.mean((scores - y) ** 2), statistics

    def data(rng: np.random.Generator) -> tuple[Any, Any]:
        x, y = _pair(rng, (8,), 2)
        x[:, :2] = rng.integers(0, 11, (BATCH, 2))
        return x, y

    return Model("recommender", weights, loss, data)


def _heads(*, marked: bool) -> Model:
    """Attention of two heads with weights of their own, and a residual connection around them."""

    def weights(rng: np.random.Generator) -> Tree:
        heads = [{n: _normal(rng, 8, 9) for n in ("q", "k", "v")} for _ in range(2)]
        return {"first": _layers(rng, 6, 8), "heads": heads, "out": _layers(rng, 18, 8, 3)}

    def loss(w: Tree, statistics: Tree, x: Any, y: Any) -> tuple[Any, Tree]:
        with _stage(0):
            x = _dense(w["first"], x)
        with _stage(1):
            made = []
            for number, head in enumerate(w["heads"]):
                with _branch(number, marked=marked):
                    scores = jnp.einsum("bsf,btf->bst", x @ head["q"], x @ head["k"])
                    made.append(jax.nn.softmax(scores) @ (x @ head["v"]))
            mixed = jnp.concatenate(made, -1)
        with _stage(2):
            x = x + _dense(w["out"][:1], mixed)
            return jnp.mean((_dense(w["out"][1:], x)[:, 0] - y) ** 2), statistics

    return Model("heads", weights, loss, lambda rng: _pair(rng, (5, 6), 3))


def _normed(*, marked: bool) -> Model:
    """Convolutions with batch normalisation, whose statistics are of each branch."""

    def weights(rng: np.random.Generator) -> Tree:
        kernels = [_normal(rng, n, n, 2, 4) for n in (1, 3)]
        return {
            "kernels": kernels,
            "scales": [np.ones(4, np.float32)] * 2,
            "head": _layers(rng, 8, 3),
        }

    def loss(w: Tree, statistics: Tree, x: Any, y: Any) -> tuple[Any, Tree]:
        made, new = [], []
        with _stage(0):
            for number, kernel in enumerate(w["kernels"]):
                with _branch(number, marked=marked):
                    z = lax.conv_general_dilated(
                        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
                    )
                    mean, variance = z.mean((0, 1, 2)), z.var((0, 1, 2))
                    old = statistics[number]
                    new.append(
                        {"m": 0.9 * old["m"] + 0.1 * mean, "v": 0.9 * old["v"] + 0.1 * variance}
                    )
                    z = (z - mean) / jnp.sqrt(variance + 1e-3) * w["scales"][number]
                    made.append(jax.nn.relu(z).mean((1, 2)))
            x = jnp.concatenate(made, 1)
        with _stage(1):
            return jnp.mean((_dense(w["head"], x) - y) ** 2), new

    def statistics() -> Tree:
        return [{"m": np.zeros(4, np.float32), "v": np.ones(4, np.float32)} for _ in range(2)]

    return Model(
        "normed", weights, loss, lambda rng: _pair(rng, (5, 5, 2), 3), statistics, couples=True
    )


def _scanned(*, marked: bool) -> Model:
    """A recurrent network beside one that sees the whole sequence at once."""

    def weights(rng: np.random.Generator) -> Tree:
        return {
            "in": _normal(rng, 6, 8), "state": _normal(rng, 8, 8), "flat": _layers(rng, 30, 9, 8),
            "head": _layers(rng, 16, 3),
        }  # fmt: skip

    def loss(w: Tree, statistics: Tree, x: Any, y: Any) -> tuple[Any, Tree]:
        with _stage(0):
            with _branch(0, marked=marked):
                state, _ = lax.scan(
                    lambda h, part: (jnp.tanh(part @ w["in"] + h @ w["state"]), None),
                    jnp.zeros((BATCH, 8)), x.transpose(1, 0, 2),
                )  # fmt: skip
            with _branch(1, marked=marked):
                flat = _dense(w["flat"], x.reshape(BATCH, 30))
            both = jnp.concatenate([state, flat], 1)
        with _stage(1):
            return jnp.mean((_dense(w["head"], both) - y) ** 2), statistics

    return Model("scanned", weights, loss, lambda rng: _pair(rng, (5, 6), 3))


def _tied(*, marked: bool) -> Model:
    """A weight of one tower that what joins them reads once more."""

    def weights(rng: np.random.Generator) -> Tree:
        return {
            "first": _layers(rng, 6, 12), "a": _normal(rng, 12, 12), "b": _normal(rng, 12, 12),
            "head": _layers(rng, 24, 3),
        }  # fmt: skip

    def loss(w: Tree, statistics: Tree, x: Any, y: Any) -> tuple[Any, Tree]:
        with _stage(0):
            x = _dense(w["first"], x)
        with _stage(1):
            with _branch(0, marked=marked):
                a = jnp.tanh(x @ w["a"])
            with _branch(1, marked=marked):
                b = jnp.tanh(jnp.tanh(x @ w["b"]) @ w["b"])
            x = jnp.concatenate([a @ w["b"].T, b], 1) + 1
        with _stage(2):
            return jnp.mean((_dense(w["head"], x) - y) ** 2), statistics

    return Model("tied", weights, loss, lambda rng: _pair(rng, (6,), 3))


def _dropped(*, marked: bool) -> Model:
    """Dropout in both towers, with keys that are split before them."""

    def weights(rng: np.random.Generator) -> Tree:
        return {
            "towers": [_layers(rng, 6, 9), _layers(rng, 6, 10, 9)], "head": _layers(rng, 18, 3),
        }  # fmt: skip

    def loss(w: Tree, statistics: Tree, x: Any, y: Any) -> tuple[Any, Tree]:
        with _stage(0):
            key, *keys = jax.random.split(jax.random.wrap_key_data(statistics), 3)
            made = []
            for number, layers in enumerate(w["towers"]):
                with _branch(number, marked=marked):
                    z = _dense(layers, x)
                    kept = jax.random.bernoulli(keys[number], 0.5, z.shape)
                    made.append(jnp.where(kept, 2 * z, 0.0))
            x = jnp.concatenate(made, 1)
        with _stage(1):
            return jnp.mean((_dense(w["head"], x) - y) ** 2), jax.random.key_data(key)

    return Model(
        "dropped", weights, loss, lambda rng: _pair(rng, (6,), 3),
        lambda: np.array([3, 7], np.uint32), couples=True,
    )  # fmt: skip


def _lines(*, marked: bool) -> Model:
    """Two towers that go on side by side through two stages."""

    def weights(rng: np.random.Generator) -> Tree:
        return {
            "below": [_layers(rng, 6, 10, 10), _layers(rng, 6, 11, 10)],
            "above": [_layers(rng, 10, 12, 10), _layers(rng, 10, 10)], "head": _layers(rng, 20, 3),
        }  # fmt: skip

    def loss(w: Tree, statistics: Tree, x: Any, y: Any) -> tuple[Any, Tree]:
        made = [x, x]
        for stage, part in enumerate(("below", "above")):
            with _stage(stage):
                for number, layers in enumerate(w[part]):
                    with _branch(number, marked=marked):
                        made[number] = _dense(layers, made[number])
        with _stage(2):
            return jnp.mean((_dense(w["head"], jnp.concatenate(made, 1)) - y) ** 2), statistics

    return Model("lines", weights, loss, lambda rng: _pair(rng, (6,), 3))


TOWERS = {
    "concatenated": Towers(lambda marked: _joined(marked=marked, multiplied=False), 3, 1),
    "multiplied": Towers(lambda marked: _joined(marked=marked, multiplied=True), 3, 1),
    "added": Towers(lambda marked: _added(marked=marked), 2, 0, 3),
    "recommender": Towers(lambda marked: _recommender(marked=marked), 2, 0),
    "heads": Towers(lambda marked: _heads(marked=marked), 3, 1),
    "normed": Towers(lambda marked: _normed(marked=marked), 2, 0),
    "scanned": Towers(lambda marked: _scanned(marked=marked), 2, 0),
    "tied": Towers(lambda marked: _tied(marked=marked), 3, 1),
    "dropped": Towers(lambda marked: _dropped(marked=marked), 2, 0),
}
LINES = Towers(lambda marked: _lines(marked=marked), 3, 0)
"""Stage 1 has branches, too."""
