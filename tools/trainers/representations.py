"""Recipes that learn representations: contrast, teachers that follow, latents, noise, pictures."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from tools.trainers.nets import (
    CLIPPED,
    LENGTH,
    ROWS,
    SIZES,
    WORDS,
    classes,
    classified,
    cross_entropy,
    layers,
    normal,
    regression,
    rows,
    supervised,
    through,
    tokens,
    updated,
)
from tools.trainers.recipe import Batch, Metrics, Recipe, Rng, State, Tree

_FIRST, _LAST = SIZES[0], SIZES[-1]
_OWN_KEYS = "each micro-batch draws with a key of its own"


def _unit(x: Any) -> Any:
    return x / jnp.sqrt(jnp.sum(x * x, -1, keepdims=True) + 1e-6)


def _key() -> Any:
    return {"key": np.array([0, 9], np.uint32)}


def _two_towers() -> Recipe:
    """Pictures and texts that belong together against all others of the batch.

    Source: A. Radford et al., "Learning transferable visual models", ICML 2021, figure 3.
    """

    def weights(rng: Rng) -> Tree:
        return {
            "image": layers(rng, (_FIRST, 8, 4)), "scale": np.float32(1.0),
            "text": layers(rng, (_LAST, 7, 4)),
        }  # fmt: skip

    def loss(w: Tree, state: State, x: Any, y: Any) -> Any:
        a, b = _unit(through(w["image"], x)), _unit(through(w["text"], y))
        scores = jnp.exp(jnp.minimum(w["scale"], 4.6)) * a @ b.T
        labels = jnp.arange(len(x))
        total = cross_entropy(scores, labels) + cross_entropy(scores.T, labels)
        right = jnp.mean((jnp.argmax(scores, -1) == labels).astype(jnp.float32))
        return jnp.mean(total) / 2, ((), {"accuracy": right})

    coupled = "samples are told apart from those of their own micro-batch"
    return supervised("clip", loss, weights=weights, coupled=coupled)


def _pairwise_sigmoid() -> Recipe:
    """Pairs judged one by one, with a temperature and a bias that are learned.

    Source: X. Zhai et al., "Sigmoid loss for language image pre-training", ICCV 2023, algorithm 1.
    """

    def weights(rng: Rng) -> Tree:
        return {
            "bias": np.float32(-2.0), "image": layers(rng, (_FIRST, 8, 4)),
            "temperature": np.float32(1.0), "text": layers(rng, (_LAST, 7, 4)),
        }  # fmt: skip

    def loss(w: Tree, state: State, x: Any, y: Any) -> Any:
        a, b = _unit(through(w["image"], x)), _unit(through(w["text"], y))
        scores = jnp.exp(w["temperature"]) * a @ b.T + w["bias"]
        signs = 2 * jnp.eye(len(x)) - 1
        return -jnp.mean(jnp.sum(jax.nn.log_sigmoid(signs * scores), -1)), ((), {})

    coupled = "samples are told apart from those of their own micro-batch"
    return supervised("siglip", loss, weights=weights, coupled=coupled)


def _two_views() -> Recipe:
    """Two views of each sample attract each other.

    Source: T. Chen et al., "A simple framework for contrastive learning", ICML 2020, equation 1.
    """

    def loss(w: Tree, state: State, x: Any, y: Any) -> Any:
        z = _unit(jnp.concatenate([through(w, x), through(w, y)]))
        scores = z @ z.T / 0.5 - 1e9 * jnp.eye(len(z))
        labels = jnp.roll(jnp.arange(len(z)), len(x))
        return jnp.mean(cross_entropy(scores, labels)), ((), {})

    def batch(rng: Rng) -> Batch:
        return rows(rng, _FIRST, _FIRST)

    coupled = "samples are told apart from those of their own micro-batch"
    return supervised("simclr", loss, batch=batch, coupled=coupled)


def _following(name: str, *, queue: bool) -> Recipe:
    """Teach a student by an average of it; `queue`: against earlier features, too.

    Sources: J. Grill et al., "Bootstrap your own latent", NeurIPS 2020, section 3.1; K. He et al.,
    "Momentum contrast", CVPR 2020, algorithm 1.
    """
    optimizer = CLIPPED

    def learned(rng: Rng) -> Tree:
        weights = {"head": layers(rng, (_LAST, 5, _LAST)), "trunk": layers(rng)}
        return {
            "optimizer": optimizer.init(weights), "teacher": layers(rng), "weights": weights
        }  # fmt: skip

    def gradients(state: State, x: Any, y: Any) -> tuple[Tree, Tree, Metrics]:
        wanted = _unit(lax.stop_gradient(through(state.learned["teacher"], y)))

        def loss(w: Tree) -> Any:
            features = _unit(through(w["head"], through(w["trunk"], x)))
            near = jnp.sum(features * wanted, -1)
            if not queue:
                return jnp.mean(2 - 2 * near)
            far = features @ state.carried["queue"].T
            scores = jnp.concatenate([near[:, None], far], 1) / 0.2
            return jnp.mean(cross_entropy(scores, jnp.zeros(len(x), jnp.int32)))

        value, slopes = jax.value_and_grad(loss)(state.learned["weights"])
        new: Tree = ()
        if queue:
            new = {"queue": jnp.concatenate([wanted, state.carried["queue"]])[: 3 * ROWS]}
        return slopes, new, {"loss": value}

    def update(state: State, slopes: Tree) -> tuple[Tree, Metrics]:
        new = updated(optimizer, state.learned, slopes)
        old = state.learned["teacher"]
        trunk = new["weights"]["trunk"]
        return new | {"teacher": jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, old, trunk)}, {}

    def kept() -> Tree:
        first = np.random.default_rng(3).normal(size=(3 * ROWS, _LAST)).astype(np.float32)
        return {"queue": first} if queue else ()

    def batch(rng: Rng) -> Batch:
        return rows(rng, _FIRST, _FIRST)

    coupled = "features of a micro-batch are in the queue of the next one" if queue else ""
    return Recipe(name, learned, batch, gradients, update, kept, coupled=coupled)


def _distilled() -> Recipe:
    """Teach a small network by labels and by the scores of a larger one, which is frozen.

    Source: G. Hinton et al., "Distilling the knowledge in a neural network" (2015), section 2.
    """

    def loss(w: Tree, state: State, x: Any, y: Any) -> Any:
        scores, wise = through(w, x), lax.stop_gradient(through(state.frozen, x))
        soft = jax.nn.softmax(wise / 2)
        told = -jnp.sum(soft * jax.nn.log_softmax(scores / 2), -1)
        return jnp.mean(0.5 * cross_entropy(scores, y) + 2 * told), ((), {})

    def teacher(rng: Rng) -> Tree:
        return layers(rng, (_FIRST, 9, 8, _LAST))

    return supervised("distilled", loss, batch=classes, frozen=teacher)


def _latents() -> Recipe:
    """Return a variational autoencoder, whose latents are drawn with a key that is state.

    Source: D. Kingma, M. Welling, "Auto-encoding variational Bayes", ICLR 2014, equation 10.
    """

    def weights(rng: Rng) -> Tree:
        return {"from": layers(rng, (3, 7, _FIRST)), "to": layers(rng, (_FIRST, 8, 6))}

    def loss(w: Tree, state: State, x: Any) -> Any:
        key, own = jax.random.split(state.carried["key"])
        mean, log = jnp.split(through(w["to"], x), 2, -1)
        z = mean + jnp.exp(0.5 * log) * jax.random.normal(own, mean.shape)
        error = jnp.sum((through(w["from"], z) - x) ** 2, -1)
        apart = -0.5 * jnp.sum(1 + log - mean**2 - jnp.exp(log), -1)
        metrics = {"divergence": jnp.mean(apart), "error": jnp.mean(error)}
        return jnp.mean(error + apart), ({"key": key}, metrics)

    return supervised(
        "vae", loss, weights=weights, batch=lambda rng: rows(rng, _FIRST), carried=_key,
        coupled=_OWN_KEYS,
    )  # fmt: skip


def _noised(*, typed: bool) -> Recipe:
    """Predict the noise that was added at a random time; weights are averaged for sampling.

    Source: J. Ho et al., "Denoising diffusion probabilistic models", NeurIPS 2020, algorithm 1.
    """
    steps = 8
    kept = np.cumprod(1 - np.linspace(1e-3, 0.3, steps)).astype(np.float32)
    optimizer = CLIPPED

    def learned(rng: Rng) -> Tree:
        net = layers(rng, (_FIRST + 4, 9, _FIRST))
        weights = {"net": net, "times": normal(rng, steps, 4)}
        return {
            "average": jax.tree.map(np.copy, weights), "optimizer": optimizer.init(weights),
            "weights": weights,
        }  # fmt: skip

    def gradients(state: State, x: Any) -> tuple[Tree, Tree, Metrics]:
        key, first, second = jax.random.split(state.carried["key"], 3)
        time = jax.random.randint(first, (len(x),), 0, steps)
        noise = jax.random.normal(second, x.shape)
        share = jnp.asarray(kept)[time][:, None]
        noisy = jnp.sqrt(share) * x + jnp.sqrt(1 - share) * noise

        def loss(w: Tree) -> Any:
            given = jnp.concatenate([noisy, w["times"][time]], -1)
            return jnp.mean((through(w["net"], given) - noise) ** 2)

        value, slopes = jax.value_and_grad(loss)(state.learned["weights"])
        return slopes, {"key": key}, {"loss": value}

    def update(state: State, slopes: Tree) -> tuple[Tree, Metrics]:
        new = updated(optimizer, state.learned, slopes)
        average = optax.incremental_update(new["weights"], state.learned["average"], 0.01)
        return new | {"average": average}, {}

    def begin() -> Tree:
        return {"key": jax.random.key(9)} if typed else _key()

    name = "diffusion_typed_key" if typed else "diffusion"
    return Recipe(
        name, learned, lambda rng: rows(rng, _FIRST), gradients, update, begin, coupled=_OWN_KEYS
    )


def _flow() -> Recipe:
    """Predict the direction from noise to data at times that the batch brings along."""

    def loss(w: Tree, state: State, x: Any, noise: Any, time: Any) -> Any:
        between = (1 - time) * noise + time * x
        direction = through(w, jnp.concatenate([between, jnp.sin(6 * time)], -1))
        return jnp.mean((direction - (x - noise)) ** 2), ((), {})

    def weights(rng: Rng) -> Tree:
        return layers(rng, (_FIRST + 1, 9, _FIRST))

    def batch(rng: Rng) -> Batch:
        return *rows(rng, _FIRST, _FIRST), rng.uniform(size=(ROWS, 1)).astype(np.float32)

    return supervised("flow_matching", loss, weights=weights, batch=batch)


def _picture_net(*, dropout: bool) -> Recipe:
    """Convolutions, batch normalisation with moving averages, and dropout with a key."""

    def weights(rng: Rng) -> Tree:
        return {
            "conv": normal(rng, 3, 3, 2, 4), "dense": normal(rng, 4, _LAST),
            "scale": np.ones(4, np.float32), "shift": np.zeros(4, np.float32),
        }  # fmt: skip

    def loss(w: Tree, state: State, x: Any, y: Any) -> Any:
        old = dict(state.carried)
        x = lax.conv_general_dilated(
            x, w["conv"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        mean, spread = jnp.mean(x, (0, 1, 2)), jnp.var(x, (0, 1, 2))
        new = {
            "mean": 0.9 * old["mean"] + 0.1 * lax.stop_gradient(mean),
            "var": 0.9 * old["var"] + 0.1 * lax.stop_gradient(spread),
        }
        x = jax.nn.relu((x - mean) * lax.rsqrt(spread + 1e-3) * w["scale"] + w["shift"])
        x = jnp.mean(x, (1, 2))
        if dropout:
            new["key"], own = jax.random.split(old["key"])
            x = jnp.where(jax.random.bernoulli(own, 0.8, x.shape), x / 0.8, 0)
        scores = x @ w["dense"]
        right = jnp.mean((jnp.argmax(scores, -1) == y).astype(jnp.float32))
        return jnp.mean(cross_entropy(scores, y)), (new, {"accuracy": right})

    def batch(rng: Rng) -> Batch:
        images = rng.normal(size=(ROWS, 5, 5, 2)).astype(np.float32)
        return images, rng.integers(0, _LAST, ROWS).astype(np.int32)

    def kept() -> Tree:
        statistics = {"mean": np.zeros(4, np.float32), "var": np.ones(4, np.float32)}
        return statistics | _key() if dropout else statistics

    name = "batch_norm_dropout" if dropout else "batch_norm"
    coupled = "means and variances are those of the micro-batch"
    return supervised(
        name, loss, optax.sgd(0.1, 0.9), weights, batch, carried=kept, coupled=coupled
    )


def _normed_weights() -> Recipe:
    """Weights as a direction and a length.

    Source: T. Salimans, D. Kingma, "Weight normalization", NeurIPS 2016, equation 2.
    """

    def weights(rng: Rng) -> Tree:
        return [
            {"b": x["b"], "g": np.ones(x["w"].shape[1], np.float32), "v": x["w"]}
            for x in layers(rng)
        ]

    def loss(w: Tree, state: State, x: Any, y: Any) -> Any:
        plain = [
            {"b": each["b"], "w": each["g"] * each["v"] / jnp.linalg.norm(each["v"], axis=0)}
            for each in w
        ]
        return jnp.mean((through(plain, x) - y) ** 2), ((), {})

    return supervised("weight_norm", loss, weights=weights)


def _bounded_weights() -> Recipe:
    """Weights over their largest singular value, followed by a power iteration.

    Source: T. Miyato et al., "Spectral normalization", ICLR 2018, algorithm 1.
    """

    def loss(w: Tree, state: State, x: Any, y: Any) -> Any:
        new, plain = [], []
        for each, u in zip(w, state.carried, strict=True):
            v = _unit(lax.stop_gradient(each["w"]).T @ u)
            u = _unit(lax.stop_gradient(each["w"]) @ v)
            new.append(u)
            plain.append({"b": each["b"], "w": each["w"] / (u @ each["w"] @ v)})
        return jnp.mean((through(plain, x) - y) ** 2), (new, {})

    def kept() -> Tree:
        return [np.full(n, 1 / np.sqrt(n), np.float32) for n in SIZES[:-1]]

    coupled = "each micro-batch goes a step of the power iteration"
    return supervised("spectral_norm", loss, carried=kept, coupled=coupled)


def _physics() -> Recipe:
    """Return a network that obeys an equation in its second derivative, and boundary values.

    Source: M. Raissi et al., "Physics-informed neural networks", J. Comp. Physics 378 (2019).
    """

    def weights(rng: Rng) -> Tree:
        return layers(rng, (1, 8, 6, 1))

    def loss(w: Tree, state: State, x: Any, edge: Any, value: Any) -> Any:
        def u(x: Any) -> Any:
            return through(w, x[None, None])[0, 0]

        bent = jax.vmap(jax.grad(jax.grad(u)))(x[:, 0])
        inside = jnp.mean((bent + jnp.sin(3 * x[:, 0])) ** 2)
        outside = jnp.mean((through(w, edge) - value) ** 2)
        return inside + outside, ((), {"inside": inside, "outside": outside})

    def batch(rng: Rng) -> Batch:
        return rows(rng, 1, 1, 1)

    return supervised("physics_informed", loss, optax.adam(1e-2, eps=1e-3), weights, batch)


def _alignments() -> Recipe:
    """Labels that are aligned with longer inputs, by sums over all paths."""

    def loss(w: Tree, state: State, x: Any, y: Any) -> Any:
        scores = through(w, x)
        zeros = jnp.zeros(scores.shape[:2])
        return jnp.mean(optax.ctc_loss(scores, zeros, y, jnp.zeros(y.shape))), ((), {})

    def batch(rng: Rng) -> Batch:
        x = rng.normal(size=(ROWS, LENGTH, _FIRST)).astype(np.float32)
        return x, rng.integers(1, _LAST, (ROWS, 2)).astype(np.int32)

    return supervised("ctc", loss, batch=batch)


def _weighed_words() -> Recipe:
    """Return a recurrent language model with tied words, smoothed labels and weighed tokens."""

    def weights(rng: Rng) -> Tree:
        return {
            "b": np.zeros(WORDS, np.float32), "h": normal(rng, 8, 24),
            "words": normal(rng, WORDS, 8), "x": normal(rng, 8, 24),
        }  # fmt: skip

    def loss(w: Tree, state: State, x: Any, y: Any, mask: Any) -> Any:
        def cell(h: Any, part: Any) -> tuple[Any, Any]:
            r, z, n = jnp.split(part @ w["x"] + h @ w["h"], 3, -1)
            z = jax.nn.sigmoid(z)
            h = (1 - z) * jnp.tanh(n * jax.nn.sigmoid(r)) + z * h
            return h, h

        inputs = jnp.swapaxes(w["words"][x], 0, 1)
        _, hidden = lax.scan(cell, jnp.zeros((len(x), 8)), inputs)
        scores = jnp.swapaxes(hidden, 0, 1) @ w["words"].T + w["b"]
        wanted = optax.smooth_labels(jax.nn.one_hot(y, WORDS), 0.1)
        each = optax.softmax_cross_entropy(scores, wanted)
        return jnp.sum(each * mask) / jnp.sum(mask), ((), {"tokens": jnp.sum(mask)})

    def batch(rng: Rng) -> Batch:
        return *tokens(rng), rng.integers(0, 2, (ROWS, LENGTH)).astype(np.float32) + 0.25

    coupled = "each micro-batch divides by its own weights of tokens"
    return supervised("recurrent_words", loss, weights=weights, batch=batch, coupled=coupled)


def _codes() -> Recipe:
    """Latents replaced by the nearest code; codes follow as moving averages.

    Source: A. van den Oord et al., "Neural discrete representation learning", NeurIPS 2017,
    appendix A.1.
    """
    count = 6

    def weights(rng: Rng) -> Tree:
        return {"from": layers(rng, (4, 7, _FIRST)), "to": layers(rng, (_FIRST, 8, 4))}

    def loss(w: Tree, state: State, x: Any) -> Any:
        old = state.carried
        z = through(w["to"], x)
        codes = old["sums"] / old["counts"][:, None]
        far = jnp.sum((z[:, None] - codes) ** 2, -1)
        chosen = jax.nn.one_hot(jnp.argmin(far, -1), count)
        near = chosen @ codes
        through_code = z + lax.stop_gradient(near - z)
        new = {
            "counts": 0.9 * old["counts"] + 0.1 * jnp.sum(chosen, 0),
            "sums": 0.9 * old["sums"] + 0.1 * chosen.T @ lax.stop_gradient(z),
        }
        error = jnp.mean((through(w["from"], through_code) - x) ** 2)
        return error + 0.25 * jnp.mean((z - lax.stop_gradient(near)) ** 2), (new, {})

    def kept() -> Tree:
        first = np.random.default_rng(4).normal(size=(count, 4)).astype(np.float32)
        return {"counts": np.ones(count, np.float32), "sums": first}

    return supervised(
        "vector_quantised", loss, weights=weights, batch=lambda rng: rows(rng, _FIRST),
        carried=kept, coupled="codes follow micro-batch by micro-batch",
    )  # fmt: skip


def _decorrelated() -> Recipe:
    """Two views whose correlations over the batch are to be those of one.

    Source: J. Zbontar et al., "Barlow twins", ICML 2021, equation 1.
    """

    def loss(w: Tree, state: State, x: Any, y: Any) -> Any:
        def normed(z: Any) -> Any:
            return (z - jnp.mean(z, 0)) / (jnp.std(z, 0) + 0.1)

        c = normed(through(w, x)).T @ normed(through(w, y)) / len(x)
        return jnp.sum((c - jnp.eye(_LAST)) ** 2 * (0.05 + 0.95 * jnp.eye(_LAST))), ((), {})

    return supervised(
        "barlow_twins", loss, batch=lambda rng: rows(rng, _FIRST, _FIRST),
        coupled="correlations are those of the micro-batch",
    )  # fmt: skip


def representations() -> list[Recipe]:
    """Return the recipes."""
    return [
        _two_towers(), _pairwise_sigmoid(), _two_views(), _following("byol", queue=False),
        _following("moco", queue=True), _distilled(), _latents(), _noised(typed=False),
        _noised(typed=True), _flow(), _picture_net(dropout=False), _picture_net(dropout=True),
        _normed_weights(), _bounded_weights(), _physics(), _alignments(), _weighed_words(),
        _codes(), _decorrelated(),
        replace(supervised("classifier", classified, batch=classes), metrics_first=True),
        supervised("plain_descent", batch=regression, optimizer=optax.sgd(0.1)),
    ]  # fmt: skip
