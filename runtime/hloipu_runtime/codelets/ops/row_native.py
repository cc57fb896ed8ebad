"""Runs row regions by compiled kernels once compiling them pays; see `native_expression`."""

from collections.abc import Callable, Sequence
from ctypes import c_int64
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.codelets.core.expression_planning import saving
from hloipu_runtime.codelets.core.native_expression import MOST_LAYOUTS, kept_buffers
from hloipu_runtime.codelets.core.native_stages import NumpyStage
from hloipu_runtime.codelets.ops.row_stages import RowStages, stages_of, taken_apart
from hloipu_runtime.codelets.ops.row_values import Reduction
from hloipu_runtime.kernels.core.blocks import Array, aligned_empty
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.kernels.native.llvm import CodePointer, address_of, the_compiler
from hloipu_runtime.kernels.native.rows import FEWEST_SUMMED, RowKernel, text_of
from hloipu_runtime.kernels.native.settings import COMPILING_WORK, LOADING_WORK, settings

STAGED_ELEMENTS = 1 << 15
"""Elements of some rows between stages, which stand in buffers: 128 KiB of f32."""

MOST_COLUMNS = 1 << 17
"""Of a row that kernels compute: buffers of longer ones would leave the second-level cache."""

REDUCTION_GAIN = 1 / 8
"""What a kernel saves for each element of a reduction, in roundings of narrow floats: *assumed*.

Numpy's reduction reads once more what was written before: 4 bytes from cache, of the 32 or more
that the passes of a rounding read and write. It decides only when a kernel is compiled.
"""

Sizes = tuple[int, ...]


class Steps(NamedTuple):
    """What a row region does, with what is known of its operands."""

    operand_types: tuple[str, ...]
    covers: tuple[frozenset[int], ...]
    """Of operands: dimensions along which they have more than one element."""
    rows: frozenset[int]
    columns: frozenset[int]
    """Dimensions longer than 1 that are not reduced, and that are."""
    steps: tuple[tuple[Expression, tuple[int, ...]], ...]
    reductions: tuple[Reduction, ...]
    results: tuple[int, ...]
    full_results: tuple[bool, ...]

    @property
    def gain(self) -> float:
        """What kernels save for each element, in roundings of narrow floats."""
        saved = sum(saving(expression) for expression, _ in self.steps)
        return saved + REDUCTION_GAIN * len(self.reductions)

    @property
    def is_full(self) -> tuple[bool, ...]:
        """Of operands: whether they have an element for each column."""
        return tuple(bool(x & self.columns) for x in self.covers)


class _Rows(NamedTuple):
    """Rows that stay where they are from run to run: a buffer, or a constant."""

    array: Array
    """Two-dimensional; one column where a row has one element."""
    row_bytes: int


_Call = Callable[[Sequence[Array], Sequence[int], int, int], None]
"""Does something with some rows of a run's arrays, which lie at these addresses: from one row on,
so many."""


class _KernelCall:
    """A kernel with its arguments, of which addresses move from run to run and from row to row."""

    def __init__(
        self, code: CodePointer, columns: int, places: Sequence[tuple[_Rows | None, int, int]]
    ) -> None:
        """`places`: where each stays, or which array of a run it is, and the bytes of a row."""
        self._code = code
        self._arguments = (c_int64 * (2 + 2 * len(places)))(0, columns)
        self._given: list[tuple[int, int, int]] = []
        """Places of addresses, arrays of a run, and bytes of their rows."""
        for k, (stays, array, row_bytes) in enumerate(places):
            self._arguments[3 + 2 * k] = row_bytes
            if stays is None:
                self._given.append((2 + 2 * k, array, row_bytes))
            else:
                self._arguments[2 + 2 * k] = address_of(stays.array)

    def __call__(self, arrays: Sequence[Array], addresses: Sequence[int], row: int, n: int) -> None:
        arguments = self._arguments
        arguments[0] = n
        for k, array, row_bytes in self._given:
            arguments[k] = addresses[array] + row * row_bytes
        self._code(arguments)


