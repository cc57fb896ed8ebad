"""Recipes whose updates are chains of transformations, as optax has them and papers describe."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib

from tools.trainers.nets import (
    CLIPPED,
    classes,
    classified,
    layers,
    regression,
    squares,
    supervised,
    updated,
)
from tools.trainers.recipe import Metrics, Recipe, Refusal, Rng, State, Tree

_WARM = optax.warmup_cosine_decay_schedule(1e-3, 1e-2, 3, 20)


def _of_optax() -> list[Recipe]:
    """Return one recipe for each transformation that has nothing else to it."""
    is_matrix = lambda tree: jax.tree.map(lambda x: x.ndim > 1, tree)  # noqa: E731
    named = lambda tree: jax.tree_util.tree_map_with_path(  # noqa: E731
        lambda path, _: str(path[-1].key), tree
    )
    two = optax.multi_transform({"w": optax.adam(1e-2), "b": optax.sgd(0.1, 0.9)}, named)
    chains = {
        "clip_by_value": optax.chain(optax.clip(0.02), optax.adam(1e-2)),
        "clip_adaptively": optax.chain(optax.adaptive_grad_clip(0.05), optax.sgd(0.1, 0.9)),
        "clip_by_block": optax.chain(optax.clip_by_block_rms(0.01), optax.sgd(0.1)),
        "decay_masked": optax.chain(
            optax.clip_by_global_norm(0.5), optax.adamw(1e-2, weight_decay=0.1, mask=is_matrix)
        ),
        "parts_of_trees": two,
        "if_finite": optax.apply_if_finite(optax.adamw(1e-2), 3),
        "every_second_step": optax.MultiSteps(optax.adam(1e-2), 2),
        "adafactor": optax.adafactor(1e-2, min_dim_size_to_factor=4),
        "lamb": optax.lamb(1e-2, weight_decay=0.01),
        "lars": optax.lars(0.1, weight_decay=1e-3),
        "lion": optax.lion(1e-3),
        "adagrad": optax.adagrad(0.1),
        "rmsprop": optax.rmsprop(1e-2, centered=True, momentum=0.9),
        "nadamw": optax.nadamw(1e-2),
        "adabelief": optax.adabelief(1e-2),
        "radam": optax.radam(1e-2, threshold=1.5),
        "amsgrad": optax.amsgrad(1e-2),
        "adan": optax.adan(1e-2),
        "yogi": optax.yogi(1e-2),
        "muon": optax.contrib.muon(1e-2),
        "prodigy": optax.contrib.prodigy(),
        "d_adaptation": optax.contrib.dadapt_adamw(),
        "ademamix": optax.contrib.ademamix(1e-2),
        "centralised": optax.chain(optax.centralize(), optax.sgd(0.1, 0.9, nesterov=True)),
        "signs": optax.sign_sgd(1e-3),
        "noisy": optax.noisy_sgd(0.1, eta=0.01, key=0),
        "averaged_gradients": optax.chain(optax.ema(0.9), optax.sgd(0.1)),
        "rate_as_state": optax.inject_hyperparams(optax.adamw)(learning_rate=_WARM),
        "momentum_in_bf16": optax.adam(1e-2, mu_dtype=jnp.bfloat16),
    }
    every_recipe = [supervised(f"optax_{name}", optimizer=x) for name, x in chains.items()]
    return [replace(x, near=1e-2) if x.name.endswith("in_bf16") else x for x in every_recipe]


def _measured() -> Recipe:
    """Norms, rates and counts of tokens beside the loss, as trainers print them."""
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(_WARM))

    def update(state: State, slopes: Tree) -> tuple[Tree, Metrics]:
        step = state.learned["step"]
        new = updated(optimizer, state.learned, slopes) | {"step": step + 1}
        return new, {
            "grad_norm": optax.tree.norm(slopes),
            "learning_rate": _WARM(step),
            "param_norm": optax.tree.norm(new["weights"]),
            "step": step,
        }

    def learned(rng: Rng) -> Tree:
        weights = layers(rng)
        return {"optimizer": optimizer.init(weights), "step": np.int32(0), "weights": weights}

    plain = supervised("measured", classified, optimizer, batch=classes, update=update)
    return replace(plain, learned=learned)


def _with_average(name: str, optimizer: Any, average: Callable[[Tree, Tree, Any], Tree]) -> Recipe:
    """Keep an average of the weights, made of them after each update."""

    def learned(rng: Rng) -> Tree:
        weights = layers(rng)
        return {
            "average": jax.tree.map(np.copy, weights), "count": np.int32(0),
            "optimizer": optimizer.init(weights), "weights": weights,
        }  # fmt: skip

    def update(state: State, slopes: Tree) -> tuple[Tree, Metrics]:
        new = updated(optimizer, state.learned, slopes)
        count = state.learned["count"] + 1
        new["average"] = average(state.learned["average"], new["weights"], count)
        return new | {"count": count}, {}

    return replace(supervised(name, optimizer=optimizer, update=update), learned=learned)


def _debiased(old: Tree, new: Tree, count: Any) -> Tree:
    decay = jnp.minimum(0.999, (1.0 + count) / (10.0 + count))
    return jax.tree.map(lambda a, b: decay * a + (1 - decay) * b, old, new)


def _every_third(old: Tree, new: Tree, count: Any) -> Tree:
    """Stochastic weight averaging: a mean over every third update's weights."""
    share = 1.0 / (1.0 + count // 3)
    return jax.tree.map(lambda a, b: jnp.where(count % 3 == 1, a + (b - a) * share, a), old, new)


def _lookahead() -> Recipe:
    optimizer = optax.lookahead(optax.adam(1e-2), sync_period=2, slow_step_size=0.5)

    def learned(rng: Rng) -> Tree:
        weights = optax.LookaheadParams.init_synced(layers(rng))
        return {"optimizer": optimizer.init(weights), "weights": weights}

    def gradients(state: State, x: Any, y: Any) -> tuple[Tree, Tree, Metrics]:
        def loss(fast: Tree) -> Any:
            return squares(fast, state, x, y)[0]

        value, slopes = jax.value_and_grad(loss)(state.learned["weights"].fast)
        return slopes, (), {"loss": value}

    plain = supervised("lookahead", optimizer=optimizer)
    return replace(plain, learned=learned, gradients=gradients)


def _schedule_free() -> Recipe:
    optimizer = optax.contrib.schedule_free_adamw(1e-2, warmup_steps=3)

    def update(state: State, slopes: Tree) -> tuple[Tree, Metrics]:
        new = updated(optimizer, state.learned, slopes)
        return new, {"size": optax.tree.norm(new["weights"])}

    return supervised("schedule_free", optimizer=optimizer, update=update)


def _by_hand(name: str, change: Callable[[Any, Any, Any], tuple[Any, Any]], begin: Any) -> Recipe:
    """Return a recipe whose update maps (gradient, state, weight) to a change and new state."""

    def start(weights: Tree) -> Tree:
        return [begin(w) for w in jax.tree.leaves(weights)]

    def update(slopes: Tree, state: Tree, weights: Tree) -> tuple[Tree, Tree]:
        flat, tree = jax.tree.flatten(slopes)
        changes = [
            change(g, s, w) for g, s, w in zip(flat, state, jax.tree.leaves(weights), strict=True)
        ]
        return tree.unflatten([x for x, _ in changes]), [x for _, x in changes]

    return supervised(name, optimizer=optax.GradientTransformation(start, update))


def _sophia(g: Any, state: Any, w: Any) -> tuple[Any, Any]:
    """Clip momentum by an estimate of curvature.

    Source: H. Liu et al., "Sophia", ICLR 2024, algorithm 3, with squares of gradients.
    """
    m, h = state
    m, h = 0.9 * m + 0.1 * g, 0.95 * h + 0.05 * g * g
    return -1e-2 * jnp.clip(m / jnp.maximum(0.5 * h, 1e-4), -1, 1) - 1e-3 * w, (m, h)


def _shampoo(g: Any, state: Any, w: Any) -> tuple[Any, Any]:
    """Precondition matrices on both sides by inverse roots that Newton's iteration finds.

    Source: V. Gupta et al., "Shampoo", ICML 2018, algorithm 1.
    """
    if g.ndim < 2:
        (total,) = state
        return -0.1 * g / jnp.sqrt(total + g * g + 1e-3), (total + g * g,)
    left, right = state[0] + g @ g.T, state[1] + g.T @ g
    return -0.1 * _inverse_root(left) @ g @ _inverse_root(right), (left, right)


def _inverse_root(a: Any) -> Any:
    """Return the inverse square root of a symmetric matrix."""
    one = jnp.eye(len(a))
    size = jnp.trace(a) + 0.1
    y, z = a / size + 1e-2 * one, one
    for _ in range(4):
        t = 1.5 * one - 0.5 * z @ y
        y, z = y @ t, t @ z
    return z / jnp.sqrt(size)


def _roots(w: Any) -> Any:
    sides = w.shape if w.ndim > 1 else ()
    return tuple(0.1 * np.eye(n, dtype=np.float32) for n in sides) or (np.zeros_like(w),)


def _sharpened() -> Recipe:
    """Take the gradient beside the weights, along the first gradient.

    Source: P. Foret et al., "Sharpness-Aware Minimization", ICLR 2021, algorithm 1.
    """

    def gradients(state: State, x: Any, y: Any) -> tuple[Tree, Tree, Metrics]:
        def loss(weights: Tree) -> Any:
            return squares(weights, state, x, y)[0]

        weights = state.learned["weights"]
        value, first = jax.value_and_grad(loss)(weights)
        size = 0.2 / (optax.tree.norm(first) + 1e-12)
        beside = jax.tree.map(lambda w, g: w + size * g, weights, first)
        return jax.grad(loss)(beside), (), {"loss": value}

    coupled = "each micro-batch climbs along its own gradient"
    return replace(supervised("sam", coupled=coupled), gradients=gradients)


def _scaled() -> Recipe:
    """Multiply in f16, with a scale of the loss that halves on overflow."""
    optimizer = optax.sgd(0.1, momentum=0.9)

    def learned(rng: Rng) -> Tree:
        weights = layers(rng)
        return {
            "good": np.int32(0), "optimizer": optimizer.init(weights),
            "scale": np.float32(1024), "weights": weights,
        }  # fmt: skip

    def gradients(state: State, x: Any, y: Any) -> tuple[Tree, Tree, Metrics]:
        def loss(weights: Tree) -> tuple[Any, Any]:
            half = jax.tree.map(lambda w: w.astype(jnp.float16), weights)
            value, _ = squares(half, state, x.astype(jnp.float16), y.astype(jnp.float16))
            value = value.astype(jnp.float32)
            return value * state.learned["scale"], value

        (_, value), slopes = jax.value_and_grad(loss, has_aux=True)(state.learned["weights"])
        return slopes, (), {"loss": value}

    def update(state: State, slopes: Tree) -> tuple[Tree, Metrics]:
        old = state.learned
        slopes = jax.tree.map(lambda g: g / old["scale"], slopes)
        finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(slopes)]))
        new = updated(optimizer, {k: old[k] for k in ("optimizer", "weights")}, slopes)
        new = jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, {k: old[k] for k in new})
        good = jnp.where(finite, old["good"] + 1, 0)
        grown = jnp.where(good == 2, old["scale"] * 2, old["scale"])
        scale = jnp.where(finite, grown, jnp.maximum(old["scale"] / 2, 1))
        return {**new, "good": jnp.where(good == 2, 0, good), "scale": scale}, {"scale": scale}

    plain = supervised("loss_scaled", optimizer=optimizer, update=update, near=2e-2, absolute=2e-3)
    return replace(plain, learned=learned, gradients=gradients)


