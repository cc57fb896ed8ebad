"""Runs an expression's stages on arrays, block by block where there is more than one."""

from collections.abc import Callable, Iterator, Sequence
from ctypes import c_int64
from math import prod
from typing import NamedTuple

import numpy as np

from hloipu_runtime.codelets.core.expression_steps import Step
from hloipu_runtime.codelets.core.expression_walk import align, result_like
from hloipu_runtime.codelets.core.native_stages import KernelStage, NumpyStage, Staged
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.kernels.core.blocks import Array, aligned_empty
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.kernels.native.library import CodePointer

STAGED_ELEMENTS = 1 << 15
"""Elements of a block between stages, which stands in buffers: 128 KiB of f32."""

FEWEST_COLUMNS = 32
"""With fewer, operands are repeated to full size first: a row is set up in some ten."""

Sizes = tuple[int, ...]
Block = Callable[[int, int, int, int], None]
"""What is done for a block: its first row and column, its rows and columns."""
View = Callable[[int, int, int, int], Array]
"""Returns a block of an array."""
Compile = Callable[[KernelStage, tuple[bool, ...]], CodePointer | None]


class _Place(NamedTuple):
    """An operand or result as rows of columns."""

    array: Array
    """Keeps the memory."""
    address: int
    row_bytes: int
    column_bytes: int
    """Zero where a row shares one element."""


class _Rows(NamedTuple):
    """The common sizes, and every operand, then every result."""

    rows: int
    columns: int
    places: list[_Place]


def run(
    staged: Staged,
    compile: Compile,
    arrays: Sequence[Array],
    outs: Sequence[Array | None],
    shape: Sizes,
    scratch: dict[int, Array],
) -> list[Array] | None:
    """Compute an expression's results; None where kernels cannot write them, or are not compiled.

    `scratch`: buffers by number of value, which are added where there is none.
    """
    lowered = staged.lowered
    made = [
        result_like(arrays, shape, storage_dtype(lowered.type_of(x))) if out is None else out
        for x, out in zip(lowered.results, outs, strict=True)
    ]
    aligned = [made[0], *arrays]
    align(aligned, len(aligned))
    places = _as_rows(made, aligned[1:], shape)
    if places is None:
        return None
    if prod(shape):
        calls = _calls(staged, compile, places, scratch)
        if calls is None:
            return None
        whole = len(calls) == 1 and isinstance(calls[0], _Call)
        for block in _blocks(places, whole=whole):
            for call in calls:
                call(*block)
    return made


def _as_rows(made: Sequence[Array], arrays: Sequence[Array], shape: Sizes) -> _Rows | None:
    """Return arrays as rows of columns, the columns as long as all of them allow."""
    order = sorted(range(len(shape)), key=lambda axis: -abs(made[0].strides[axis]))
    if order != list(range(len(shape))):
        made = [x.transpose(order) for x in made]
        sizes = tuple(shape[axis] for axis in order)
        arrays = [
            x.transpose(order)
            if x.ndim == len(shape)
            else np.broadcast_to(x, shape).transpose(order)
            for x in arrays
        ]
    else:
        sizes = shape
    if not all(x.flags.c_contiguous for x in made):
        return None
    if all((x.shape == sizes and x.flags.c_contiguous) or x.size == 1 for x in arrays):
        flat = [_Place(x, _address(x), 0, 0 if x.size == 1 else x.itemsize) for x in arrays]
        whole = [_Place(x, _address(x), 0, x.itemsize) for x in made]
        if prod(sizes) == 1:
            flat = [x._replace(column_bytes=0) for x in flat]
        return _Rows(1, prod(sizes), [*flat, *whole])
    split, kept = _split(sizes, arrays)
    rows, columns = prod(sizes[:split]), prod(sizes[split:])
    places = [_rows_of(x, sizes, split) for x in kept]
    for x in made:
        places.append(_Place(x, _address(x), columns * x.itemsize, x.itemsize))
    return _Rows(rows, columns, places)


def _address(x: Array) -> int:
    return int(x.__array_interface__["data"][0])


def _split(sizes: Sizes, arrays: Sequence[Array]) -> tuple[int, list[Array]]:
    """Return from which dimension on elements are columns, and arrays of all dimensions.

    Each array runs through its columns one after the other, or shares one element with all.
    """
    whole = [np.broadcast_to(x, sizes) for x in arrays]
    split = len(sizes)
    columns = 1
    kinds: list[set[int]] = [set() for _ in whole]
    while split > 0:
        n = sizes[split - 1]
        if n > 1:
            steps = [_step(x, split - 1, columns) for x in whole]
            if any(s is None or kind | {s} == {0, 1} for s, kind in zip(steps, kinds, strict=True)):
                break
            for s, kind in zip(steps, kinds, strict=True):
                kind.add(s or 0)
            columns *= n
        split -= 1
    if columns < FEWEST_COLUMNS:
        return 0, [np.ascontiguousarray(x) for x in whole]
    return split, whole


def _step(x: Array, axis: int, columns: int) -> int | None:
    """Return 0 where an array repeats along an axis, 1 where it goes on behind the columns."""
    stride = x.strides[axis]
    return 0 if stride == 0 else 1 if stride == columns * x.itemsize else None


