"""Discrete Fourier transforms along one dimension, and the twiddle factors of long ones.

Transforms over several dimensions are one after the other: of real values the last dimension first,
to real values it last. A dimension that is too long for a tile is seen as [n1, n2]: transform along
n1, multiply by exp(-+2 pi i k1 i2 / (n1 n2)), transform along n2; element [k1, k2] is then the
frequency k1 + n1 k2 (J. W. Cooley and J. W. Tukey, Math. Comp. 19, 1965).
"""

from collections.abc import Sequence
from functools import lru_cache, partial
from math import prod
from typing import Any, ClassVar

import numpy as np

from hloipu_runtime.codelets.core.codelet import Codelet, Index, Indexing, codelet
from hloipu_runtime.codelets.core.grids import moved, share, spread
from hloipu_runtime.codelets.core.labels import batch_labels, require
from hloipu_runtime.codelets.core.tensors import Array, Block, Blocks, Bound, Tensors
from hloipu_runtime.kernels.core.quiet import quietly
from hloipu_runtime.kernels.fft import KINDS, fft
from hloipu_runtime.machine.costs import TileWork, shared_vertex_cycles, single_vertices_cycles
from hloipu_runtime.machine.model import Machine

_BUTTERFLY_SLOTS = 6
"""Of two c64 values and a twiddle factor: 3 loads, 2 stores that overlap with 5 vectors of
arithmetic and their rounding up. Assumed; no library of the vendor has a transform."""
_TWIDDLE_SLOTS = 4
"""Of one c64 product: 2 loads and 3 vectors of arithmetic, which overlap in part. Assumed."""
_ROW_SLOTS = 30
_VERTEX_CYCLES = 11
_MOST_FACTORS = 1 << 18
"""That are kept for the next run; *assumed*."""


