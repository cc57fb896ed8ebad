"""LAPACK routines that programs for CPUs call, each matrix on one tile."""

from math import prod
from typing import ClassVar

from hloipu_runtime.codelets.core.codelet import ALL, Codelet, Index, Indexing, codelet
from hloipu_runtime.codelets.core.grids import share, spread
from hloipu_runtime.codelets.core.labels import require
from hloipu_runtime.codelets.core.tensors import Array, Blocks, Bound, Sizes, Tensors
from hloipu_runtime.codelets.costs.matrices import cholesky_work, matrix_work, solve_work
from hloipu_runtime.kernels.linear_algebra.lapack import LAPACK_TARGETS
from hloipu_runtime.kernels.linear_algebra.lapack_forms import (
    batch_rank,
    call_lapack,
    element_type_of,
    routine_of,
)
from hloipu_runtime.machine.costs import TileWork
from hloipu_runtime.machine.model import Machine

_CUBIC_SLOTS = {
    "getrf": 1, "geqrf": 2, "geqp3": 3, "orgqr": 2, "ungqr": 2, "ormqr": 4, "unmqr": 4,
    "sytrd": 2, "hetrd": 2, "gehrd": 4, "syevd": 10, "heevd": 10, "gesdd": 20, "gesvd": 25,
    "geev": 25, "gees": 25,
}  # fmt: skip
"""Slots for each n^3, n^2 m and so on. Assumed: multiplications and additions as counted in
G. H. Golub and C. F. Van Loan, Matrix Computations, rounded, one a slot as in poplibs' Cholesky."""
_TRIDIAGONAL_SLOTS = 40


@codelet
class LapackCall(Codelet):
    """One routine of `kernels/linear_algebra/lapack.py` on batches, by its target.

    A target is `lapack_` + one of s d c z + routine + `_ffi`.
    """

    name: ClassVar[str] = "lapack"
    code_bytes: ClassVar[int] = 8192

    target: str
    attributes: tuple[tuple[str, int | bool | str], ...]

    @property
    def routine(self) -> str:
        """Name of the routine, without the letter of its type."""
        return routine_of(self.target)

    @property
    def element_type(self) -> str:
        """Element type that the routine computes in."""
        return element_type_of(self.target)

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Return a label for each batch dimension."""
        require(self.target in LAPACK_TARGETS, "no such routine")
        count = self._batch_rank(operands[0].shape)
        require(count >= 0, "no matrices")
        batch = tuple(Index(d) for d in range(count))

        def each(tensors: Tensors) -> tuple[tuple[Index, ...], ...]:
            return tuple(batch + (ALL,) * (len(tensor.shape) - count) for tensor in tensors)

        return Indexing(operands[0].shape[:count], each(operands), each(results))

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Call the routine on all matrices of all tiles."""
        shared = share(operands)
        count = self._batch_rank(operands[0].part)
        matrices = [block.part[count:] for block in results]
        computed = call_lapack(self.target, shared.arrays, dict(self.attributes), matrices)
        return [spread(x, operands[0].grid, shared.grid) for x in computed]

    def bound(self, operands: Blocks, results: Blocks) -> Bound:
        """Return `run`; of whole tensors the call of the routine alone."""
        if results[0].grid:
            return super().bound(operands, results)
        count, attributes = self._batch_rank(operands[0].part), dict(self.attributes)
        matrices = [block.part[count:] for block in results]
        return lambda arrays, outs: call_lapack(self.target, arrays, attributes, matrices)

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Return the work of one worker a matrix; of a triangular solve, a right-hand side."""
        shape = operands[0].shape
        count = self._batch_rank(shape)
        batch, element_type = prod(shape[:count]), self.element_type
        if batch == 0 or any(0 in tensor.shape for tensor in operands):
            return TileWork(0)
        if self.routine == "potrf":
            return cholesky_work(machine, batch, shape[-1], element_type)
        if self.routine == "trsm":
            n, sides = shape[-1], operands[1].elements // (batch * shape[-1])
            return solve_work(machine, batch * sides, n, element_type, forward=True)
        if self.routine == "gtsv":
            slots = _TRIDIAGONAL_SLOTS * operands[3].elements // batch
            return matrix_work(machine, batch, slots, 0, element_type, sourced=False)
        m, n = shape[-2:]
        cubic = _CUBIC_SLOTS[self.routine] * m * n * min(m, n)
        if self.routine in ("ormqr", "unmqr"):
            cubic = (
                _CUBIC_SLOTS[self.routine] * operands[2].elements // batch * operands[1].shape[-1]
            )
        slots = cubic + 100 * m * n + 100 * (m + n) + 100
        return matrix_work(machine, batch, slots, 0, element_type, sourced=False)

    def _batch_rank(self, shape: Sizes) -> int:
        return batch_rank(self.target, shape)
