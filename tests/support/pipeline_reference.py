"""What training steps come to whose gradients and updates JAX computes apart.

Gradients of micro-batches are added up here as accumulators are documented to do it: scaled in
their own type, converted to the accumulator's, added up one after the other, converted back before
the update; replicas are averaged last.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np

from tests.support.scaled_step import ScaledStep
from tests.support.subtle_models import subtle_steps
from tests.support.training_models import USUAL, Tree
from tests.support.training_steps import (
    OPTIMIZERS,
    SCANNED_STEPS,
    STEPS,
    UNUSUAL_STEPS,
    Step,
)

UPDATES = 2
SCALED = ScaledStep(USUAL[0], "scaled", OPTIMIZERS["momentum"])
SUBTLE_STEPS = subtle_steps(USUAL[0])
EVERY_STEP = {
    **STEPS, **UNUSUAL_STEPS, **SUBTLE_STEPS, **SCANNED_STEPS, SCALED.name: SCALED
}  # fmt: skip
"""By name."""
TYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


class Expected(NamedTuple):
    """What two updates come to."""

    states: list[list[Any]]
    """Of each replica, in the order of the step's state; statistics are its own."""
    losses: np.ndarray[Any, Any]
    """By micro-batch and replica."""


@lru_cache(64)
def _functions(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    step = EVERY_STEP[name]
    return jax.jit(step.gradients), jax.jit(step.update)


@lru_cache(256)
def expected(
    name: str, micro_batches: int, replicas: int, reduction: str, accumulator: str | None
) -> Expected:
    """Return the state after two updates, and the losses of all micro-batches."""
    step, (gradients, update) = EVERY_STEP[name], _functions(name)
    weights, optimizer, first = step.state()
    own = [of_replica(first, replica) for replica in range(replicas)]
    losses = np.zeros((UPDATES * micro_batches, replicas))
    for number in range(UPDATES):
        totals = []
        for replica in range(replicas):
            slopes = []
            for k in range(number * micro_batches, (number + 1) * micro_batches):
                data = step.batch(k * replicas + replica)
                state = weights, optimizer, own[replica]
                losses[k, replica], each, own[replica] = gradients(state, *data)
                slopes.append(each)
            totals.append(_added_up(slopes, reduction, accumulator))
        mean = jax.tree.map(lambda *x: _average(x), *totals)
        weights, optimizer = update(mean, (weights, optimizer, own[0]))
    states = [[np.asarray(x) for x in jax.tree.leaves((weights, optimizer, each))] for each in own]
    return Expected(states, losses)


def of_replica(state: Tree, replica: int) -> Tree:
    """Return state with a replica's number folded into its keys, its only arrays of u32."""
    number = np.uint32(replica * 0x9E3779B9 % 2**32)

    def own(x: Any) -> Any:
        is_key = np.asarray(x).dtype == np.uint32
        return jax.random.fold_in(x, number) if is_key and replica else x

    return jax.tree.map(own, state)


def _added_up(slopes: list[Tree], reduction: str, accumulator: str | None) -> Tree:
    return jax.tree.map(lambda *x: accumulated(x, reduction, accumulator), *slopes)


def accumulated(slopes: Sequence[Any], reduction: str, accumulator: str | None) -> Any:
    """Return one array's accumulator after all micro-batches, in the type of its gradients."""
    arrays = [np.asarray(x) for x in slopes]
    own = arrays[0].dtype.type
    kind = TYPES[accumulator] if accumulator else own
    total = np.zeros(arrays[0].shape, kind)
    for n, x in enumerate(arrays):
        if reduction == "running_mean":
            kept = total * kind(np.float32(n) / np.float32(n + 1))
            total = kept + (x * own(np.float32(1) / np.float32(n + 1))).astype(kind)
        elif reduction == "mean":
            total = total + (x * own(1 / len(arrays))).astype(kind)
        else:
            total = total + x.astype(kind)
    return total.astype(own)


def _average(totals: tuple[Any, ...]) -> Any:
    total = totals[0]
    for each in totals[1:]:
        total = total + each
    return total * total.dtype.type(1 / len(totals))


@lru_cache(64)
def of_whole_batches(name: str, micro_batches: int, replicas: int, reduction: str) -> list[Any]:
    """Return weights and optimizer state after two updates by the gradients of one large batch.

    For steps without what couples samples, whose loss is a mean over them.
    """
    step, (gradients, update) = EVERY_STEP[name], _functions(name)
    weights, optimizer, statistics = step.state()
    size = micro_batches * replicas
    for number in range(UPDATES):
        data = step.joined(range(number * size, (number + 1) * size))
        _, slopes, statistics = gradients((weights, optimizer, statistics), *data)
        if reduction == "sum":
            slopes = jax.tree.map(lambda x: x * x.dtype.type(micro_batches), slopes)
        weights, optimizer = update(slopes, (weights, optimizer, statistics))
    return [np.asarray(x) for x in jax.tree.leaves((weights, optimizer))]


def step_of(name: str) -> Step:
    """Return the step of a name."""
    return EVERY_STEP[name]