@codelet
class Fft(Codelet):
    """Transforms along one dimension; `kind` is FFT, IFFT, RFFT or IRFFT."""

    name: ClassVar[str] = "fft"
    code_bytes: ClassVar[int] = 2048

    kind: str
    dimension: int
    length: int
    """In the time domain."""

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Every other dimension may be split."""
        given, wanted = list(operands[0].shape), list(results[0].shape)
        require(self.kind in KINDS, "no kind of transform")
        require(0 <= self.dimension < len(given), "a dimension that there is not")
        half = self.length // 2 + 1 if self.length else 0
        ends = {"RFFT": (self.length, half), "IRFFT": (half, self.length)}
        given[self.dimension], wanted[self.dimension] = ends.get(self.kind, (self.length,) * 2)
        require(tuple(given) == operands[0].shape, "a length that the operand has not")
        require(tuple(wanted) == results[0].shape, "a length that the result has not")
        sizes, each = batch_labels(operands[0].shape, (self.dimension,))
        return Indexing(sizes, (each,), (each,))

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Transform all rows of all tiles at once."""
        grid = operands[0].grid
        shared = share(operands)
        axis, last = len(grid) + self.dimension, shared.arrays[0].ndim - 1
        rows = moved(shared.arrays[0], axis, last)
        transformed = moved(fft(rows, self.kind, (self.length,)), last, axis)
        return [spread(transformed, grid, shared.grid)]

    def bound(self, operands: Blocks, results: Blocks) -> Bound:
        """Return `run`; of whole tensors the transform alone."""
        if results[0].grid:
            return super().bound(operands, results)
        d, last = self.dimension, len(results[0].part) - 1
        kind, lengths = self.kind, (self.length,)
        return lambda arrays, _: [moved(fft(moved(arrays[0], d, last), kind, lengths), last, d)]

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Return the work of the cheaper of a row to a worker, and all workers on each row."""
        size = operands[0].shape[self.dimension]
        rows = operands[0].elements // size if size else 0
        if rows == 0 or self.length == 0:
            return TileWork(0)
        butterflies, levels = _butterflies(self.length, real="R" in self.kind)
        slots = _BUTTERFLY_SLOTS * _wide(machine, operands[0].element_type)
        alone = single_vertices_cycles(machine, [(rows, _ROW_SLOTS + butterflies * slots)])
        share_of_one = -(-butterflies // machine.tile.worker_contexts)
        team = rows * shared_vertex_cycles(
            machine, _VERTEX_CYCLES * levels, _ROW_SLOTS * levels + share_of_one * slots
        )
        cycles = min(alone, team)
        return TileWork(cycles, cycles)


@codelet
class Twiddle(Codelet):
    """Multiplies element [.., i, .., j, ..] by exp(+-2 pi i (i j) / total), i and j two dims."""

    name: ClassVar[str] = "fft_twiddle"

    dimensions: tuple[int, int]
    total: int
    inverse: bool = False

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Every dimension may be split."""
        shape = operands[0].shape
        each = tuple(Index(d) for d in range(len(shape)))
        return Indexing(shape, (each,), (each,))

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Multiply, by factors that are computed in double precision."""
        factors = self._factors(operands[0], operands[0].data.dtype)
        with quietly():
            return [np.multiply(operands[0].data, factors, out=results[0].array)]

    def bound(self, operands: Blocks, results: Blocks) -> Bound:
        """Return `run`; factors of few elements are computed once."""
        (block,) = operands
        if prod(block.grid) * prod(block.part[d] for d in self.dimensions) > _MOST_FACTORS:
            return super().bound(operands, results)
        factors = lru_cache(maxsize=1)(partial(self._factors, block))

        def run(arrays: Sequence[Array], outs: Sequence[Array | None]) -> Sequence[Array]:
            with quietly():
                return [np.multiply(arrays[0], factors(arrays[0].dtype), out=outs[0])]

        return run

    def _factors(self, block: Block, dtype: np.dtype[Any]) -> Array:
        i, j = (_places(block, d) for d in self.dimensions)
        turn = (2 if self.inverse else -2) * np.pi / self.total
        factors: Array = np.exp(1j * turn * (i * j % self.total)).astype(dtype)
        return factors

    def may_overwrite(self, operand: int) -> bool:
        """Elements are computed where they lie."""
        return True

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Return the work of one product an element; the factors are a table."""
        if not operands[0].elements:
            return TileWork(0)
        slots = _TWIDDLE_SLOTS * _wide(machine, operands[0].element_type)
        each = -(-operands[0].elements // machine.tile.worker_contexts)
        cycles = shared_vertex_cycles(machine, _VERTEX_CYCLES, _ROW_SLOTS + each * slots)
        return TileWork(cycles, cycles)


def _butterflies(length: int, *, real: bool) -> tuple[int, int]:
    """Return butterflies and levels: n / 2 log2 n, half of that for real values.

    Lengths with a prime factor above 5 are three transforms of a power of two of at least twice
    the length (L. I. Bluestein, IEEE Trans. Audio Electroacoust. 18, 1970).
    """
    rest = length
    for prime in (2, 3, 5):
        while rest % prime == 0:
            rest //= prime
    times = 1
    if rest > 1:
        times, length = 3, 1 << (2 * length - 2).bit_length()
    levels = (length - 1).bit_length()
    count = times * ((length + 1) // 2) * levels
    return (count + 1) // 2 if real else count, times * levels


def _wide(machine: Machine, element_type: str) -> int:
    """Return how much dearer double precision is."""
    return machine.emulation.f64_factor if element_type in ("f64", "c128") else 1


def _places(block: Block, dimension: int) -> Array:
    """Return indices along a dimension, in a shape that broadcasts to grid + part."""
    start, rank = np.asarray(block.starts[dimension], np.int64), len(block.part)
    if start.ndim:
        start = start.reshape(*start.shape, *(1,) * rank)
    shape = [-1 if d == dimension else 1 for d in range(rank)]
    return np.asarray(start + np.arange(block.part[dimension]).reshape(shape))
