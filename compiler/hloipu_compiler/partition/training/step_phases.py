"""What the instructions and the state of a training step are for, as found or as said."""

from collections.abc import Set
from dataclasses import dataclass
from typing import NamedTuple

FORWARD, BACKWARD, UPDATE, FREE = "fwd", "bwd", "wu", "free"


class Pair(NamedTuple):
    """A parameter that is state and the result that is its next value, arrays counted."""

    parameter: int
    result: int


class Gradient(NamedTuple):
    """A value that micro-batches add up for the update."""

    position: int
    parameters: tuple[int, ...]
    """State that is updated with it and that the forward pass reads: weights."""
    total: int = -1
    """The sum that it is a term of, which is all that is read of it; -1: there is none."""


@dataclass(frozen=True, slots=True)
class Phases:
    """What every instruction of a step is for."""

    phase: tuple[str, ...]
    """Of each position: fwd, bwd, wu; free: the same for all micro-batches; empty: dead."""
    gradients: tuple[Gradient, ...]
    updated: tuple[Pair, ...]
    """State that is made anew once for each update."""
    per_micro_batch: tuple[Pair, ...]
    """State that goes from one micro-batch to the next."""
    kept: tuple[Pair, ...]
    """State that does not change."""
    loss: int
    """Number of the result that is taken for the loss; -1: none."""
    late: tuple[int, ...]
    """Results that are made by the update, such as the norm of the gradients."""
    early: tuple[int, ...]
    """Results that each micro-batch makes."""


class Roles(NamedTuple):
    """What is known of the entry's arrays from outside."""

    state: tuple[Pair, ...]
    data: tuple[int, ...]
    """Parameters that are another array for each micro-batch."""
    carried: Set[int] = frozenset()
    """State said to go from micro-batch to micro-batch, by parameter."""
    loss: int | None = None
