"""Computing expressions whose nodes are bound to kernels, large arrays in blocks.

Between the nodes of one block stand buffers that are used over and over, so that they stay in cache
and no page is mapped for them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

from hloipu_runtime.codelets.expression_steps import Step
from hloipu_runtime.kernels.blocks import BLOCK_ELEMENTS, Array, blocks, repeats
from hloipu_runtime.kernels.movement import contiguous
from hloipu_runtime.kernels.quiet import are_off, warnings_off

_ALIGNED_ELEMENTS = 1 << 14
"""From here on copying a transposed operand is cheaper than walking two orders at once."""


class Move(NamedTuple):
    """One node, ready to run."""

    step: Step
    arguments: tuple[int, ...]
    result: int
    """Position of the first result that it is, or -1."""
    buffer: int
    """Where its value stands between nodes of one block; -1: what the step returns."""
    dtype: np.dtype[Any]
    read_later: tuple[int, ...]
    """Of a result: operands that later nodes, or results that are operands, still read."""


@dataclass(frozen=True, slots=True)
class Plan:
    """An expression made ready to run."""

    operands: int
    moves: tuple[Move, ...]
    results: tuple[int, ...]
    dtypes: tuple[np.dtype[Any], ...]
    """Of the results."""
    warns: bool
    """Whether numpy may have something to say about the floats."""

    def run(
        self,
        arrays: Sequence[Array],
        outs: Sequence[Array | None] | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> list[Array]:
        """Compute the results; see `expression.evaluate`."""
        if shape is None:
            shape = _common_shape(arrays)
        if self.warns and not are_off():
            with warnings_off():
                return self._run(arrays, outs, shape)
        return self._run(arrays, outs, shape)

    def _run(
        self, arrays: Sequence[Array], outs: Sequence[Array | None] | None, shape: tuple[int, ...]
    ) -> list[Array]:
        elements = prod(shape)
        if len(self.moves) > 1 and elements > BLOCK_ELEMENTS:
            return self._in_blocks(arrays, outs or [None] * len(self.results), shape)
        values = list(arrays)
        if elements >= _ALIGNED_ELEMENTS and len(self.moves) == 1 and len(values) > 1:
            _align(values)
        if outs is None:
            for move in self.moves:
                values.append(move.step([values[x] for x in move.arguments], None))
        else:
            self._into(values, arrays, outs, shape)
        return [
            x if x.shape == shape else np.broadcast_to(x, shape)
            for x in [values[number] for number in self.results]
        ]

    def _into(
        self,
        values: list[Array],
        arrays: Sequence[Array],
        outs: Sequence[Array | None],
        shape: tuple[int, ...],
    ) -> None:
        """Append the nodes' values, results written to `outs` where nothing is lost."""
        for move in self.moves:
            arguments = [values[x] for x in move.arguments]
            out = outs[move.result] if move.result >= 0 else None
            if out is not None and not (
                _is_full(arguments, shape) and _untouched(out, arrays, move.read_later)
            ):
                out = None
            values.append(move.step(arguments, out))

    def _in_blocks(
        self, arrays: Sequence[Array], outs: Sequence[Array | None], shape: tuple[int, ...]
    ) -> list[Array]:
        """Run all nodes on one block after the other; results are whole arrays."""
        made = [
            _result_like(arrays, shape, dtype) if out is None else out
            for out, dtype in zip(outs, self.dtypes, strict=True)
        ]
        if not made:
            return []
        count = len(made)
        direct = [
            move.result >= 0 and _untouched(made[move.result], arrays, move.read_later)
            for move in self.moves
        ]
        aligned = [made[0], *arrays]
        _align(aligned)
        buffers: dict[int, Array] = {}
        for pieces in blocks(made[0], *made[1:], *aligned[1:]):
            values = list(pieces[count:])
            part = pieces[0].shape
            for move, is_direct in zip(self.moves, direct, strict=True):
                arguments = [values[x] for x in move.arguments]
                out: Array | None = None
                if _is_full(arguments, part):
                    if is_direct:
                        out = pieces[move.result]
                    elif move.buffer >= 0:
                        out = _buffer(buffers, move, part)
                values.append(move.step(arguments, out))
            for target, number in zip(pieces, self.results, strict=False):
                if values[number] is not target:
                    np.copyto(target, values[number])
        return made


def _common_shape(arrays: Sequence[Array]) -> tuple[int, ...]:
    if not arrays:
        return ()
    shape = arrays[0].shape
    if all(x.shape == shape for x in arrays):
        return shape
    return np.broadcast_shapes(*(x.shape for x in arrays))


def _is_full(arguments: Sequence[Array], shape: tuple[int, ...]) -> bool:
    """Whether a node's result has the common shape, so that it may be written in place."""
    for x in arguments:
        if x.shape == shape:
            return True
    return bool(arguments) and np.broadcast_shapes(*(x.shape for x in arguments)) == shape


def _untouched(out: Array, arrays: Sequence[Array], read_later: Sequence[int]) -> bool:
    """Whether writing to `out` leaves alone what is still to be read."""
    return not any(np.may_share_memory(out, arrays[k]) for k in read_later)


def _buffer(buffers: dict[int, Array], move: Move, shape: tuple[int, ...]) -> Array:
    buffer = buffers.get(move.buffer)
    if buffer is None or buffer.shape != shape:
        buffer = buffers[move.buffer] = np.empty(shape, move.dtype)
    return buffer


def _align(arrays: list[Array]) -> None:
    """Copy large transposed arrays to row-major order if another one has that order.

    Walking two large arrays in different orders misses the cache at every element of one.
    """
    large = [k for k, x in enumerate(arrays) if x.size >= _ALIGNED_ELEMENTS]
    if not any(arrays[k].flags.c_contiguous for k in large):
        return
    for k in large:
        x = arrays[k]
        if x.shape[-1] > 1 and x.strides[-1] != x.itemsize and not repeats(x):
            arrays[k] = contiguous(x)


def _result_like(arrays: Sequence[Array], shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return a fresh result in the memory order of the operands of its shape, if they agree."""
    orders = {x.strides for x in arrays if x.shape == shape and not repeats(x)}
    if len(orders) == 1:
        model = next(x for x in arrays if x.shape == shape and not repeats(x))
        return np.empty_like(model, dtype, subok=False)
    return np.empty(shape, dtype)