def _masters() -> Recipe:
    """Weights are bf16; the update keeps f32 masters of them."""
    optimizer = optax.adamw(1e-2)

    def learned(rng: Rng) -> Tree:
        masters = layers(rng)
        narrow = jax.tree.map(lambda w: jnp.asarray(w, jnp.bfloat16), masters)
        return {"masters": masters, "optimizer": optimizer.init(masters), "weights": narrow}

    def update(state: State, slopes: Tree) -> tuple[Tree, Metrics]:
        wide = jax.tree.map(lambda g: g.astype(jnp.float32), slopes)
        old = {"optimizer": state.learned["optimizer"], "weights": state.learned["masters"]}
        new = updated(optimizer, old, wide)
        narrow = jax.tree.map(lambda w: w.astype(jnp.bfloat16), new["weights"])
        return {
            "masters": new["weights"], "optimizer": new["optimizer"], "weights": narrow
        }, {"grad_norm": optax.tree.norm(wide)}  # fmt: skip

    def narrow_squares(w: Tree, state: State, x: Any, y: Any) -> Any:
        out, rest = squares(w, state, x.astype(jnp.bfloat16), y.astype(jnp.bfloat16))
        return out.astype(jnp.float32), rest

    plain = supervised("bf16_masters", narrow_squares, optimizer, update=update, near=6e-2)
    return replace(plain, learned=learned, absolute=2e-2)


