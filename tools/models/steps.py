"""Inference and training steps of a network, and their HLO text."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jaxlib import _hlo

from tools.models.layers import Style

_ROOT = Path(__file__).resolve().parents[2]
_LOSS_SCALE = 128.0


@dataclass(frozen=True, slots=True)
class Task:
    """A network, what it reads, and what it is trained by."""

    network: Any
    inputs: tuple[Any, ...]
    """Shapes and types of what the network reads."""
    labels: tuple[Any, ...]
    """Of what the loss reads beside."""
    loss: Callable[..., Any]
    """(results, *labels) to f32[]."""


def cross_entropy(logits: Any, labels: Any) -> Any:
    """Return the mean over labels of -log(softmax(logits)[label]), in f32."""
    logits = logits.astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen)


Tree = Any
Optimizer = tuple[Callable[[Tree], Tree], Callable[[Tree, Tree, Tree], tuple[Tree, Tree]]]
"""Weights to state; (gradients, state, weights) to new weights and state."""


def sgd(rate: float = 0.1, momentum: float = 0.9, decay: float = 1e-4) -> Optimizer:
    """Return gradient descent with momentum; the momentum has its weight's type."""

    def update(slopes: Tree, state: Tree, weights: Tree) -> tuple[Tree, Tree]:
        state = jax.tree.map(lambda m, g, w: momentum * m + g + decay * w, state, slopes, weights)
        return jax.tree.map(lambda w, m: w - rate * m, weights, state), state

    return lambda weights: jax.tree.map(jnp.zeros_like, weights), update


def adam(rate: float = 1e-3, decay: float = 0.01, *, lamb: bool = False) -> Optimizer:
    """Return AdamW, or LAMB: the same, each weight's update scaled to the weight's norm.

    Moments and the arithmetic are f32, whatever the type of the weights (as popart::Adam with
    `accl1Type`, `accl2Type` FLOAT). Without correction of the bias, as Graphcore's BERT has LAMB.
    """

    def moments(weights: Tree) -> Tree:
        zeros = jax.tree.map(lambda w: jnp.zeros(w.shape, jnp.float32), weights)
        return zeros, zeros

    def update(slopes: Tree, state: Tree, weights: Tree) -> tuple[Tree, Tree]:
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g.astype(jnp.float32), state[0], slopes)
        second = jax.tree.map(
            lambda v, g: 0.999 * v + 0.001 * g.astype(jnp.float32) ** 2, state[1], slopes
        )

        def moved(w: Any, m: Any, v: Any) -> Any:
            wide = w.astype(jnp.float32)
            change = m / (jnp.sqrt(v) + 1e-6) + decay * wide
            return (wide - rate * (_trust(wide, change) if lamb else 1.0) * change).astype(w.dtype)

        return jax.tree.map(moved, weights, first, second), (first, second)

    return moments, update


def _trust(weight: Any, change: Any) -> Any:
    norms = [jnp.sqrt(jnp.sum(x * x)) for x in (weight, change)]
    return jnp.where((norms[0] > 0) & (norms[1] > 0), norms[0] / norms[1], 1.0)


OPTIMIZERS: dict[str, Callable[[], Optimizer]] = {
    "sgd": sgd,
    "adam": adam,
    "lamb": lambda: adam(lamb=True),
}


def training_step(task: Task, style: Style, optimizer: Optimizer) -> Any:
    """Return the lowered step: state, inputs and labels to new state and the loss.

    State is donated: weights, running statistics of norms, the optimizer's, with dropout a key.
    The loss is multiplied by 128, and the gradients by 1/128, where weights are f16.
    """
    variables = _variables(task)
    weights, rest = variables.pop("params"), variables
    begin, update = optimizer
    scale = _LOSS_SCALE if style.dtype == jnp.float16 else 1.0
    bits = jax.random.key_data(jax.random.key(0, impl=style.random))
    keys = {"dropout": jax.ShapeDtypeStruct(bits.shape, bits.dtype)} if style.dropout else {}

    as_key = partial(jax.random.wrap_key_data, impl=style.random)

    def step(weights: Tree, rest: Tree, state: Tree, key: Tree, inputs: Any, labels: Any) -> Any:
        keys = {name: jax.random.split(as_key(value)) for name, value in key.items()}
        rngs = {name: both[0] for name, both in keys.items()}
        key = {name: jax.random.key_data(both[1]) for name, both in keys.items()}

        def loss(weights: Tree) -> Any:
            results, rest_after = task.network.apply(
                {"params": weights, **rest}, *inputs, mutable=list(rest), rngs=rngs
            )
            value = task.loss(results, *labels)
            return value * scale, (value, rest_after)

        slopes, (value, rest_after) = jax.grad(loss, has_aux=True)(weights)
        if scale != 1:
            slopes = jax.tree.map(lambda g: g * jnp.asarray(1 / scale, g.dtype), slopes)
        weights, state = update(slopes, state, weights)
        return weights, rest_after, state, key, value

    state = jax.eval_shape(begin, weights)
    return jax.jit(step, donate_argnums=(0, 1, 2, 3)).lower(
        weights, rest, state, keys, task.inputs, task.labels
    )


def inference_step(task: Task) -> Any:
    """Return the lowered step: weights and inputs to results."""

    def infer(weights: Tree, inputs: Any) -> Any:
        return task.network.apply(weights, *inputs)

    return jax.jit(infer).lower(_variables(task), task.inputs)


def _variables(task: Task) -> dict[str, Any]:
    key = jax.ShapeDtypeStruct((2,), jnp.uint32)
    rngs = {"params": key, "dropout": key}
    return dict(jax.eval_shape(task.network.init, rngs, *task.inputs))


def hlo_text(lowered: Any) -> str:
    """Return HLO before optimisation, with names, donation and source lines, without paths."""
    options = _hlo.HloPrintOptions()
    options.print_large_constants = True
    printed: str = lowered.compiler_ir(dialect="hlo").as_hlo_module().to_string(options)
    shorter = re.sub(r'"/[^"\n]*/site-packages/', '"', printed)
    return shorter.replace(f'"{_ROOT}/', '"').rstrip("\n") + "\n"
