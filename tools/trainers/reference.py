"""What a recipe comes to by JAX: gradients of micro-batches averaged, or those of the whole batch.

Neither side knows of the other: here is no HLO, and what hloipu reads has no names of parts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from tools.trainers.recipe import Recipe, State, Tree, arrays, joined

UPDATES = 2
TOGETHER = 4
"""Micro-batches of an update, whatever way they go."""


@dataclass(frozen=True)
class Expected:
    """What some updates come to."""

    states: list[list[Any]]
    """Arrays of the learned and the carried state, for each replica."""
    learned: int
    """How many of them are learned."""
    early: dict[str, Any]
    """Metrics of each update, micro-batch and replica."""
    late: dict[str, Any]
    """Metrics of each update."""


def by_micro_batches(recipe: Recipe, replicas: int) -> Expected:
    """Return what the mean of gradients of micro-batches comes to, update after update."""
    gradients, update = recipe.jitted
    learned, first, frozen = recipe.begin
    own = [first] * replicas
    rounds = TOGETHER // replicas
    early, late = list[list[list[Any]]](), list[Any]()
    for number in range(UPDATES):
        totals, rows = [], []
        for replica in range(replicas):
            slopes, seen = [], []
            for k in range(rounds):
                place = (number * rounds + k) * replicas + replica
                state = State(learned, own[replica], frozen)
                each, own[replica], metrics = gradients(state, *recipe.batches([place])[0])
                slopes.append(each)
                seen.append(metrics)
            totals.append(_mean(slopes))
            rows.append(seen)
        early.append([[rows[r][k] for r in range(replicas)] for k in range(rounds)])
        learned, metrics = update(State(learned, own[0], frozen), _mean(totals))
        late.append(metrics)
    states = [arrays((learned, each)) for each in own]
    names = early[0][0][0]
    return Expected(
        states,
        len(jax.tree.leaves(learned)),
        {x: np.array([[[m[x] for m in row] for row in rows] for rows in early]) for x in names},
        {x: np.array([m[x] for m in late]) for x in late[0]},
    )


def by_whole_batches(recipe: Recipe) -> list[Any]:
    """Return the arrays of the learned state after as many updates by whole batches."""
    gradients, update = recipe.jitted
    learned, carried, frozen = recipe.begin
    for number in range(UPDATES):
        places = range(number * TOGETHER, (number + 1) * TOGETHER)
        state = State(learned, carried, frozen)
        slopes, carried, _ = gradients(state, *joined(recipe.batches(places)))
        learned, _ = update(State(learned, carried, frozen), slopes)
    return arrays(learned)


def _mean(trees: Sequence[Tree]) -> Tree:
    share = np.float32(1 / len(trees))

    def mean(*arrays: Any) -> Any:
        own = np.asarray(arrays[0]).dtype
        total = np.zeros(np.shape(arrays[0]), own)
        for x in arrays:
            total = (total + np.asarray(x) * own.type(share)).astype(own)
        return total

    return jax.tree.map(mean, *trees)
