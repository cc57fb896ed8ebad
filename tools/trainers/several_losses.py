"""Recipes of several losses, optimizers and networks: adversaries, agents, experts, adapters."""

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
    classes,
    cross_entropy,
    layers,
    normal,
    regression,
    rows,
    squares,
    supervised,
    through,
    updated,
)
from tools.trainers.recipe import Batch, Metrics, Recipe, Refusal, Rng, State, Tree

_FIRST, _LAST = SIZES[0], SIZES[-1]


def _both(optimizers: dict[str, Any], makers: dict[str, Callable[[Rng], Tree]]) -> Any:
    """Return what begins and what updates several networks, each with its optimizer."""

    def learned(rng: Rng) -> Tree:
        weights = {name: make(rng) for name, make in makers.items()}
        return {
            name: {"optimizer": optimizers[name].init(w), "weights": w}
            for name, w in weights.items()
        }

    def update(state: State, slopes: Tree) -> tuple[Tree, Metrics]:
        return {
            name: updated(optimizers[name], state.learned[name], slopes[name])
            for name in optimizers
        }, {}

    return learned, update


def _adversaries(name: str, *, penalty: float = 0.0, in_turn: bool = False) -> Recipe:
    """Return a generator and a critic, updated by one step; `in_turn`: the critic first."""
    optimizers = {"critic": optax.adam(1e-2, 0.5, eps=1e-4), "maker": optax.sgd(0.05, 0.9)}
    learned, update = _both(
        optimizers,
        {
            "critic": lambda rng: layers(rng, (_FIRST, 8, 1)),
            "maker": lambda rng: layers(rng, (4, 7, _FIRST)),
        },
    )

    def critic_loss(critic: Tree, maker: Tree, x: Any, z: Any, mix: Any) -> Any:
        forged = lax.stop_gradient(through(maker, z))
        real, fake = through(critic, x)[:, 0], through(critic, forged)[:, 0]
        if not penalty:
            return jnp.mean(jax.nn.softplus(-real)) + jnp.mean(jax.nn.softplus(fake))
        between = mix * x + (1 - mix) * forged
        slope = jax.vmap(jax.grad(lambda x: through(critic, x[None])[0, 0]))(between)
        size = jnp.sqrt(jnp.sum(slope**2, -1) + 1e-8)
        return jnp.mean(fake) - jnp.mean(real) + penalty * jnp.mean((size - 1) ** 2)

    def maker_loss(maker: Tree, critic: Tree, z: Any) -> Any:
        return jnp.mean(jax.nn.softplus(-through(critic, through(maker, z))[:, 0]))

    def gradients(state: State, x: Any, z: Any, mix: Any) -> tuple[Tree, Tree, Metrics]:
        critic, maker = state.learned["critic"]["weights"], state.learned["maker"]["weights"]
        first, slopes = jax.value_and_grad(critic_loss)(critic, maker, x, z, mix)
        against = critic
        if in_turn:
            against = updated(optimizers["critic"], state.learned["critic"], slopes)["weights"]
        second, others = jax.value_and_grad(maker_loss)(maker, against, z)
        return {"critic": slopes, "maker": others}, (), {"critic": first, "maker": second}

    def batch(rng: Rng) -> Batch:
        return *rows(rng, _FIRST, 4), rng.uniform(size=(ROWS, 1)).astype(np.float32)

    refusal = Refusal("E0503", "the second gradient is taken against a critic already updated")
    return Recipe(
        name, learned, batch, gradients, update, refusals={"": refusal} if in_turn else {}
    )


def _adapters() -> Recipe:
    """Low-rank changes of frozen weights, which are an argument of their own.

    Source: E. Hu et al., "LoRA", ICLR 2022, section 4.1.
    """

    def weights(rng: Rng) -> Tree:
        shapes = [x["w"].shape for x in layers(rng)]
        return [{"a": normal(rng, a, 2), "b": 0.1 * normal(rng, 2, b)} for a, b in shapes]

    def loss(weights: Tree, state: State, x: Any, y: Any) -> Any:
        base = [
            {"b": old["b"], "w": old["w"] + 2.0 * new["a"] @ new["b"]}
            for old, new in zip(state.frozen, weights, strict=True)
        ]
        return jnp.mean((through(base, x) - y) ** 2), ((), {})

    return supervised("lora", loss, weights=weights, frozen=layers)


