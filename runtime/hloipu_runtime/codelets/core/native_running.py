"""Runs an expression's stages on arrays, block by block where there is more than one."""

from collections.abc import Callable, Iterator, Sequence
from ctypes import c_int64
from math import prod
from operator import itemgetter
from typing import Protocol

import numpy as np

from hloipu_runtime.codelets.core.expression_steps import Step
from hloipu_runtime.codelets.core.native_layout import (
    FEWEST_COLUMNS,
    Form,
    Layout,
    Place,
    Sizes,
    dense,
    laid_out,
    layout,
)
from hloipu_runtime.codelets.core.native_stages import KernelStage, NumpyStage, Staged
from hloipu_runtime.kernels.core.blocks import Array, aligned_empty
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.kernels.native.llvm import CodePointer, address_of

STAGED_ELEMENTS = 1 << 15
"""Elements of a block between stages, which stands in buffers: 128 KiB of f32."""


class Compile(Protocol):
    """Returns the code of a stage, if it is there."""

    def __call__(
        self,
        stage: KernelStage,
        shared: tuple[bool, ...],
        planed: tuple[int, ...],
        *,
        boxed: bool = False,
    ) -> CodePointer | None:
        """Return it, where some operands are shared by rows, and some places have planes."""
        ...


Block = tuple[int, int, int, int]
"""First row and column, rows and columns."""
View = Callable[[list[Array], Block], Array]
"""Returns a block of an array, from the arrays of a run."""


class _Call:
    """A kernel with its arguments, of which addresses move from block to block."""

    def __init__(
        self,
        code: CodePointer,
        places: Sequence[tuple[Place, int, Array | None]],
        planed: Sequence[int],
        plane_rows: int,
    ) -> None:
        """`places` are operands and results: how they lie, which array of a run, or what array."""
        self._code = code
        self._first = 3 + 2 * len(places) if planed else 0
        """The place of the first row's number; 0: nowhere."""
        strides = [places[k][0].plane_bytes or 0 for k in planed]
        behind = [plane_rows, 0, *strides] if planed else []
        self._arguments = (c_int64 * (2 + 2 * len(places) + len(behind)))()
        for k, number in enumerate(behind, 2 + 2 * len(places)):
            self._arguments[k] = number
        self._given: list[tuple[int, int, int, int]] = []
        self._moving: list[tuple[int, int, int, int]] = []
        for k, (place, number, array) in enumerate(places):
            self._arguments[3 + 2 * k] = place.row_bytes
            if array is not None:
                self._arguments[2 + 2 * k] = address_of(array)
            else:
                row_bytes = place.row_bytes if place.plane_bytes is None else 0
                self._given.append((2 + 2 * k, number, row_bytes, place.column_bytes))

    def begin(self, addresses: Sequence[int]) -> None:
        """Take the addresses of a run's arrays."""
        self._moving.clear()
        for k, number, row_bytes, column_bytes in self._given:
            self._arguments[k] = addresses[number]
            if row_bytes or column_bytes:
                self._moving.append((k, addresses[number], row_bytes, column_bytes))

    def __call__(self, arrays: list[Array], block: Block) -> None:
        arguments = self._arguments
        row, column, arguments[0], arguments[1] = block
        if self._first:
            arguments[self._first] = row
        if row or column:
            for k, address, row_bytes, column_bytes in self._moving:
                arguments[k] = address + row * row_bytes + column * column_bytes
        self._code(arguments)


class _Step:
    """A step of numpy's with its arguments."""

    def __init__(self, step: Step, views: Sequence[View], target: View) -> None:
        self._step, self._views, self._target = step, views, target

    def __call__(self, arrays: list[Array], block: Block) -> None:
        target = self._target(arrays, block)
        computed = self._step([view(arrays, block) for view in self._views], target)
        if computed is not target:
            np.copyto(target, computed)


def _copy(x: list[Array], out: Array | None) -> Array:
    """Bring a value to where it is a result: an operand, or what was made before they were read."""
    return x[0]


