"""A training step on several replicas, against gradients and updates as JAX computes them apart."""

from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np

import hloipu
from hloipu_runtime.compiled import CompiledProgram, Mode
from tests.support.pipeline_trials import ABSOLUTE, RELATIVE, UPDATES
from tests.support.training_steps import STEPS


class Copies(NamedTuple):
    """A configuration."""

    step: str
    replicas: int
    micro_batches: int = 1
    stages: int = 1

    def __str__(self) -> str:
        return f"{self.step}-{self.replicas}r{self.micro_batches}k{self.stages}s"


def compiled(copies: Copies, **options: Any) -> CompiledProgram:
    """Compile a step as a configuration says, two updates a run."""
    step = STEPS[copies.step]
    first = step.state_count
    given = {"stages": copies.stages} if copies.stages > 1 else {}
    return hloipu.compile(
        step.text, target="tiny", over_memory="allow", cache=False, loop=UPDATES,
        feed={"data": (first, first + 1)}, outfeed=[f"loss={first}"],
        micro_batches=copies.micro_batches, replicas=copies.replicas, **given, **options,
    )  # fmt: skip


class Expected(NamedTuple):
    """What two updates come to."""

    states: list[list[Any]]
    """Of each replica: weights and optimizer state alike, statistics its own."""
    losses: np.ndarray[Any, Any]
    """By micro-batch and replica."""


@lru_cache(64)
def expected(name: str, replicas: int, micro_batches: int) -> Expected:
    """Return what replicas come to whose gradients are averaged before each update."""
    step = STEPS[name]
    gradients, update = jax.jit(step.gradients), jax.jit(step.update)
    weights, optimizer, statistics = step.state()
    own = [statistics] * replicas
    losses = np.zeros((UPDATES * micro_batches, replicas))
    for number in range(UPDATES):
        total = None
        for k in range(number * micro_batches, (number + 1) * micro_batches):
            for replica in range(replicas):
                data = step.batch(k * replicas + replica)
                loss, slopes, own[replica] = gradients(weights, own[replica], *data)
                losses[k, replica] = loss
                total = slopes if total is None else jax.tree.map(np.add, total, slopes)
        count = micro_batches * replicas
        mean = jax.tree.map(lambda x, n=count: x / n, total)
        weights, optimizer = update(mean, optimizer, weights)
    states = [[np.asarray(x) for x in jax.tree.leaves((weights, optimizer, each))] for each in own]
    return Expected(states, losses)


def assert_equal_to_jax(
    copies: Copies, program: CompiledProgram, mode: Mode = "functional"
) -> None:
    """Train for two updates and compare every replica's state and losses."""
    step = STEPS[copies.step]
    state = [np.asarray(x) for x in jax.tree.leaves(step.state())]
    count = UPDATES * copies.micro_batches * copies.replicas
    batches = [step.batch(n) for n in range(count)]
    wanted = expected(copies.step, copies.replicas, copies.micro_batches)
    with program.session(state=state, infeeds={"data": iter(batches)}, mode=mode) as session:
        session.run(UPDATES)
        losses = np.array([np.asarray(x.element) for x in session.stream("loss").drain()])
        found = [list(session.state(replica).values()) for replica in range(copies.replicas)]
    np.testing.assert_allclose(
        losses.reshape(wanted.losses.shape), wanted.losses, RELATIVE, ABSOLUTE
    )
    for mine, theirs in zip(found, wanted.states, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            if np.issubdtype(b.dtype, np.integer):
                np.testing.assert_array_equal(a, b)
            else:
                np.testing.assert_allclose(a, b, RELATIVE, ABSOLUTE)