def _adapters_in_state() -> Recipe:
    """Return the same with frozen weights in the state, where an optimizer leaves them alone."""

    def weights(rng: Rng) -> Tree:
        base = layers(rng)
        shapes = [x["w"].shape for x in base]
        new = [{"a": normal(rng, a, 2), "b": 0.1 * normal(rng, 2, b)} for a, b in shapes]
        return {"base": base, "new": new}

    def loss(weights: Tree, state: State, x: Any, y: Any) -> Any:
        base = [
            {"b": old["b"], "w": old["w"] + 2.0 * new["a"] @ new["b"]}
            for old, new in zip(weights["base"], weights["new"], strict=True)
        ]
        return jnp.mean((through(base, x) - y) ** 2), ((), {})

    parts = {"base": optax.set_to_zero(), "new": optax.adamw(1e-2, eps=1e-4)}
    optimizer = optax.multi_transform(parts, {"base": "base", "new": "new"})
    return supervised("lora_in_state", loss, optimizer, weights)


def _clipped_policy(*, normalised: bool) -> Recipe:
    """Proximal policy optimisation: clipped ratios, a value function, entropy.

    Source: J. Schulman et al., "Proximal policy optimization algorithms" (2017), equation 9.
    """

    def weights(rng: Rng) -> Tree:
        return {
            "policy": normal(rng, 8, _LAST), "spread": 0.1 * normal(rng, 1, _LAST),
            "trunk": layers(rng, (_FIRST, 7, 8)), "value": normal(rng, 8, 1),
        }  # fmt: skip

    def loss(w: Tree, state: State, x: Any, action: Any, old: Any, gain: Any, value: Any) -> Any:
        h = jnp.tanh(through(w["trunk"], x))
        logs = jax.nn.log_softmax(h @ w["policy"] / jnp.exp(w["spread"]))
        ratio = jnp.exp(jnp.take_along_axis(logs, action[:, None], 1)[:, 0] - old)
        if normalised:
            gain = (gain - jnp.mean(gain)) / (jnp.std(gain) + 1e-8)
        clipped = jnp.clip(ratio, 0.8, 1.2)
        surrogate = -jnp.mean(jnp.minimum(ratio * gain, clipped * gain))
        wrong = jnp.mean(((h @ w["value"])[:, 0] - value) ** 2)
        entropy = -jnp.mean(jnp.sum(jnp.exp(logs) * logs, -1))
        share = jnp.mean((jnp.abs(ratio - 1) > 0.2).astype(jnp.float32))
        metrics = {"clipped": share, "entropy": entropy, "policy": surrogate, "value": wrong}
        return surrogate + 0.5 * wrong - 0.01 * entropy, ((), metrics)

    def batch(rng: Rng) -> Batch:
        x, action = classes(rng)
        numbers = rng.normal(size=(3, ROWS)).astype(np.float32)
        return x, action, -1.6 + 0.1 * numbers[0], numbers[1], numbers[2]

    name = "ppo_normalised" if normalised else "ppo"
    coupled = "advantages are normalised within each micro-batch" if normalised else ""
    return supervised(name, loss, weights=weights, batch=batch, coupled=coupled)


def _values(name: str, follow: Callable[[Tree, Tree, Any], Tree]) -> Recipe:
    """Learn the values of actions against a target network that follows.

    Source: V. Mnih et al., "Human-level control through deep reinforcement learning", Nature 518
    (2015), algorithm 1; double estimation.
    """
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2, eps=1e-4))

    def learned(rng: Rng) -> Tree:
        weights = layers(rng)
        return {
            "optimizer": optimizer.init(weights), "step": np.int32(0),
            "target": layers(rng), "weights": weights,
        }  # fmt: skip

    def gradients(state: State, *batch: Any) -> tuple[Tree, Tree, Metrics]:
        x, action, reward, going, following = batch

        def loss(weights: Tree) -> tuple[Any, Metrics]:
            best = jnp.argmax(through(weights, following), -1)
            later = through(state.learned["target"], following)
            later = jnp.take_along_axis(later, best[:, None], 1)[:, 0]
            wanted = lax.stop_gradient(reward + 0.9 * going * later)
            estimated = jnp.take_along_axis(through(weights, x), action[:, None], 1)[:, 0]
            return jnp.mean(optax.huber_loss(estimated, wanted)), {
                "mean_value": jnp.mean(estimated)
            }

        sloping = jax.value_and_grad(loss, has_aux=True)
        (value, metrics), slopes = sloping(state.learned["weights"])
        return slopes, (), {"loss": value, **metrics}

    def update(state: State, slopes: Tree) -> tuple[Tree, Metrics]:
        new = updated(optimizer, state.learned, slopes)
        step = state.learned["step"] + 1
        new["target"] = follow(state.learned["target"], new["weights"], step)
        return new | {"step": step}, {}

    def batch(rng: Rng) -> Batch:
        x, action = classes(rng)
        reward = rng.normal(size=ROWS).astype(np.float32)
        going = rng.integers(0, 2, ROWS).astype(np.float32)
        return x, action, reward, going, *rows(rng, _FIRST)

    return Recipe(name, learned, batch, gradients, update)


