"""Batch normalisation: training and gradient, split over the features.

Statistics of a feature are taken on one tile; the other dimensions are not split.
"""

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from hloipu_runtime.codelets.core.codelet import ALL, Codelet, Index, Indexing, codelet
from hloipu_runtime.codelets.core.grids import share, spread
from hloipu_runtime.codelets.core.tensors import Array, Blocks, Tensor, Tensors
from hloipu_runtime.codelets.costs.amp import conversion_cycles
from hloipu_runtime.codelets.costs.combining import combining
from hloipu_runtime.kernels.batch_norm import batch_norm_grad, batch_norm_training
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.costs import TileWork, shared_vertex_cycles
from hloipu_runtime.machine.model import Machine


@dataclass(frozen=True)
class BatchNorm(Codelet):
    """What the two have in common; large operands come first or last, [features] between."""

    epsilon: str
    """Added to variances: the exact text of a number, as `float.hex` writes it."""
    feature: int
    """The dimension of the features."""
    element_type: str

    passes: ClassVar[int] = 1
    """How often a vertex goes over the elements; each pass multiplies and adds."""

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Return the features as the only label."""

        def follow(tensor: Tensor) -> tuple[Index, ...]:
            if len(tensor.shape) == 1 and tensor is not operands[0]:
                return (Index(0),)
            return tuple(Index(0) if d == self.feature else ALL for d in range(len(tensor.shape)))

        return Indexing(
            (operands[0].shape[self.feature],),
            tuple(map(follow, operands)),
            tuple(map(follow, results)),
        )

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Compute; the features of all tiles are one tensor's features."""
        shared = share(operands)
        rank = len(shared.grid)
        if rank == 0:
            return self._whole(shared.arrays, self.feature)
        # Put the grid right before the feature dimension, and count (tile, feature) as one.
        merged = []
        for x in shared.arrays:
            x = np.broadcast_to(x, (*shared.grid, *x.shape[rank:]))
            at = self.feature if x.ndim - rank > 1 or len(operands[0].part) == 1 else 0
            x = np.moveaxis(x, range(rank), range(at, at + rank))
            features = prod(x.shape[at : at + rank + 1])
            merged.append(x.reshape((*x.shape[:at], features, *x.shape[at + rank + 1 :])))
        arrays = []
        for x, result in zip(self._whole(merged, self.feature), results, strict=True):
            at = self.feature if x.ndim > 1 else 0
            part = result.part
            x = x.reshape((*part[:at], *shared.grid, *part[at:]))
            x = np.moveaxis(x, range(at, at + rank), range(rank))
            arrays.append(spread(x, result.grid, shared.grid))
        return arrays

    def _whole(self, arrays: list[Array], feature: int) -> list[Array]:
        raise NotImplementedError

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Return the assumed work: passes of a multiply and an add, and a root per feature."""
        step = combining(machine, self.element_type, "add", None)
        elements = over(operands[0].elements, machine.tile.worker_contexts)
        features = over(operands[0].shape[self.feature], machine.tile.worker_contexts)
        if not elements:
            return TileWork(0)
        worker = 30 + self.passes * (12 * features + 2 * step.slots * over(elements, step.lanes))
        cycles = shared_vertex_cycles(
            machine, machine.tile.supervisor_vertex_cycles, worker + 40 * features
        )
        for tensor in (*operands, *results):
            if tensor.element_type != "f16":
                cycles += conversion_cycles(machine, tensor.element_type, tensor.elements)
        return TileWork(cycles, cycles)


@codelet
class BatchNormTraining(BatchNorm):
    """(x, scale, offset) -> (y, mean, variance)."""

    name: ClassVar[str] = "batch_norm_training"
    passes: ClassVar[int] = 3

    def _whole(self, arrays: list[Array], feature: int) -> list[Array]:
        x, scale, offset = arrays
        return list(
            batch_norm_training(
                x, scale, offset, float.fromhex(self.epsilon), feature, self.element_type
            )
        )


@codelet
class BatchNormGrad(BatchNorm):
    """(x, scale, mean, variance, gradient of y) -> gradients of x, scale and offset."""

    name: ClassVar[str] = "batch_norm_grad"
    passes: ClassVar[int] = 4

    def _whole(self, arrays: list[Array], feature: int) -> list[Array]:
        x, scale, mean, variance, gradient = arrays
        return list(
            batch_norm_grad(
                x,
                scale,
                mean,
                variance,
                gradient,
                float.fromhex(self.epsilon),
                feature,
                self.element_type,
            )
        )
