"""Arrays divided into one block per partition: cutting and joining.

A partitioned program is one program for every partition. Its parameters and results are blocks;
users see whole arrays. Partitions are places of a mesh, and axes of the mesh divide dimensions: the
block of a partition along a dimension has the number that its coordinates on these axes make.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from hloipu_runtime.errors import MismatchError
from hloipu_runtime.program.stacks import Divided, Partitioning

Array = np.ndarray[Any, Any]


class Blocks:
    """The blocks of one array; numbers of partitions are those within a replica."""

    def __init__(self, partitioning: Partitioning, divided: Divided) -> None:
        mesh = partitioning.mesh
        self.partitions = prod(mesh)
        self.shape = divided.shape
        self.counts = tuple(prod(mesh[a] for a in axes) for axes in divided.axes)
        """Of blocks along each dimension."""
        self.block_shape = tuple(
            -(-n // count) for n, count in zip(self.shape, self.counts, strict=True)
        )
        """Of every partition's block; behind the end of a dimension blocks have zeros."""
        self._partitioning, self._divided = partitioning, divided

    def of_piece(self, axis: int, size: int) -> "Blocks":
        """Return the blocks of a piece of the array, cut along an axis that is not divided."""
        shape = (*self.shape[:axis], size, *self.shape[axis + 1 :])
        return Blocks(self._partitioning, replace(self._divided, shape=shape))

    @property
    def division(self) -> tuple[Any, ...]:
        """Key that is equal where two programs divide an array alike."""
        return self.counts, self.places.tobytes()

    @cached_property
    def places(self) -> Any:
        """The number of each partition's block along each dimension, one row a partition."""
        mesh, order = self._partitioning.mesh, self._partitioning.order
        coordinates = np.unravel_index(np.arange(self.partitions), mesh or (1,))
        by_place = np.zeros((self.partitions, len(self.shape)), np.int64)
        for d, axes in enumerate(self._divided.axes):
            for axis in axes:
                by_place[:, d] = by_place[:, d] * mesh[axis] + coordinates[axis]
        if not order:
            return by_place
        by_partition = np.zeros_like(by_place)
        by_partition[list(order)] = by_place
        return by_partition

    @cached_property
    def first_holders(self) -> Any:
        """The first partition that has the block of each partition."""
        first_by_place: dict[bytes, int] = {}
        return [first_by_place.setdefault(row.tobytes(), n) for n, row in enumerate(self.places)]

    def _part(self, partition: int) -> tuple[slice, ...]:
        rows = zip(self.places[partition].tolist(), self.block_shape, self.shape, strict=True)
        return tuple(slice(min(i * size, n), min((i + 1) * size, n)) for i, size, n in rows)

    def block(self, array: Array, partition: int) -> Array:
        """Return a partition's block of the whole array: a view of it where it has no padding."""
        part = array[self._part(partition)]
        if part.shape == self.block_shape:
            return part
        padded = np.zeros(self.block_shape, array.dtype)
        padded[tuple(map(slice, part.shape))] = part
        return padded

    def joined(self, blocks: Sequence[Array], name: str) -> Array:
        """Return the whole array that the blocks of all partitions make up.

        Raises MismatchError E6010 where partitions that have the same block do not agree on it, bit
        by bit; `name`: the array's, for that.
        """
        joined_array = np.empty(self.shape, blocks[0].dtype)
        for partition, (block, first) in enumerate(zip(blocks, self.first_holders, strict=True)):
            part = self._part(partition)
            unpadded = block[tuple(slice(s.stop - s.start) for s in part)]
            if first == partition:
                joined_array[part] = unpadded
            elif not _same(joined_array[part], unpadded):
                raise MismatchError(
                    "E6010",
                    f"partitions {first} and {partition} have the same block of {name!r} and do "
                    "not agree on it",
                    hint="this is a fault of partitioning: `hloipu reduce FILE --error E6010` "
                    "makes the module small enough to report; --partition off compiles without",
                )
        return joined_array


def blocks_by_number(partitioning: Partitioning | None, kind: str) -> dict[int, Blocks]:
    """Return the blocks of all parameters, or of all results, by number."""
    if partitioning is None:
        return {}
    return {
        array.number: Blocks(partitioning, array)
        for array in partitioning.arrays
        if array.kind == kind
    }


def _same(a: Array, b: Array) -> bool:
    """Whether two arrays are the same, bit by bit."""
    return np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()