class Prepared:
    """An expression's stages for arrays that lie in one way. One run at a time may have it."""

    def __init__(self, staged: Staged, layout: Layout, compile: Compile) -> None:
        self._staged, self._layout = staged, layout
        self._calls: list[_Call | _Step] = []
        self._buffers: dict[int, Array] = {}
        self._viewed: set[int] = set()
        """Arrays of a run that numpy's steps read or write."""
        lowered, count = staged.lowered, len(staged.lowered.operand_types)
        self._slots = {k: k for k in range(count)}
        """Of values that are arrays of a run: which one."""
        elements = max(1, min(STAGED_ELEMENTS, layout.rows * layout.columns))
        reading = max((staged.last_read.get(k, -1) for k in range(count)), default=-1)
        for position, stage in enumerate(staged.stages):
            for number in stage.results:
                if number in lowered.results and position >= reading:
                    self._slots[number] = count + lowered.results.index(number)
                else:
                    kind = storage_dtype(lowered.type_of(number))
                    self._buffers[number] = aligned_empty((elements,), kind)
            if isinstance(stage, NumpyStage):
                views = [self._view(x) for x in stage.operands]
                self._calls.append(_Step(stage.part.step, views, self._view(stage.number)))
                continue
            places = [self._place(number) for number in (*stage.operands, *stage.results)]
            shared = tuple(not x[0].column_bytes for x in places[: len(stage.operands)])
            planed = tuple(k for k, x in enumerate(places) if x[0].plane_bytes is not None)
            code = compile(stage, shared, planed)
            if code is None:
                self.is_ready = False
                return
            self._calls.append(_Call(code, places, planed, layout.plane_rows))
        self.is_ready = True
        """Whether all kernels are compiled; else it cannot run."""
        for k, number in enumerate(lowered.results, count):
            if self._slots.get(number) != k:
                self._slots[-k] = k
                self._calls.append(_Step(_copy, [self._view(number)], self._view(-k)))

    @property
    def kept_bytes(self) -> int:
        """Of its buffers."""
        return sum(x.nbytes for x in self._buffers.values())

    def run(self, arrays: list[Array], shape: Sizes) -> None:
        """Compute; `arrays`: operands that broadcast to the shape, then results."""
        layout = self._layout
        if not layout.rows * layout.columns:
            return
        if layout.copies:
            arrays = [
                laid_out(x, shape, layout, place)
                for x, place in zip(arrays, layout.places, strict=True)
            ]
        addresses = [address_of(x) for x in arrays]
        for call in self._calls:
            if isinstance(call, _Call):
                call.begin(addresses)
        if len(self._calls) == 1 and isinstance(self._calls[0], _Call):
            self._calls[0](arrays, (0, 0, layout.rows, layout.columns))
            return
        rows = list(arrays)
        for k in self._viewed:
            rows[k] = self._as_rows(k, arrays[k])
        for block in _blocks(layout):
            for call in self._calls:
                call(rows, block)

    def _place(self, number: int) -> tuple[Place, int, Array | None]:
        if number in self._slots:
            slot = self._slots[number]
            return self._layout.places[slot], slot, None
        constant = self._staged.constants.get(number)
        if constant is not None:
            return Place(0, 0), -1, constant
        buffer = self._buffers[number]
        width = min(self._layout.columns, STAGED_ELEMENTS)
        return Place(width * buffer.itemsize, buffer.itemsize), -1, buffer

    def _view(self, number: int) -> View:
        if number in self._slots:
            self._viewed.add(self._slots[number])
            return _view_of(self._slots[number])
        constant = self._staged.constants.get(number)
        if constant is not None:
            return lambda arrays, block: np.broadcast_to(constant, block[2:])
        buffer = self._buffers[number]
        return lambda arrays, block: buffer[: block[2] * block[3]].reshape(block[2:])

    def _as_rows(self, k: int, x: Array) -> Array:
        layout, place = self._layout, self._layout.places[k]
        if x.flags.c_contiguous and x.size == layout.rows * layout.columns:
            return x.reshape(layout.rows, layout.columns)
        strides = (place.row_bytes, place.column_bytes)
        return np.lib.stride_tricks.as_strided(x, (layout.rows, layout.columns), strides)


def _view_of(slot: int) -> View:
    """Return what cuts a block out of one of a run's arrays."""

    def view(arrays: list[Array], block: Block) -> Array:
        row, column, rows, columns = block
        return arrays[slot][row : row + rows, column : column + columns]

    return view