def _polyak(old: Tree, new: Tree, _: Any) -> Tree:
    return optax.incremental_update(new, old, 0.05)


def _now_and_then(old: Tree, new: Tree, step: Any) -> Tree:
    return optax.periodic_update(new, old, step, 2)


def _soft_actor() -> Recipe:
    """Two critics, an actor, a temperature, and targets that follow; keys draw actions.

    Source: T. Haarnoja et al., "Soft actor-critic algorithms and applications" (2018), section 5.
    """
    optimizers = {name: optax.adam(1e-2, eps=1e-4) for name in ("actor", "critics", "temperature")}
    makers: dict[str, Callable[[Rng], Tree]] = {
        "actor": lambda rng: layers(rng, (_FIRST, 7, 4)),
        "critics": lambda rng: [layers(rng, (_FIRST + 2, 8, 1)) for _ in range(2)],
        "temperature": lambda _: np.float32(-1.0),
    }
    begin, step = _both(optimizers, makers)

    def learned(rng: Rng) -> Tree:
        initial: Tree = begin(rng)
        return initial | {"target": jax.tree.map(np.copy, initial["critics"]["weights"])}

    def drawn(actor: Tree, x: Any, noise: Any) -> tuple[Any, Any]:
        mean, log = jnp.split(through(actor, x), 2, -1)
        log = jnp.clip(log, -5, 2)
        action = jnp.tanh(mean + jnp.exp(log) * noise)
        chance = -0.5 * noise**2 - log - jnp.log(1 - action**2 + 1e-6)
        return action, jnp.sum(chance, -1)

    def least(critics: Tree, x: Any, action: Any) -> Any:
        both = [through(c, jnp.concatenate([x, action], -1))[:, 0] for c in critics]
        return jnp.minimum(*both)

    def gradients(state: State, *batch: Any) -> tuple[Tree, Tree, Metrics]:
        x, action, reward, following, noise, later = batch
        new = state.learned
        actor, critics = new["actor"]["weights"], new["critics"]["weights"]
        log = new["temperature"]["weights"]
        alpha = lax.stop_gradient(jnp.exp(log))

        def critic_loss(critics: Tree) -> Any:
            then, chance = drawn(actor, following, later)
            value = least(new["target"], following, then) - alpha * chance
            wanted = lax.stop_gradient(reward + 0.9 * value)
            inputs = jnp.concatenate([x, action], -1)
            return sum(jnp.mean((through(c, inputs)[:, 0] - wanted) ** 2) for c in critics)

        def actor_loss(actor: Tree) -> tuple[Any, Any]:
            here, chance = drawn(actor, x, noise)
            return jnp.mean(alpha * chance - least(critics, x, here)), jnp.mean(chance)

        first, of_critics = jax.value_and_grad(critic_loss)(critics)
        (second, chance), of_actor = jax.value_and_grad(actor_loss, has_aux=True)(actor)
        third, of_log = jax.value_and_grad(
            lambda log: -jnp.exp(log) * lax.stop_gradient(chance - 2.0)
        )(log)
        slopes = {"actor": of_actor, "critics": of_critics, "temperature": of_log}
        return slopes, (), {"actor": second, "critics": first, "temperature": third}

    def update(state: State, slopes: Tree) -> tuple[Tree, Metrics]:
        new, _ = step(state, slopes)
        target = _polyak(state.learned["target"], new["critics"]["weights"], 0)
        return new | {"target": target}, {}

    def batch(rng: Rng) -> Batch:
        x, action, following, noise, later = rows(rng, _FIRST, 2, _FIRST, 2, 2)
        return x, np.tanh(action), action[:, 0], following, noise, later

    return Recipe("sac", learned, batch, gradients, update)


