"""One training step cut in one way, against its gradients and update as JAX computes them apart."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import jax
import numpy as np

import hloipu
from hloipu_runtime.compiled import CompiledProgram, Mode
from tests.support.training_steps import STEPS

UPDATES = 2
RELATIVE, ABSOLUTE = 2e-5, 2e-6
"""Bounds for f32: sums of up to eight gradients in another order, then an optimizer's division."""


@dataclass(frozen=True)
class Cut:
    """A configuration."""

    step: str
    stages: int
    schedule: str
    micro_batches: int
    reduction: str = "mean"
    accumulator: str | None = None

    def __str__(self) -> str:
        words = [self.step, f"{self.stages}x{self.micro_batches}", self.schedule, self.reduction]
        return "-".join([*words, self.accumulator or ""]).rstrip("-")


def compiled(cut: Cut, **options: Any) -> CompiledProgram:
    """Compile a step as a configuration says, two updates a run."""
    step = STEPS[cut.step]
    first = step.state_count
    return hloipu.compile(
        step.text, target="tiny", over_memory="allow", cache=False, loop=UPDATES,
        feed={"data": (first, first + 1)}, outfeed=[f"loss={first}"], stages=cut.stages,
        schedule=cut.schedule, micro_batches=cut.micro_batches, reduction=cut.reduction,
        accumulator_dtype=cut.accumulator, **options,
    )  # fmt: skip


@lru_cache(64)
def expected(name: str, micro_batches: int, reduction: str) -> tuple[list[Any], list[float]]:
    """Return the state after two updates, and the losses of all micro-batches, in JAX."""
    step = STEPS[name]
    gradients, update = jax.jit(step.gradients), jax.jit(step.update)
    weights, optimizer, statistics = step.state()
    losses = []
    for number in range(UPDATES):
        total = None
        for k in range(micro_batches):
            data = step.batch(number * micro_batches + k)
            loss, slopes, statistics = gradients(weights, statistics, *data)
            losses.append(float(loss))
            total = slopes if total is None else jax.tree.map(np.add, total, slopes)
        if reduction != "sum":
            total = jax.tree.map(lambda x: x / micro_batches, total)
        weights, optimizer = update(total, optimizer, weights)
    return [np.asarray(x) for x in jax.tree.leaves((weights, optimizer, statistics))], losses


def assert_equal_to_jax(cut: Cut, program: CompiledProgram, mode: Mode = "functional") -> None:
    """Train for two updates and compare state and losses."""
    step = STEPS[cut.step]
    state = [np.asarray(x) for x in jax.tree.leaves(step.state())]
    count = UPDATES * cut.micro_batches
    batches = [step.batch(n) for n in range(count)]
    with program.session(state=state, infeeds={"data": iter(batches)}, mode=mode) as session:
        session.run(UPDATES)
        losses = [float(x.element) for x in session.stream("loss").drain()]
        found = list(session.state().values())
    wanted, wanted_losses = expected(cut.step, cut.micro_batches, cut.reduction)
    np.testing.assert_allclose(losses, wanted_losses, RELATIVE, ABSOLUTE)
    for a, b in zip(found, wanted, strict=True):
        if np.issubdtype(b.dtype, np.integer):
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a, b, RELATIVE, ABSOLUTE)


def every_cut() -> list[Cut]:
    """Return all configurations, in an order in which neighbours differ in many ways."""
    cuts = [
        Cut(step, stages, schedule, micro_batches, reduction)
        for step, stages, schedule, micro_batches, reduction in product(
            STEPS, (1, 2, 3, 4), ("grouped", "interleaved", "sequential"), (1, 3, 4, 8),
            ("mean", "sum", "running_mean"),
        )
    ]  # fmt: skip
    order = np.random.default_rng(0).permutation(len(cuts))
    return [cuts[n] for n in order]
