"""A training step as people write it: its state, its batches, its gradients and its update."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxlib import _hlo

Tree = Any
Metrics = dict[str, Any]
Batch = tuple[Any, ...]
Rng = np.random.Generator


class State(NamedTuple):
    """What a step is given besides its batch."""

    learned: Tree
    """Weights, optimizer state, and all else that changes once for each update."""
    carried: Tree
    """What each micro-batch makes anew: statistics, keys of random numbers, queues."""
    frozen: Tree
    """What never changes and is an argument all the same."""


class Refusal(NamedTuple):
    """A refusal that users can accept."""

    code: str
    why: str


@dataclass(frozen=True, eq=False)
class Recipe:
    """A training step in parts, of which `step` is made as its author would."""

    name: str
    learned: Callable[[Rng], Tree]
    batch: Callable[[Rng], Batch]
    """One micro-batch: arrays with samples along axis 0."""
    gradients: Callable[..., tuple[Tree, Tree, Metrics]]
    """(state, *batch) -> gradients, new carried state, metrics of the batch."""
    update: Callable[[State, Tree], tuple[Tree, Metrics]]
    """(state, gradients) -> new learned state, metrics of the update."""
    carried: Callable[[], Tree] = tuple
    frozen: Callable[[Rng], Tree] = lambda _: ()
    coupled: str = ""
    """Why micro-batches come to something else than the whole batch; empty: they do not."""
    layers: int = 0
    """Layers that a loop goes over; 0: there is no such loop."""
    donates: bool = True
    shardy: bool = True
    """Whether shardings are printed as Shardy's or as GSPMD's."""
    metrics_first: bool = False
    """Whether the step returns metrics before the new state."""
    refusals: Mapping[str, Refusal] = field(default_factory=lambda: MappingProxyType({}))
    """By the name of a way; under an empty name for all of them."""
    near: float = 5e-5
    """How far a value may be off, relative to itself; absolutely a tenth of that."""
    absolute: float | None = None

    @cached_property
    def begin(self) -> State:
        """The state that training begins with."""
        rng = np.random.default_rng(0)
        state = State(self.learned(rng), self.carried(), self.frozen(rng))
        return State(*jax.tree.map(_plain, state))

    @property
    def bounds(self) -> tuple[float, float]:
        """How far a value may be off, relative to itself and absolutely."""
        return self.near, self.near / 10 if self.absolute is None else self.absolute

    def batches(self, numbers: Sequence[int]) -> list[Batch]:
        """Return micro-batches by their numbers."""
        return [self.batch(np.random.default_rng(1000 + n)) for n in numbers]

    def step(self, kept: tuple[Tree, Tree], frozen: Tree, *batch: Any) -> tuple[Any, Any]:
        """Return the new state and all metrics, in the order of the results."""
        state = State(*kept, frozen)
        slopes, carried, early = self.gradients(state, *batch)
        learned, late = self.update(state, slopes)
        metrics = {**early, **late}
        results = (learned, carried), metrics
        return results[::-1] if self.metrics_first else results

    @cached_property
    def metric_numbers(self) -> dict[str, int]:
        """Numbers of the results that are metrics, by name."""
        state = self.begin
        kept = (state.learned, state.carried)
        shapes = jax.eval_shape(self.step, kept, state.frozen, *self.batches([0])[0])
        metrics = shapes[0] if self.metrics_first else shapes[1]
        first = 0 if self.metrics_first else len(jax.tree.leaves(kept))
        return {name: first + n for n, name in enumerate(sorted(metrics))}

    def text(self, *, named: bool) -> str:
        """Return the step as HLO text; `named`: with the names that JAX gives to its ops."""
        options = _hlo.HloPrintOptions()
        options.print_large_constants = True
        options.print_metadata = named
        return str(self._module.to_string(options))

    @cached_property
    def _module(self) -> Any:
        state = self.begin
        given = (state.learned, state.carried), state.frozen, *self.batches([0])[0]
        donated = (0,) if self.donates else ()
        before = jax.config.jax_use_shardy_partitioner
        jax.config.update("jax_use_shardy_partitioner", self.shardy)
        try:
            function = jax.jit(self.step, donate_argnums=donated, keep_unused=True)
            return function.lower(*given).compiler_ir("hlo").as_hlo_module()
        finally:
            jax.config.update("jax_use_shardy_partitioner", before)

    @cached_property
    def jitted(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """The gradients and the update, each compiled by XLA."""
        return jax.jit(self.gradients), jax.jit(self.update)


def arrays(tree: Tree) -> list[Any]:
    """Return the leaves of a tree as a program has them: keys of random numbers as numbers."""
    return [np.asarray(jax.random.key_data(x) if _is_key(x) else x) for x in jax.tree.leaves(tree)]


def _is_key(x: Any) -> bool:
    return hasattr(x, "dtype") and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)


def _plain(x: Any) -> Any:
    return x if _is_key(x) else np.asarray(x)


def joined(batches: Sequence[Batch]) -> Batch:
    """Return several micro-batches as one batch."""
    return tuple(np.concatenate(parts) for parts in zip(*batches, strict=True))
