"""Runs expressions on large arrays, block by block.

Between the nodes of one block stand buffers that are used over and over, so that they stay in cache
and no page is mapped for them. f16 and bf16 are kept as f32 whose last bits are zeros, and to round
an op's results takes several calls of numpy: what a chain of ops makes of one such value is looked
up in the time of a rounding, however long the chain is.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.codelets.core.expression_steps import Plain, Step
from hloipu_runtime.codelets.core.tensors import Bound
from hloipu_runtime.element_types import GRIDS
from hloipu_runtime.kernels.core.blocks import (
    Array,
    block_memories,
    blocks,
    like,
    put,
    repeats,
)
from hloipu_runtime.kernels.core.movement import contiguous
from hloipu_runtime.kernels.core.storage import storage_dtype

ALIGNED_ELEMENTS = 1 << 14
"""From here on copying a transposed operand is cheaper than walking two orders at once."""

_SHORT_RUN = 32
"""Elements of a row, up to which that is so, however few steps read an operand."""

Shape = tuple[int, ...]
Values = list[Any]
"""Arrays by number: operands first, nodes follow."""
Operation = Callable[[Values, Array | None], Array]
"""A node on the values before it, and perhaps the array to write to."""


class Move(NamedTuple):
    """One node, ready to run."""

    step: Step
    compute: Operation
    """The step with its arguments bound to their places."""
    writes_out: bool
    """Whether its result shares no memory with an argument."""
    number: int
    """Of its value."""
    arguments: tuple[int, ...]
    result: int
    """Position of the first result that it is, or -1."""
    buffer: int
    """Where its value stands between nodes of one block; -1: what the step returns."""
    dtype: np.dtype[Any]
    read_later: tuple[int, ...]
    """Of a result: operands that later nodes or results read, or views of them."""


class Walk(NamedTuple):
    """What blocks are taken through."""

    operands: int
    fixed: tuple[Array | None, ...]
    """Of each node: its value where that is a constant."""
    moves: tuple[Move, ...]
    results: tuple[int, ...]
    dtypes: tuple[np.dtype[Any], ...]
    """Of the results."""


def operation(step: Step, arguments: Sequence[int]) -> Operation:
    """Return a step with its arguments bound to their places among the values."""
    if isinstance(step, Plain) and len(arguments) in (1, 2):
        ufunc, array, first, last = step.ufunc, np.asarray, arguments[0], arguments[-1]
        if len(arguments) == 1:
            return lambda values, out: array(ufunc(values[first], out=out))
        return lambda values, out: array(ufunc(values[first], values[last], out=out))
    return lambda values, out: step([values[number] for number in arguments], out)


def in_blocks(walk: Walk, shape: Shape) -> Bound:
    """Return how to run all nodes on one block after the other; results are whole arrays."""
    steps = _steps(walk)
    count = len(walk.results)
    read_later = [(move.result, move.read_later) for move in walk.moves if move.result >= 0]
    kinds = {step.buffer: step.dtype for step in steps if step.buffer >= 0}
    numbers = {buffer: n for n, buffer in enumerate(kinds)}
    calls = [
        (step.compute, step.number, step.result, numbers.get(step.buffer, -1)) for step in steps
    ]

    def run(arrays: Sequence[Array], outs: Sequence[Array | None]) -> list[Array]:
        wholes = [
            result_like(arrays, shape, dtype) if out is None else out
            for out, dtype in zip(outs, walk.dtypes, strict=True)
        ]
        if not wholes:
            return []
        aligned = [wholes[0], *arrays]
        align(aligned, len(aligned))
        in_place = [False] * count
        for result, later in read_later:
            in_place[result] = not later or untouched(wholes[result], arrays, later)
        part: Shape = ()
        with block_memories([*kinds.values()]) as memories:
            buffers: list[Array] = []
            for pieces in blocks(wholes[0], *wholes[1:], *aligned[1:]):
                if pieces[0].shape != part:
                    part = pieces[0].shape
                    size = pieces[0].size
                    buffers = [memory[:size].reshape(part) for memory in memories]
                values: Values = [*map(_with_long_runs, pieces[count:]), *walk.fixed]
                for compute, number, result, buffer in calls:
                    if result >= 0 and in_place[result]:
                        values[number] = compute(values, pieces[result])
                    elif buffer >= 0:
                        values[number] = compute(values, buffers[buffer])
                    else:
                        values[number] = compute(values, None)
                put(pieces[:count], [values[number] for number in walk.results])
        return wholes

    return run


def _with_long_runs(piece: Array) -> Array:
    """Return a piece of an operand, stored out where it repeats along short rows.

    numpy's loops begin anew for each of these, some 10 ns; to repeat takes less than one loop.
    """
    if piece.ndim < 2 or piece.strides[-1] or not 1 < piece.shape[-1] <= _SHORT_RUN:
        return piece
    if not any(piece.strides):
        return piece
    return np.repeat(piece[..., 0], piece.shape[-1]).reshape(piece.shape)


def _steps(walk: Walk) -> list[Move]:
    """Return the nodes; those of no dimension are written nowhere.

    Pieces of operands all have the block's shape: values that depend on none have no dimension.
    """
    full = [True] * walk.operands + [False] * len(walk.fixed)
    steps = []
    for move in walk.moves:
        full[move.number] = any(full[number] for number in move.arguments)
        steps.append(move if full[move.number] else move._replace(result=-1, buffer=-1))
    return steps


def untouched(out: Array, arrays: Sequence[Array], read_later: Sequence[int]) -> bool:
    """Whether writing to `out` leaves alone what is still to be read."""
    return not any(np.may_share_memory(out, arrays[k]) for k in read_later)


def align(arrays: list[Array], count: int) -> None:
    """Copy large transposed arrays of the first ones to row-major order if another has that order.

    Walking two large arrays in different orders misses the cache at every element of one.
    """
    large = [k for k in range(count) if arrays[k].size >= ALIGNED_ELEMENTS]
    if not any(arrays[k].flags.c_contiguous for k in large):
        return
    for k in large:
        x = arrays[k]
        if x.shape[-1] > 1 and x.strides[-1] != x.itemsize and not repeats(x):
            arrays[k] = contiguous(x)


def result_like(arrays: Sequence[Array], shape: Shape, dtype: np.dtype[Any]) -> Array:
    """Return a fresh result in the memory order of the operands of its shape, if they agree."""
    orders = {x.strides for x in arrays if x.shape == shape and not repeats(x)}
    if len(orders) == 1:
        model = next(x for x in arrays if x.shape == shape and not repeats(x))
        return np.empty_like(model, dtype, subok=False)
    return np.empty(shape, dtype)


# --- chains by tables -----------------------------------------------------------------------------
TABLE_ELEMENTS = 1 << 12
"""Arrays of fewer are computed: the calls take as long as all else."""
_ELEMENTS_BEFORE = 1 << 18
"""Elements to be seen before a table is filled, in the time of some 2^16."""
_SMALLEST_NORMAL, _HALF = np.float32(2.0**-126), np.float32(0.5)


class LookedUp:
    """A step that is a chain: computed at first, looked up once it has seen many elements."""

    def __init__(self, chain: Expression) -> None:
        self._chain = chain
        self._shift = np.uint32(23 - GRIDS[chain.operand_types[0]].mantissa_bits)
        self._seen = 0

    def __call__(self, x: list[Array], out: Array | None) -> Array:
        """Look up, or compute."""
        (values,) = x
        self._seen += values.size
        if values.size < TABLE_ELEMENTS or self._seen < _ELEMENTS_BEFORE:
            return _computed(self._chain, values, out)
        table = _table(self._chain, flushes=not _SMALLEST_NORMAL * _HALF)
        made = like(values, table.dtype) if out is None else out
        for target, piece in blocks(made, values):
            index = np.right_shift(piece.view(np.uint32), self._shift)
            table.take(index, out=target, mode="wrap")
        return made


def _computed(chain: Expression, values: Array, out: Array | None) -> Array:
    from hloipu_runtime.codelets.core.expression_planning import planned  # which comes here

    return planned(chain).run([values], [out])[0]


@lru_cache(maxsize=64)
def _table(chain: Expression, *, flushes: bool) -> Array:
    """Return what a chain makes of every number, by the bits that f32 has of it.

    `flushes`: whether this thread's f32 arithmetic gives zero for a subnormal result.
    2 MB for f16 in f32, which fills 340 KB of it; what lies between stays zeros.
    """
    (kind,) = chain.operand_types
    bits = _numbers(kind).view(np.uint32)
    table = np.zeros(1 << (9 + GRIDS[kind].mantissa_bits), storage_dtype(chain.result_types[0]))
    table[bits >> (23 - GRIDS[kind].mantissa_bits)] = _computed(chain, bits.view(np.float32), None)
    table.flags.writeable = False
    return table


@lru_cache(maxsize=2)
def _numbers(kind: str) -> Array:
    """Return every number of 16 bits as f32."""
    patterns = np.arange(1 << 16, dtype=np.uint32)
    if kind == "bf16":
        return (patterns << 16).view(np.float32)
    with np.errstate(all="ignore"):
        return patterns.astype(np.uint16).view(np.float16).astype(np.float32)
