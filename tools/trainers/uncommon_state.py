"""Recipes whose state or results are uncommon: counters, histories, momentum in eight bits."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tools.trainers.nets import (
    LENGTH,
    ROWS,
    SIZES,
    layers,
    regression,
    squares,
    supervised,
    through,
    updated,
)
from tools.trainers.recipe import Batch, Metrics, Recipe, Refusal, Rng, State, Tree

_FIRST, _LAST = SIZES[0], SIZES[-1]
_OWN_KEYS = "each micro-batch draws with a key of its own"
_ADAM = optax.adam(1e-2, eps=1e-4)


def _loss_slopes(weights: Tree, state: State, x: Any, y: Any) -> tuple[Any, Tree]:
    value, slopes = jax.value_and_grad(lambda w: squares(w, state, x, y)[0])(weights)
    return value, slopes


def _dropped(weights: Tree, key: Any, x: Any, y: Any) -> Any:
    h = jnp.tanh(x @ weights[0]["w"] + weights[0]["b"])
    h = jnp.where(jax.random.bernoulli(key, 0.75, h.shape), h / 0.75, 0)
    return jnp.mean((through(weights[1:], h) - y) ** 2)


def _one_counter(name: str, *, schedules: bool) -> Recipe:
    """Return a recipe whose step folds into the key of dropout; `schedules`: the rate, too."""

    def weights(rng: Rng) -> Tree:
        return layers(rng)

    def begin(rng: Rng) -> Tree:
        first = weights(rng)
        return {"optimizer": _ADAM.init(first), "weights": first}

    def gradients(state: State, x: Any, y: Any) -> tuple[Tree, Tree, Metrics]:
        key = jax.random.fold_in(state.frozen, state.carried["step"])
        value, slopes = jax.value_and_grad(_dropped)(state.learned["weights"], key, x, y)
        return slopes, {"step": state.carried["step"] + 1}, {"loss": value}

    def update(state: State, slopes: Tree) -> tuple[Tree, Metrics]:
        if not schedules:
            return updated(_ADAM, state.learned, slopes), {}
        rate = 0.1 / (1 + state.carried["step"].astype(jnp.float32))
        new = jax.tree.map(lambda w, g: w - rate * g, state.learned["weights"], slopes)
        return state.learned | {"weights": new}, {}

    refusal = Refusal("E0505", "one counter cannot count micro-batches and updates")
    return Recipe(
        name, begin, regression, gradients, update, lambda: {"step": np.int32(0)},
        lambda _: np.array([0, 8], np.uint32), coupled=_OWN_KEYS,
        refusals={"": refusal} if schedules else {},
    )  # fmt: skip


def _annealed() -> Recipe:
    """Return a recipe whose penalty grows with a counter that the loss reads."""

    def loss(w: Tree, state: State, x: Any, y: Any) -> Any:
        step = state.carried["step"]
        share = jnp.minimum(1.0, step / 10)
        out = through(w, x)
        return jnp.mean((out - y) ** 2) + share * jnp.mean(jnp.abs(out)), ({"step": step + 1}, {})

    return supervised(
        "annealed", loss, carried=lambda: {"step": np.int32(0)},
        coupled="the counter that the loss reads counts micro-batches",
    )  # fmt: skip


def _skipping() -> Recipe:
    """Return a recipe that leaves everything as it was where the loss is no number."""

    def gradients(state: State, x: Any, y: Any) -> tuple[Tree, Tree, Metrics]:
        value, slopes = _loss_slopes(state.learned["weights"], state, x, y)
        return (slopes, value), (), {"loss": value}

    def update(state: State, given: Tree) -> tuple[Tree, Metrics]:
        slopes, value = given
        new = updated(_ADAM, state.learned, slopes)
        fine = jnp.isfinite(value)
        return jax.tree.map(lambda a, b: jnp.where(fine, a, b), new, state.learned), {}

    refusal = Refusal("E0502", "the update reads the loss, of which there are several")
    plain = supervised("skips_bad_losses", optimizer=_ADAM, update=update)
    return replace(plain, gradients=gradients, refusals={"": refusal})


def _clipped_by_history() -> Recipe:
    """Return a recipe that clips by a moving average of norms."""

    def learned(rng: Rng) -> Tree:
        weights = layers(rng)
        return {"norm": np.float32(0.1), "optimizer": _ADAM.init(weights), "weights": weights}

    def update(state: State, slopes: Tree) -> tuple[Tree, Metrics]:
        size = optax.tree.norm(slopes)
        usual = state.learned["norm"]
        factor = jnp.minimum(1.0, 1.1 * usual / (size + 1e-6))
        new = updated(_ADAM, state.learned, jax.tree.map(lambda g: g * factor, slopes))
        return new | {"norm": 0.9 * usual + 0.1 * factor * size}, {"clipped": factor}

    return replace(supervised("clip_by_history", update=update), learned=learned)


def _by_counts() -> Recipe:
    """Return a recipe that adds up losses and divides gradients by the count of tokens."""

    def gradients(state: State, x: Any, y: Any, mask: Any) -> tuple[Tree, Tree, Metrics]:
        def loss(w: Tree) -> Any:
            return jnp.sum(jnp.sum((through(w, x) - y) ** 2, -1) * mask)

        value, slopes = jax.value_and_grad(loss)(state.learned["weights"])
        return (slopes, jnp.sum(mask)), (), {"loss": value}

    def update(state: State, given: Tree) -> tuple[Tree, Metrics]:
        slopes, count = given
        return updated(_ADAM, state.learned, jax.tree.map(lambda g: g / count, slopes)), {}

    def batch(rng: Rng) -> Batch:
        return *regression(rng), 1 + rng.integers(0, 2, ROWS).astype(np.float32)

    refusal = Refusal("E0502", "the count of a batch is not a gradient; divide the loss by it")
    plain = supervised("divided_by_counts", batch=batch, optimizer=_ADAM, update=update)
    return replace(plain, gradients=gradients, refusals={"": refusal})


def _narrow_momentum() -> Recipe:
    """Return a recipe whose momentum is kept in eight bits with a scale for each array.

    Source: T. Dettmers et al., "8-bit optimizers via block-wise quantization", ICLR 2022.
    """

    def learned(rng: Rng) -> Tree:
        weights = layers(rng)
        return {
            "momentum": jax.tree.map(lambda w: np.zeros(w.shape, np.int8), weights),
            "scales": jax.tree.map(lambda w: np.float32(1e-3), weights), "weights": weights,
        }  # fmt: skip

    def update(state: State, slopes: Tree) -> tuple[Tree, Metrics]:
        old = state.learned
        wide = jax.tree.map(
            lambda m, s, g: 0.9 * m.astype(jnp.float32) * s + g,
            old["momentum"],
            old["scales"],
            slopes,
        )
        scales = jax.tree.map(lambda m: jnp.max(jnp.abs(m)) / 127 + 1e-12, wide)
        return {
            "momentum": jax.tree.map(lambda m, s: jnp.round(m / s).astype(jnp.int8), wide, scales),
            "scales": scales,
            "weights": jax.tree.map(lambda w, m: w - 0.05 * m, old["weights"], wide),
        }, {}

    return replace(supervised("momentum_in_eight_bits", update=update), learned=learned)


def _largest_only() -> Recipe:
    """Return a recipe that applies the largest gradients and keeps the rest for later.

    Source: S. Stich et al., "Sparsified SGD with memory", NeurIPS 2018, algorithm 1.
    """

    def learned(rng: Rng) -> Tree:
        weights = layers(rng)
        return {"rest": jax.tree.map(np.zeros_like, weights), "weights": weights}

    def update(state: State, slopes: Tree) -> tuple[Tree, Metrics]:
        def parts(rest: Any, g: Any) -> tuple[Any, Any]:
            total = rest + 0.1 * g
            least = jnp.sort(jnp.abs(total).ravel())[-max(1, total.size // 4)]
            sent = jnp.where(jnp.abs(total) >= least, total, 0)
            return sent, total - sent

        both = jax.tree.map(parts, state.learned["rest"], slopes)
        is_pair = lambda x: isinstance(x, tuple)  # noqa: E731
        sent = jax.tree.map(lambda x: x[0], both, is_leaf=is_pair)
        rest = jax.tree.map(lambda x: x[1], both, is_leaf=is_pair)
        new = jax.tree.map(lambda w, s: w - s, state.learned["weights"], sent)
        return {"rest": rest, "weights": new}, {}

    return replace(supervised("largest_only", update=update), learned=learned)


def _rate_learned() -> Recipe:
    """Return a recipe whose rate follows products of gradients with those before.

    Source: A. Baydin et al., "Online learning rate adaptation", ICLR 2018, algorithm 1.
    """

    def learned(rng: Rng) -> Tree:
        weights = layers(rng)
        before = jax.tree.map(np.zeros_like, weights)
        return {"before": before, "rate": np.float32(0.05), "weights": weights}

    def update(state: State, slopes: Tree) -> tuple[Tree, Metrics]:
        old = state.learned
        pairs = zip(jax.tree.leaves(slopes), jax.tree.leaves(old["before"]), strict=True)
        rate = old["rate"] + 0.01 * sum(jnp.vdot(a, b) for a, b in pairs)
        new = jax.tree.map(lambda w, g: w - rate * g, old["weights"], slopes)
        return {"before": slopes, "rate": rate, "weights": new}, {"rate": rate}

    return replace(supervised("rate_learned", update=update), learned=learned)


def _silent() -> Recipe:
    """Return a recipe that returns no loss."""
    plain = supervised("returns_no_loss")

    def gradients(state: State, x: Any, y: Any) -> tuple[Tree, Tree, Metrics]:
        return _loss_slopes(state.learned["weights"], state, x, y)[1], (), {}

    refusal = Refusal("E0501", "no result tells where the forward pass ends")
    return replace(plain, gradients=gradients, refusals={"": refusal})


def _recorded() -> Recipe:
    """Return a recipe that writes each update's norm into a history, at the step's place."""

    def learned(rng: Rng) -> Tree:
        weights = layers(rng)
        return {
            "history": np.zeros(LENGTH, np.float32), "optimizer": _ADAM.init(weights),
            "step": np.int32(0), "weights": weights,
        }  # fmt: skip

    def update(state: State, slopes: Tree) -> tuple[Tree, Metrics]:
        step = state.learned["step"]
        history = state.learned["history"].at[step].set(optax.tree.norm(slopes))
        return updated(_ADAM, state.learned, slopes) | {"history": history, "step": step + 1}, {}

    return replace(supervised("recorded_norms", update=update), learned=learned)


def uncommon_state() -> list[Recipe]:
    """Return the recipes."""
    return [
        _one_counter("key_by_step", schedules=False), _one_counter("one_counter", schedules=True),
        _annealed(), _skipping(), _clipped_by_history(), _by_counts(), _narrow_momentum(),
        _largest_only(), _rate_learned(), _silent(), _recorded(),
    ]  # fmt: skip