def _rows_of(x: Array, sizes: Sizes, split: int) -> _Place:
    """Return an array as rows at one stride, copied where its rows have none."""
    inner = [s for s, n in zip(x.strides[split:], sizes[split:], strict=True) if n > 1]
    column = x.itemsize if any(inner) else 0
    stride = 0
    count = 1
    for axis in range(split - 1, -1, -1):
        n = sizes[axis]
        if n == 1:
            continue
        if count == 1:
            stride = x.strides[axis]
        elif x.strides[axis] != stride * count:
            columns = slice(None) if column else slice(0, 1)
            cut = x[(*(slice(None),) * split, *(columns,) * (len(sizes) - split))]
            copied = np.ascontiguousarray(cut)
            width = prod(sizes[split:]) if column else 1
            return _Place(copied, _address(copied), width * x.itemsize, column)
        count *= n
    return _Place(x, _address(x), stride, column)


class _Call:
    """A kernel with its arguments, of which addresses move from block to block."""

    def __init__(self, code: CodePointer, places: Sequence[_Place], moving: Sequence[bool]) -> None:
        self._code = code
        self._arguments = (c_int64 * (2 + 2 * len(places)))()
        for k, place in enumerate(places):
            self._arguments[2 + 2 * k : 4 + 2 * k] = [place.address, place.row_bytes]
        self._moving = [
            (2 + 2 * k, place.address, place.row_bytes, place.column_bytes)
            for k, place in enumerate(places)
            if moving[k] and (place.row_bytes or place.column_bytes)
        ]

    def __call__(self, row: int, column: int, rows: int, columns: int) -> None:
        arguments = self._arguments
        arguments[0], arguments[1] = rows, columns
        for k, address, row_bytes, column_bytes in self._moving:
            arguments[k] = address + row * row_bytes + column * column_bytes
        self._code(arguments)


class _Step:
    """A step of numpy's with its arguments."""

    def __init__(self, step: Step, views: Sequence[View], target: View) -> None:
        self._step, self._views, self._target = step, views, target

    def __call__(self, row: int, column: int, rows: int, columns: int) -> None:
        block = row, column, rows, columns
        target = self._target(*block)
        found = self._step([view(*block) for view in self._views], target)
        if found is not target:
            np.copyto(target, found)


@dataclass(frozen=True, slots=True)
class _Copy:
    """A result that is an operand, or is made while operands are still read."""

    source: View
    target: View

    def __call__(self, row: int, column: int, rows: int, columns: int) -> None:
        block = row, column, rows, columns
        np.copyto(self.target(*block), self.source(*block))


def _calls(
    staged: Staged, compile: Compile, rows: _Rows, scratch: dict[int, Array]
) -> list[Block] | None:
    """Return what is called for each block, in order; None where a kernel is not compiled."""
    lowered = staged.lowered
    count = len(lowered.operand_types)
    reading = max((staged.last_read.get(k, -1) for k in range(count)), default=-1)
    fixed = dict(enumerate(rows.places))
    for number, value in staged.constants.items():
        fixed[number] = _Place(value, _address(value), 0, 0)
    fixed = {k: x for k, x in fixed.items() if k < count or k in staged.constants}
    targets = rows.places[count:]
    width = min(rows.columns, STAGED_ELEMENTS)

    def view(number: int) -> View:
        return (
            _fixed_view(fixed[number], rows) if number in fixed else _buffer_view(scratch[number])
        )

    calls: list[Block] = []
    for position, stage in enumerate(staged.stages):
        for number in stage.results:
            if number in lowered.results and position >= reading:
                fixed[number] = targets[lowered.results.index(number)]
            elif number not in scratch:
                kind = storage_dtype(lowered.type_of(number))
                scratch[number] = aligned_empty((STAGED_ELEMENTS,), kind)
        if isinstance(stage, NumpyStage):
            views = [view(x) for x in stage.operands]
            calls.append(_Step(stage.part.step, views, view(stage.number)))
            continue
        numbers = (*stage.operands, *stage.results)
        places = [fixed[x] if x in fixed else _buffer_place(scratch[x], width) for x in numbers]
        shared = tuple(not x.column_bytes for x in places[: len(stage.operands)])
        code = compile(stage, shared)
        if code is None:
            return None
        calls.append(_Call(code, places, [x in fixed for x in numbers]))
    for number, target in zip(lowered.results, targets, strict=True):
        if fixed.get(number) is not target:
            calls.append(_Copy(view(number), _fixed_view(target, rows)))
    return calls


def _buffer_place(buffer: Array, width: int) -> _Place:
    return _Place(buffer, _address(buffer), width * buffer.itemsize, buffer.itemsize)


def _fixed_view(place: _Place, rows: _Rows) -> View:
    whole = np.lib.stride_tricks.as_strided(
        place.array, (rows.rows, rows.columns), (place.row_bytes, place.column_bytes)
    )
    return lambda row, column, rows, columns: whole[row : row + rows, column : column + columns]


def _buffer_view(buffer: Array) -> View:
    return lambda row, column, rows, columns: buffer[: rows * columns].reshape(rows, columns)


def _blocks(rows: _Rows, *, whole: bool) -> Iterator[tuple[int, int, int, int]]:
    """Yield first row, first column, rows and columns of each block."""
    if whole:
        yield 0, 0, rows.rows, rows.columns
    elif rows.columns > STAGED_ELEMENTS:
        for row in range(rows.rows):
            for column in range(0, rows.columns, STAGED_ELEMENTS):
                yield row, column, 1, min(STAGED_ELEMENTS, rows.columns - column)
    else:
        step = max(1, STAGED_ELEMENTS // rows.columns)
        for row in range(0, rows.rows, step):
            yield row, 0, min(step, rows.rows - row), rows.columns