def _many_tasks() -> Recipe:
    """Two heads whose losses are weighed by learned uncertainties.

    Source: A. Kendall et al., "Multi-task learning using uncertainty", CVPR 2018, equation 7.
    """

    def weights(rng: Rng) -> Tree:
        heads = {"label": normal(rng, 8, 3), "number": normal(rng, 8, _LAST)}
        logs = {"label": np.float32(0.1), "number": np.float32(-0.2)}
        return {"heads": heads, "logs": logs, "trunk": layers(rng, (_FIRST, 7, 8))}

    def loss(w: Tree, state: State, x: Any, y: Any, label: Any) -> Any:
        h = jnp.tanh(through(w["trunk"], x))
        first = jnp.mean((h @ w["heads"]["number"] - y) ** 2)
        second = jnp.mean(cross_entropy(h @ w["heads"]["label"], label))
        logs = w["logs"]
        total = jnp.exp(-logs["number"]) * first + jnp.exp(-logs["label"]) * second
        metrics = {"label_loss": second, "number_loss": first}
        return total + logs["number"] + logs["label"], ((), metrics)

    def batch(rng: Rng) -> Batch:
        return *regression(rng), rng.integers(0, 3, ROWS).astype(np.int32)

    return supervised("many_tasks", loss, weights=weights, batch=batch)


def _inner_step() -> Recipe:
    """Model-agnostic meta-learning: the loss of each task after a step of its own.

    Source: C. Finn et al., "Model-agnostic meta-learning", ICML 2017, algorithm 1.
    """

    def loss(weights: Tree, state: State, *tasks: Any) -> Any:
        def of_task(x: Any, y: Any, new_x: Any, new_y: Any) -> Any:
            inner = jax.grad(lambda w: squares(w, state, x, y)[0])(weights)
            moved = jax.tree.map(lambda w, g: w - 0.1 * g, weights, inner)
            return squares(moved, state, new_x, new_y)[0]

        return jnp.mean(jax.vmap(of_task)(*tasks)), ((), {})

    def batch(rng: Rng) -> Batch:
        each = [(*regression(rng), *regression(rng)) for _ in range(2)]
        return tuple(np.stack(parts) for parts in zip(*each, strict=True))

    return supervised("maml", loss, batch=batch)


def _surgery() -> Recipe:
    """Two losses whose gradients are freed of conflict before they are added.

    Source: T. Yu et al., "Gradient surgery for multi-task learning", NeurIPS 2020, algorithm 1.
    """
    plain = supervised("gradient_surgery", coupled="conflicts are those of each micro-batch")

    def gradients(state: State, x: Any, y: Any) -> tuple[Tree, Tree, Metrics]:
        def loss(weights: Tree, part: slice) -> Any:
            return jnp.mean((through(weights, x)[:, part] - y[:, part]) ** 2)

        weights = state.learned["weights"]
        first, one = jax.value_and_grad(loss)(weights, slice(0, 2))
        second, two = jax.value_and_grad(loss)(weights, slice(2, None))
        meets = sum(jnp.vdot(a, b) for a, b in zip(*map(jax.tree.leaves, (one, two)), strict=True))
        share = jnp.minimum(meets, 0) / (optax.tree.norm(two) ** 2 + 1e-12)
        slopes = jax.tree.map(lambda a, b: a - share * b + b, one, two)
        return slopes, (), {"first": first, "second": second}

    return replace(plain, gradients=gradients)


def several_losses() -> list[Recipe]:
    """Return the recipes."""
    return [
        _adversaries("gan"),
        _adversaries("gan_with_penalty", penalty=1.0),
        _adversaries("gan_in_turn", in_turn=True),
        _adapters(),
        _adapters_in_state(),
        _clipped_policy(normalised=False),
        _clipped_policy(normalised=True),
        _values("dqn_polyak", _polyak),
        _values("dqn_now_and_then", _now_and_then),
        _soft_actor(),
        _many_tasks(),
        _inner_step(),
        _surgery(),
        supervised("two_steps_of_norms", optimizer=optax.chain(CLIPPED, optax.clip(0.005))),
    ]
