"""A training step in f16 with f32 weights, whose loss is scaled by a number that adapts."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.support.training_models import Tree
from tests.support.training_steps import Step

_EVERY = 2
"""Updates without overflow after which the scale is doubled."""


class ScaledStep(Step):
    """The scale is read by the forward pass and made anew by the update, which skips overflows."""

    def state(self) -> Tree:
        """Return (weights, (optimizer state, scale, good updates), statistics) to begin with."""
        weights, optimizer, statistics = super().state()
        return weights, (optimizer, np.float32(64), np.int32(0)), statistics

    def gradients(self, state: Tree, x: Any, y: Any) -> tuple[Any, Tree, Tree]:
        """Return the loss, scaled gradients of f16 in f32, and the new statistics."""
        weights, (_, scale, _), statistics = state
        half = jax.tree.map(lambda w: w.astype(jnp.float16), weights)

        def scaled(half: Tree) -> tuple[Any, Any]:
            loss, new = self.model.loss(half, statistics, x.astype(jnp.float16), y)
            return loss * scale, (loss, new)

        slopes, (loss, new) = jax.grad(scaled, has_aux=True)(half)
        return loss, jax.tree.map(lambda g: g.astype(jnp.float32), slopes), new

    def update(self, slopes: Tree, state: Tree) -> tuple[Tree, Tree]:
        """Return new weights and optimizer state, or the old ones with half of the scale."""
        weights, (optimizer, scale, good), statistics = state
        slopes = jax.tree.map(lambda g: g / scale, slopes)
        finite = jnp.array([jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(slopes)]).all()
        new = super().update(slopes, (weights, optimizer, statistics))
        weights, optimizer = jax.tree.map(
            lambda a, b: jnp.where(finite, a, b), new, (weights, optimizer)
        )
        grows = finite & (good + 1 >= _EVERY)
        scale = jnp.where(finite, jnp.where(grows, scale * 2, scale), scale / 2)
        good = jnp.where(finite & ~grows, good + 1, 0).astype(jnp.int32)
        return weights, (optimizer, scale, good)