def _blocks(layout: Layout) -> Iterator[Block]:
    if layout.columns > STAGED_ELEMENTS:
        for row in range(layout.rows):
            for column in range(0, layout.columns, STAGED_ELEMENTS):
                yield row, column, 1, min(STAGED_ELEMENTS, layout.columns - column)
        return
    step = max(1, STAGED_ELEMENTS // layout.columns)
    for row in range(0, layout.rows, step):
        yield row, 0, min(step, layout.rows - row), layout.columns


FEW_ELEMENTS = 1 << 12
"""Up to here setting up short rows takes less time than repeating operands by numpy."""

FEWEST_REPEATS = 8
"""Of an operand that is laid row-major for a call: that takes little of what reads it."""

WholeCall = Callable[[Sequence[Array], Sequence[Array | None]], list[Array] | None]
"""Returns the results of operands, where these may be; None: an array is not row-major."""


def whole_call(
    staged: Staged, shapes: Sequence[Sizes], shape: Sizes, compile: Compile
) -> WholeCall | None:
    """Return an expression on row-major arrays of these shapes as one call with little around it.

    None where it is not one kernel, arrays are to be laid out anew, or the code is not there yet.
    """
    lowered, results = staged.lowered, staged.lowered.results
    (stage, *others) = staged.stages
    if others or staged.viewed or not isinstance(stage, KernelStage):
        return None
    if not set(results) <= set(stage.results):
        return None
    types = [storage_dtype(x) for x in (*lowered.operand_types, *map(lowered.type_of, results))]
    sizes = [*shapes, *[shape] * len(results)]
    forms = tuple(
        Form(n, dense(n, dtype.itemsize), dtype.itemsize)
        for n, dtype in zip(sizes, types, strict=True)
    )
    fewest = 1 if prod(shape) <= FEW_ELEMENTS else FEWEST_COLUMNS
    lying = layout(shape, forms[: len(shapes)], forms[len(shapes) :], fewest_columns=fewest)
    if lying is None or lying.copies or not lying.rows * lying.columns:
        return None
    slot = {number: k for k, number in enumerate((*range(len(shapes)), *results))}
    numbers = (*stage.operands, *stage.results)
    places = [lying.places[slot[n]] if n in slot else Place(0, 0) for n in numbers]
    shared = tuple(not x.column_bytes for x in places[: len(stage.operands)])
    planed = tuple(k for k, x in enumerate(places) if x.plane_bytes is not None)
    code = compile(stage, shared, planed, boxed=True)
    if code is None:
        return None
    strides = [n for x in places for n in (0, x.row_bytes)]
    behind = [lying.plane_rows, 0, *(places[k].plane_bytes or 0 for k in planed)]
    integers = np.array([lying.rows, lying.columns, *strides, *behind], np.int64)
    constants = [staged.constants[n] for n in numbers if n not in slot]
    place_of = {n: 1 + k for k, n in enumerate(n for n in numbers if n not in slot)}
    first = 1 + len(constants)
    box_of = itemgetter(0, *(place_of.get(n, first + slot.get(n, 0)) for n in numbers))
    known, dtypes = [integers, *constants], types[len(shapes) :]
    array, empty, most_laid = np.ndarray, np.empty, prod(shape) // FEWEST_REPEATS

    def run(arrays: Sequence[Array], outs: Sequence[Array | None]) -> list[Array] | None:
        for k, x in enumerate(arrays):
            if type(x) is not array:
                return None
            if not x.flags.c_contiguous:
                if x.size > most_laid:
                    return None
                arrays = [*arrays[:k], x.copy(), *arrays[k + 1 :]]
        computed = []
        for out, dtype in zip(outs, dtypes, strict=True):
            if out is None:
                out = empty(shape, dtype)
            elif not out.flags.c_contiguous:
                return None
            computed.append(out)
        box = box_of([*known, *arrays, *computed])  # holds them while the kernel runs
        code(id(box))
        return computed

    return run


def layout_of(staged: Staged, shape: Sizes, arrays: Sequence[Array]) -> Layout | None:
    """Return how an expression's operands, and behind them its results, lie together."""
    forms = tuple(Form(x.shape, x.strides, x.itemsize) for x in arrays)
    results = len(staged.lowered.results)
    return layout(shape, forms[:-results], forms[-results:], staged.viewed)
