"""State of which each replica keeps one part: cutting and joining."""

from collections.abc import Sequence
from math import prod

import numpy as np

from hloipu_runtime.program.mapping import Sizes
from hloipu_runtime.program.program import Array, Program, StatePort


def part_size(shape: Sizes, replicas: int) -> int:
    """Return how many elements each replica keeps of an array."""
    return -(-prod(shape) // replicas)


def user_shape(program: Program, port: StatePort) -> Sizes:
    """Return the shape of a state's array as users see it."""
    return port.whole or program.variables[port.variable].shape


def part_of(array: Array, replica: int, replicas: int) -> Array:
    """Return a replica's part of an array, of its own memory."""
    size = part_size(array.shape, replicas)
    part = np.zeros(size, array.dtype)
    mine = array.reshape(-1)[replica * size : (replica + 1) * size]
    part[: len(mine)] = mine
    return part


def joined(parts: Sequence[Array], shape: Sizes) -> Array:
    """Return the array that the replicas' parts make up."""
    array: Array = np.concatenate(parts)[: prod(shape)].reshape(shape)
    return array