def _by_the_loss(name: str, optimizer: Any, refusal: Refusal) -> Recipe:
    """Return a recipe whose update reads the value of the loss, which is the batch's."""

    def gradients(state: State, x: Any, y: Any) -> tuple[Tree, Tree, Metrics]:
        def loss(weights: Tree) -> Any:
            return squares(weights, state, x, y)[0]

        value, slopes = jax.value_and_grad(loss)(state.learned["weights"])
        return (slopes, value), (), {"loss": value}

    def update(state: State, given: Tree) -> tuple[Tree, Metrics]:
        slopes, value = given
        return updated(optimizer, state.learned, slopes, value=value), {}

    plain = supervised(name, optimizer=optimizer, update=update)
    return replace(plain, gradients=gradients, refusals={"": refusal})


def _private() -> Recipe:
    """Clip the gradient of each sample, and add noise to their mean once.

    Source: M. Abadi et al., "Deep Learning with Differential Privacy", CCS 2016, algorithm 1.
    """
    optimizer = optax.sgd(0.1)

    def learned(rng: Rng) -> Tree:
        weights = layers(rng)
        return {
            "key": np.array([0, 5], np.uint32), "optimizer": optimizer.init(weights),
            "weights": weights,
        }  # fmt: skip

    def gradients(state: State, x: Any, y: Any) -> tuple[Tree, Tree, Metrics]:
        def loss(weights: Tree, x: Any, y: Any) -> Any:
            return squares(weights, state, x[None], y[None])[0]

        each = jax.vmap(jax.value_and_grad(loss), (None, 0, 0))
        values, slopes = each(state.learned["weights"], x, y)
        sizes = jax.vmap(optax.tree.norm)(slopes)
        factors = 1 / jnp.maximum(1.0, sizes / 0.5)
        slopes = jax.tree.map(lambda g: jnp.einsum("n,n...->...", factors, g) / len(x), slopes)
        return slopes, (), {"loss": jnp.mean(values)}

    def update(state: State, slopes: Tree) -> tuple[Tree, Metrics]:
        key, own = jax.random.split(state.learned["key"])
        flat, tree = jax.tree.flatten(slopes)
        keys = jax.random.split(own, len(flat))
        noisy = [g + 0.01 * jax.random.normal(k, g.shape) for g, k in zip(flat, keys, strict=True)]
        return updated(optimizer, state.learned, tree.unflatten(noisy)) | {"key": key}, {}

    plain = supervised("private", optimizer=optimizer, update=update)
    return replace(plain, learned=learned, gradients=gradients)


def chains() -> list[Recipe]:
    """Return the recipes."""
    return [
        *_of_optax(),
        _measured(),
        _with_average("averaged", CLIPPED, _debiased),
        _with_average("averaged_in_turn", optax.sgd(0.1, 0.9), _every_third),
        _lookahead(),
        _schedule_free(),
        _by_hand("sophia", _sophia, lambda w: (np.zeros_like(w), np.zeros_like(w))),
        _by_hand("shampoo", _shampoo, _roots),
        _sharpened(),
        _scaled(),
        _masters(),
        _by_the_loss(
            "polyak_steps",
            optax.polyak_sgd(0.5),
            Refusal("E0502", "the update reads the loss, of which there are several"),
        ),
        _by_the_loss(
            "plateau",
            optax.chain(optax.adam(1e-2), optax.contrib.reduce_on_plateau(patience=1)),
            Refusal("E0502", "the update follows the loss, of which there are several"),
        ),
        _private(),
        replace(supervised("not_donated", batch=regression), donates=False),
        replace(_measured(), name="not_donated_measured", donates=False, metrics_first=True),
    ]
