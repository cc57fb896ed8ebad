"""Training steps of many kinds, in JAX, with their gradients and updates as functions apart.

The parts are what cut steps are compared with: the gradients of each micro-batch, reduced, then one
update.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
import optax
import optax.contrib
from jaxlib import _hlo

from hloipu_runtime.compiled import CompiledProgram, Mode
from tests.support.scanned_models import SCANNED
from tests.support.training_models import USUAL, Model, Tree
from tests.support.unusual_models import EXACT, NARROW, RECURRENT, UNUSUAL


@dataclass(frozen=True)
class Step:
    """A model and an optimizer."""

    model: Model
    optimizer_name: str
    optimizer: optax.GradientTransformation

    @property
    def name(self) -> str:
        """`model_optimizer`."""
        return f"{self.model.name}_{self.optimizer_name}"

    def state(self) -> Tree:
        """Return (weights, optimizer state, statistics) to begin with."""
        return self._first_state

    @cached_property
    def _first_state(self) -> Tree:
        weights = self.model.weights(np.random.default_rng(0))
        return weights, self.optimizer.init(weights), self.model.statistics()

    def batch(self, seed: int) -> tuple[Any, Any]:
        """Return one micro-batch."""
        return self.model.data(np.random.default_rng(1000 + seed))

    def joined(self, seeds: Sequence[int]) -> tuple[Any, Any]:
        """Return several micro-batches as one batch."""
        xs, ys = zip(*(self.batch(seed) for seed in seeds), strict=True)
        return np.concatenate(xs, self.model.batch_axis), np.concatenate(ys)

    def gradients(self, state: Tree, x: Any, y: Any) -> tuple[Any, Tree, Tree]:
        """Return the loss, the gradients and the new statistics of one micro-batch."""
        weights, _, statistics = state
        (loss, statistics), slopes = jax.value_and_grad(self.model.loss, has_aux=True)(
            weights, statistics, x, y
        )
        return loss, slopes, statistics

    def update(self, slopes: Tree, state: Tree) -> tuple[Tree, Tree]:
        """Return new weights and optimizer state."""
        weights, optimizer, _ = state
        changes, optimizer = self.optimizer.update(slopes, optimizer, weights)
        return optax.apply_updates(weights, changes), optimizer

    def whole(self, state: Tree, x: Any, y: Any) -> tuple[Tree, Any]:
        """Return the state after a step, and the loss."""
        loss, slopes, statistics = self.gradients(state, x, y)
        return (*self.update(slopes, state), statistics), loss

    @cached_property
    def _lowered(self) -> Any:
        given = self.state(), *self.batch(0)
        return jax.jit(self.whole, donate_argnums=0, keep_unused=True).lower(*given)

    @cached_property
    def text(self) -> str:
        """The step as HLO text, its state donated, without metadata."""
        text: str = self._lowered.compiler_ir("hlo").as_hlo_text(print_large_constants=True)
        return text

    @cached_property
    def named_text(self) -> str:
        """The same with metadata, which has the names that JAX gives to what it differentiates."""
        options = _hlo.HloPrintOptions()
        options.print_large_constants = True
        module = self._lowered.compiler_ir("hlo").as_hlo_module()
        return str(module.to_string(options))

    @property
    def state_count(self) -> int:
        """Arrays of the state; micro-batches are the two parameters after them."""
        return len(jax.tree.leaves(self.state()))


OPTIMIZERS = {
    "sgd": optax.sgd(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9),
    "adam": optax.adam(1e-2),
    "adamw_clipped": optax.chain(
        optax.clip_by_global_norm(0.5),
        optax.adamw(optax.linear_schedule(1e-2, 1e-3, 10), weight_decay=0.01),
    ),
}
OTHERS = {
    "adafactor": optax.adafactor(1e-2, min_dim_size_to_factor=4),
    "lamb": optax.lamb(1e-2),
    "muon": optax.contrib.muon(1e-2),
    "sm3": optax.sm3(1e-2),
    "schedule_free": optax.contrib.schedule_free_sgd(0.1),
}
"""Whose state is of other shapes than weights, or is multiplied with itself."""
SMOOTH = ("sgd", "momentum")
"""Updates in proportion to gradients: those of narrow floats do not make more of an error."""


def trained(
    step: Step, program: CompiledProgram, updates: int, batches: int, replicas: int, mode: Mode
) -> tuple[np.ndarray[Any, Any], list[list[Any]]]:
    """Train for some updates; returns the losses, and the state of each replica."""
    state = [np.asarray(x) for x in jax.tree.leaves(step.state())]
    data = iter([step.batch(n) for n in range(batches)])
    with program.session(state=state, infeeds={"data": data}, mode=mode) as session:
        session.run(updates)
        losses = np.array([np.asarray(x.element) for x in session.stream("loss").drain()])
        return losses, [list(session.state(replica).values()) for replica in range(replicas)]


def _named(models: Sequence[Model], *optimizers: str) -> dict[str, Step]:
    steps = [Step(model, name, OPTIMIZERS[name]) for model in models for name in optimizers]
    return {step.name: step for step in steps}


STEPS = _named(USUAL, *OPTIMIZERS)
"""By name: `mlp_sgd` and so on."""
UNUSUAL_STEPS = {
    **_named(UNUSUAL, "momentum", "adamw_clipped"),
    **_named((RECURRENT,), "momentum"),
    **{step.name: step for step in (Step(USUAL[0], name, x) for name, x in OTHERS.items())},
    **_named(NARROW, *SMOOTH),
    **{
        step.name: step
        for model in EXACT
        for step in (
            Step(model, "sgd", optax.sgd(0.125)),
            Step(model, "momentum", optax.sgd(0.125, momentum=0.5)),
        )
    },
}
"""What the state or the arithmetic of is unusual."""
SCANNED_STEPS = _named(SCANNED, "adam", "adamw_clipped")
"""Loops over layers, whose weights are stacks."""