class _Prepared:
    """The stages for rows of one form, with their buffers. One run at a time may have it."""

    def __init__(
        self, found: RowStages, code: dict[int, CodePointer], rows: int, columns: int,
        row_bytes: Sequence[int],
    ) -> None:  # fmt: skip
        """`row_bytes`: from row to row of operands, 0 where one repeats, and then of results."""
        parts = found.parts
        self._rows, self._at_once = rows, rows
        if len(found.stages) > 1 or not all(found.buffers.values()) or not all(found.direct):
            self._at_once = min(rows, max(1, STAGED_ELEMENTS // columns))
        operands = len(row_bytes) - len(parts.results)
        self._array_of = {k: k for k in range(operands)}
        """Of values that are arrays of a run: which."""
        self._repeats = [not x for x in row_bytes]
        self._kept = {x: _Rows(np.asarray(c).reshape(1, 1), 0) for x, c in parts.constants.items()}
        for x, is_one in found.buffers.items():
            shape = (1 if is_one else self._at_once, columns if parts.is_full[x] else 1)
            array = aligned_empty(shape, storage_dtype(parts.types[x]))
            self._kept[x] = _Rows(array, array.strides[0] if shape[0] > 1 else 0)
        copied = []
        for k, (x, is_direct) in enumerate(zip(parts.results, found.direct, strict=True), operands):
            if is_direct:
                self._array_of[x] = k
            else:
                copied.append((x, k))
        self._calls: list[_Call] = []
        for position, stage in enumerate(found.stages):
            if isinstance(stage, NumpyStage):
                self._calls.append(self._step(stage))
                continue
            places: list[tuple[_Rows | None, int, int]] = []
            for place in stage.places:
                if place.value in self._array_of:
                    array_number = self._array_of[place.value]
                    places.append((None, array_number, row_bytes[array_number]))
                else:
                    kept = self._kept[place.value]
                    places.append((kept, -1, kept.row_bytes))
            self._calls.append(_KernelCall(code[position], columns, places))
        self._calls += [self._copy(x, k) for x, k in copied]

    @property
    def kept_bytes(self) -> int:
        return sum(x.array.nbytes for x in self._kept.values())

    def run(self, arrays: Sequence[Array]) -> None:
        """Compute; `arrays`: operands as rows, then results."""
        addresses = [address_of(x) for x in arrays]
        for row in range(0, self._rows, self._at_once):
            count = min(self._at_once, self._rows - row)
            for call in self._calls:
                call(arrays, addresses, row, count)

    def _block(self, x: int, arrays: Sequence[Array], row: int, count: int) -> Array:
        k = self._array_of.get(x)
        if k is None:
            return self._kept[x].array[:count]
        return arrays[k] if self._repeats[k] else arrays[k][row : row + count]

    def _step(self, stage: NumpyStage) -> _Call:
        part, number = stage.part, stage.number

        def by_numpy(arrays: Sequence[Array], _: Sequence[int], row: int, count: int) -> None:
            out = self._block(number, arrays, row, count)
            given = [self._block(x, arrays, row, count) for x in part.arguments]
            shape = out.shape
            made = part.step(
                [x if x.shape == shape else np.broadcast_to(x, shape) for x in given], out
            )
            if made is not out:
                np.copyto(out, made)

        return by_numpy

    def _copy(self, x: int, target: int) -> _Call:
        def copy(arrays: Sequence[Array], _: Sequence[int], row: int, count: int) -> None:
            np.copyto(arrays[target][row : row + count], self._block(x, arrays, row, count))

        return copy


class NativeRows:
    """A region's steps that kernels compute as soon as that pays."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._gain = steps.gain
        self._work = 0.0
        self._stages: RowStages | None = None
        self._is_hopeless = False
        """Whether the steps are none of kernels', or those cannot be compiled."""
        self._looked_at = 0.0
        """The work when kernels were last looked for."""
        self._code: dict[int, CodePointer] = {}
        """Of stages that are kernels, by position; all or none."""
        self._idle: dict[tuple[int, ...], list[_Prepared]] = {}
        """Prepared stages that no run has, by rows, columns, and bytes from row to row."""

    def let_go(self) -> None:
        """Keep no buffers."""
        self._idle = {}

    def count(self, elements: int) -> None:
        """Take notice that so many elements are to be computed."""
        self._work += self._gain * elements

    def is_ready(self, elements: int) -> bool:
        """Whether kernels are there; `elements` are to be computed."""
        if self._code:
            return True
        self.count(elements)
        if self._is_hopeless or self._work < LOADING_WORK:
            return False
        compiles = self._work >= COMPILING_WORK
        if self._looked_at and not compiles:
            return False
        self._looked_at = self._work
        found = self._compiled(compiles=compiles)
        self._is_hopeless = compiles and not found
        self._code = found
        return bool(found)

    def _compiled(self, *, compiles: bool) -> dict[int, CodePointer]:
        compiler = the_compiler()
        if compiler is None:
            return {}
        if self._stages is None:
            x = self._steps
            parts = taken_apart(
                x.operand_types,
                x.covers,
                (x.rows, x.columns),
                x.steps,
                x.reductions,
                x.results,
                halves=compiler.halves,
            )
            if parts is None:
                self._is_hopeless = True
                return {}
            self._stages = stages_of(parts, len(x.operand_types), x.full_results)
        made: dict[int, CodePointer] = {}
        for position, stage in enumerate(self._stages.stages):
            if isinstance(stage, RowKernel):
                code = compiler.code(_text(stage), settings().code_folder, compiles=compiles)
                if code is None:
                    return {}
                made[position] = code
        return made

    def run(self, operands: Sequence[Array], made: Sequence[Array], rows: int) -> None:
        """Compute; `operands` and results `made` are arrays of that many rows of columns, or of 1.

        Results are row-major and may share memory with an operand of their form.
        """
        found = self._stages
        assert found is not None
        columns = max(x.shape[1] for x in operands)
        targets = list(made)
        for k, late in enumerate(found.late):
            if not late and any(np.may_share_memory(made[k], x) for x in operands):
                targets[k] = np.empty_like(made[k])
        arrays = [*operands, *targets]
        row_bytes = [x.strides[0] if x.shape[0] > 1 else 0 for x in arrays]
        key = (rows, columns, *row_bytes)
        idle = self._idle.get(key)
        if idle is None:
            if len(self._idle) >= MOST_LAYOUTS:
                self.let_go()
                kept_buffers().gone(self)
            idle = self._idle[key] = []
        try:
            prepared = idle.pop()  # asked for at once: another thread may take the last one
        except IndexError:
            prepared = _Prepared(found, self._code, rows, columns, row_bytes)
            kept_buffers().count_bytes(self, prepared.kept_bytes)
        prepared.run(arrays)
        idle.append(prepared)
        for target, out in zip(targets, made, strict=True):
            if target is not out:
                np.copyto(out, target)


def _text(stage: RowKernel) -> Callable[[str], str]:
    return lambda name: text_of(stage, name)


@lru_cache(maxsize=4096)
def native_rows(steps: Steps) -> NativeRows:
    """Return a region's steps with what was counted and compiled of them."""
    return NativeRows(steps)


def are_kernels(shape: Sizes, along: Sizes) -> bool:
    """Whether kernels may compute rows that are reduced along the last dimensions of a shape."""
    rows = len(shape) - len(along)
    if along != tuple(range(rows, len(shape))):
        return False
    return FEWEST_SUMMED <= prod(shape[rows:]) <= MOST_COLUMNS


def as_rows(x: Array, shape: Sizes, kept: int, *, is_full: bool) -> Array | None:
    """Return an array that broadcasts to a shape as rows of columns, or of one element.

    The first `kept` dimensions are rows, which may be one that repeats. None where it covers the
    shape, but not in the order of memory: numpy adds up in that order.
    """
    rows, columns = prod(shape[:kept]), prod(shape[kept:])
    if is_full and x.shape == shape and x.flags.c_contiguous:
        return x.reshape(rows, columns)
    if not is_full:
        return np.broadcast_to(x.reshape(x.shape[:kept]), shape[:kept]).reshape(rows, 1)
    if x.shape == shape:
        sizes = enumerate(zip(x.strides, shape, strict=True))
        strides = [s for d, (s, n) in sizes if n > 1 and (s or d >= kept)]
        if strides[-1] != x.itemsize or strides != sorted(strides, reverse=True):
            return None
    if all(n == 1 for n in x.shape[:kept]):
        return np.ascontiguousarray(np.broadcast_to(x[(0,) * kept], shape[kept:])).reshape(1, -1)
    made = np.broadcast_to(x, shape).reshape(rows, columns)
    return made if made.strides[1] == made.itemsize else np.ascontiguousarray(made)


def row_form(shape: Sizes, whole: Sizes, kept: int, *, is_full: bool) -> tuple[int, int] | None:
    """Return the rows and columns that `as_rows` sees in a row-major array; None: it has to look.

    `shape` broadcasts to `whole`.
    """
    repeats = all(n == 1 for n in shape[:kept])
    if not (repeats or shape[:kept] == whole[:kept]) or (is_full and shape[kept:] != whole[kept:]):
        return None
    return 1 if repeats else prod(whole[:kept]), prod(whole[kept:]) if is_full else 1
