"""Cholesky decomposition and triangular solve of batches of small matrices, each on one tile."""

from math import prod
from typing import ClassVar

import numpy as np

from hloipu_runtime.codelets.core.codelet import ALL, Codelet, Index, Indexing, codelet
from hloipu_runtime.codelets.core.grids import share, spread
from hloipu_runtime.codelets.core.labels import batch_labels, require
from hloipu_runtime.codelets.core.tensors import Array, Blocks, Tensors
from hloipu_runtime.codelets.costs.matrices import cholesky_work, solve_work
from hloipu_runtime.kernels.linear_algebra.factorisations import (
    TRANSPOSES,
    cholesky,
    triangular_solve,
)
from hloipu_runtime.machine.costs import TileWork
from hloipu_runtime.machine.model import Machine


@codelet
class Cholesky(Codelet):
    """Factors symmetric or Hermitian matrices [.., n, n]; zeros in the other triangle."""

    name: ClassVar[str] = "cholesky"
    code_bytes: ClassVar[int] = 1024

    lower: bool
    element_type: str

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Return a label for each batch dimension."""
        rank = len(operands[0].shape)
        require(rank > 1 and len(set(operands[0].shape[-2:])) == 1, "no square matrices")
        sizes, each = batch_labels(operands[0].shape, (rank - 2, rank - 1))
        return Indexing(sizes, (each,), (each,))

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Factor all matrices of all tiles at once."""
        shared = share(operands)
        factor = cholesky(shared.arrays[0], self.lower, self.element_type)
        return [spread(factor, operands[0].grid, shared.grid)]

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Return the work of one worker a matrix."""
        *batch, n, _ = operands[0].shape
        return cholesky_work(machine, prod(batch), n, self.element_type)


@codelet
class TriangularSolve(Codelet):
    """Solves op(a) x = b, or x op(a) = b, for (a, b) with a triangular."""

    name: ClassVar[str] = "triangular_solve"
    code_bytes: ClassVar[int] = 1024

    left_side: bool
    lower: bool
    unit_diagonal: bool
    transpose_a: str
    """Which op: NO_TRANSPOSE, TRANSPOSE or ADJOINT."""
    element_type: str

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Return labels of the batch and of the right-hand sides: columns of b, or rows."""
        rank = len(operands[1].shape)
        require(rank > 1 and self.transpose_a in TRANSPOSES, "no such system")
        along = rank - 2 if self.left_side else rank - 1
        sizes, b = batch_labels(operands[1].shape, (along,))
        batch = tuple(Index(d) for d in range(rank - 2))
        return Indexing(sizes, ((*batch, ALL, ALL), b), (b,))

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Solve all systems of all tiles at once; matrices that tiles share are inverted once."""
        a, b = operands
        matrices = share([a]).arrays[0]
        solution = triangular_solve(
            matrices,
            b.data,
            self.element_type,
            left_side=self.left_side,
            lower=self.lower,
            unit_diagonal=self.unit_diagonal,
            transpose_a=self.transpose_a,
        )
        return [np.asarray(solution)]

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Return the work of one worker a right-hand side."""
        *batch, rows, columns = operands[1].shape
        n, sides = (rows, columns) if self.left_side else (columns, rows)
        # What is solved from the first row on; the other way starts at the last.
        flips = (self.transpose_a != "NO_TRANSPOSE") + (not self.left_side)
        forward = self.lower == (flips % 2 == 0)
        return solve_work(machine, prod(batch) * sides, n, self.element_type, forward=forward)
