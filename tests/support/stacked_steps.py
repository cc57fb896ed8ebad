"""Training steps over stacked weights, printed by JAX with slices and concatenations of the stacks.

What loops over stacks come to when they are split by trips: layers read their rows of each array,
and the gradient of a stack is put together of those of its rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

ROWS, WIDTH, BATCH = 4, 6, 8


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def split(bounds: tuple[int, ...], axis: int, w: jax.Array) -> list[jax.Array]:
    """Return the rows between neighbouring bounds."""
    return [jax.lax.slice_in_dim(w, a, b, axis=axis) for a, b in pairwise(bounds)]


def _forward(bounds: tuple[int, ...], axis: int, w: jax.Array) -> tuple[list[jax.Array], None]:
    return split(bounds, axis, w), None


def _backward(
    bounds: tuple[int, ...], axis: int, _: None, gradients: Sequence[jax.Array]
) -> tuple[jax.Array]:
    return (jnp.concatenate(list(gradients), axis),)


split.defvjp(_forward, _backward)


def _layer(x: jax.Array, layer: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
    w, b, *scale = layer
    return jnp.tanh(x @ w + b) * (scale[0] if scale else 1) + x, None


@dataclass(frozen=True)
class StackedStep:
    """A step of `w` and `b`, stacks of layers along an axis, cut at bounds; and a head."""

    optimizer: Callable[[], Any]
    bounds: tuple[int, ...] = (0, 1, 3, 4)
    axis: int = 0
    unroll: int = 1
    """Layers in a turn of the loop; 0: no loop, rows are taken one by one."""
    scaled: bool = False
    """Whether each layer has a number of its own as well."""

    def _loss(self, params: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
        ws, bs = split(self.bounds, self.axis, params["w"]), split(self.bounds, 0, params["b"])
        scales: list[Any] = [()] * len(ws)
        if self.scaled:
            scales = [(x,) for x in split(self.bounds, 0, params["scale"])]
        for w, b, scale in zip(ws, bs, scales, strict=True):
            layers = (jnp.moveaxis(w, self.axis, 0), b, *scale)
            if self.unroll:
                x, _ = jax.lax.scan(_layer, x, layers, unroll=self.unroll)
                continue
            for n in range(w.shape[self.axis]):
                x, _ = _layer(x, tuple(each[n] for each in layers))
        return jnp.mean((x @ params["head"] - y) ** 2)

    def step(self, state: Any, x: jax.Array, y: jax.Array) -> Any:
        """Return the new state and the loss."""
        params, moments = state
        loss, gradients = jax.value_and_grad(self._loss)(params, x, y)
        updates, moments = self.optimizer().update(gradients, moments, params)
        return (optax.apply_updates(params, updates), moments), loss

    def expected(self, elements: int, updates: int) -> Any:
        """Return the state after updates by mean gradients of so many batches each."""
        params, moments = self.state()
        slope, moved = jax.jit(jax.grad(self._loss)), jax.jit(self._moved)
        for update in range(updates):
            first = update * elements
            each = [slope(params, *self.batch(first + n)) for n in range(elements)]
            mean = jax.tree.map(lambda *x: sum(map(np.asarray, x)) / np.float32(len(x)), *each)
            params, moments = moved(mean, moments, params)
        return params, moments

    def _moved(self, mean: Any, moments: Any, params: Any) -> Any:
        changes, moments = self.optimizer().update(mean, moments, params)
        return optax.apply_updates(params, changes), moments

    def batches(self, count: int) -> tuple[np.ndarray, ...]:
        """Return the first batches, one after the other."""
        return tuple(np.stack(x) for x in zip(*map(self.batch, range(count)), strict=True))

    def state(self) -> Any:
        """Return parameters and optimizer state."""
        rng = np.random.default_rng(7)
        shape = [WIDTH, WIDTH]
        shape.insert(self.axis, ROWS)
        params = {
            "b": jnp.asarray(rng.normal(size=(ROWS, WIDTH)), jnp.float32),
            "head": jnp.asarray(rng.normal(size=(WIDTH, 3)), jnp.float32),
            "w": jnp.asarray(rng.normal(size=shape) / 3, jnp.float32),
        }
        if self.scaled:
            params["scale"] = jnp.linspace(0.5, 1, ROWS)
        return params, self.optimizer().init(params)

    def batch(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return what one step is given."""
        rng = np.random.default_rng(number)
        x = rng.normal(size=(BATCH, WIDTH)).astype(np.float32)
        return x, rng.normal(size=(BATCH, 3)).astype(np.float32)

    @cached_property
    def text(self) -> str:
        """The step as JAX prints it."""
        lowered = jax.jit(self.step, keep_unused=True).lower(self.state(), *self.batch(0))
        return str(lowered.compiler_ir("hlo").as_hlo_text())


STACKED = {
    "sgd": StackedStep(lambda: optax.sgd(0.1)),
    "adam": StackedStep(lambda: optax.adam(1e-2), (0, 2, 4)),
    "adamw-clipped": StackedStep(
        lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(1e-2, weight_decay=0.1))
    ),
    "momentum-axis-1": StackedStep(lambda: optax.sgd(0.1, 0.9), (0, 1, 2, 4), axis=1),
}

SCANNED = {
    "adam": StackedStep(lambda: optax.adam(1e-2), (0, ROWS)),
    "adamw-clipped": StackedStep(
        lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(1e-2, weight_decay=0.1)),
        (0, ROWS),
    ),
    "momentum-axis-1": StackedStep(lambda: optax.sgd(0.1, 0.9), (0, ROWS), axis=1),
    "scaled-clipped": StackedStep(
        lambda: optax.chain(optax.clip_by_global_norm(0.1), optax.adam(1e-2)),
        (0, ROWS),
        scaled=True,
    ),
    "factored": StackedStep(lambda: optax.adafactor(1e-2, min_dim_size_to_factor=2), (0, ROWS)),
}
"""One loop over all layers each, as scans print it."""

UNROLLED = {
    "scan": replace(SCANNED["adam"], unroll=ROWS),
    "half": replace(SCANNED["adam"], unroll=2),
    "rows": replace(SCANNED["adam"], unroll=0),
    "columns": replace(SCANNED["momentum-axis-1"], unroll=0),
}
"""Loops written out, in part or as a whole."""
