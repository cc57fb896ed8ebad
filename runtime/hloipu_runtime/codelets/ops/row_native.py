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
    """Rows of an array of a run."""

    array: Array
    """Two-dimensional; one column where a row has one element."""
    address: int
    row_bytes: int


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
        self._idle: dict[tuple[int, int], list[dict[int, _Rows]]] = {}
        """Buffers that no run has, by their rows and columns."""

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
        targets = [
            np.empty_like(x) if not late and any(np.may_share_memory(x, y) for y in operands) else x
            for x, late in zip(made, found.late, strict=True)
        ]
        at_once = rows
        if len(found.stages) > 1 or not all(found.buffers.values()) or not all(found.direct):
            at_once = min(rows, max(1, STAGED_ELEMENTS // columns))
        arrays = {k: _rows(x) for k, x in enumerate(operands)}
        for x, target, is_direct in zip(found.parts.results, targets, found.direct, strict=True):
            if is_direct:
                arrays[x] = _rows(target)
        idle = self._idle.get((at_once, columns))
        if idle is None:
            if len(self._idle) >= MOST_LAYOUTS:
                self.let_go()
                kept_buffers().gone(self)
            idle = self._idle[at_once, columns] = []
        try:
            buffers = idle.pop()  # asked for at once: another thread may take the last ones
        except IndexError:
            buffers = self._buffers(found, at_once, columns)
            kept_buffers().count_bytes(self, sum(x.array.nbytes for x in buffers.values()))
        calls = [
            self._call(position, stage, arrays, buffers, columns)
            for position, stage in enumerate(found.stages)
        ]
        copies = [
            (x, target)
            for x, target, is_direct in zip(found.parts.results, targets, found.direct, strict=True)
            if not is_direct
        ]
        for row in range(0, rows, at_once):
            count = min(at_once, rows - row)
            for call in calls:
                call(row, count)
            for x, target in copies:
                np.copyto(target[row : row + count], _block(x, arrays, buffers, row, count))
        idle.append(buffers)
        for target, out in zip(targets, made, strict=True):
            if target is not out:
                np.copyto(out, target)

    def _buffers(self, found: RowStages, rows: int, columns: int) -> dict[int, _Rows]:
        """Return where values between loops and stages stand, and constants."""
        made = {x: _rows(np.asarray(c).reshape(1, 1)) for x, c in found.parts.constants.items()}
        for x, is_one in found.buffers.items():
            shape = (1 if is_one else rows, columns if found.parts.is_full[x] else 1)
            array = _rows(aligned_empty(shape, storage_dtype(found.parts.types[x])))
            made[x] = array._replace(row_bytes=0) if is_one else array
        return {x: y._replace(row_bytes=0) if y.array.shape[0] == 1 else y for x, y in made.items()}

    def _call(
        self,
        position: int,
        stage: RowKernel | NumpyStage,
        arrays: dict[int, _Rows],
        buffers: dict[int, _Rows],
        columns: int,
    ) -> Callable[[int, int], None]:
        """Return what runs a stage on some rows: from one on, so many."""
        if isinstance(stage, NumpyStage):
            part, number = stage.part, stage.number

            def by_numpy(row: int, count: int) -> None:
                out = _block(number, arrays, buffers, row, count)
                given = [_block(x, arrays, buffers, row, count) for x in part.arguments]
                shape = out.shape
                made = part.step(
                    [x if x.shape == shape else np.broadcast_to(x, shape) for x in given], out
                )
                if made is not out:
                    np.copyto(out, made)

            return by_numpy
        places = stage.places
        code, given = self._code[position], (c_int64 * (2 + 2 * len(places)))()
        given[1] = columns
        moving = []
        for k, place in enumerate(places):
            array = arrays.get(place.value)
            if array is None:
                array = buffers[place.value]
            elif array.row_bytes:
                moving.append((2 + 2 * k, array.address, array.row_bytes))
            given[2 + 2 * k], given[3 + 2 * k] = array.address, array.row_bytes

        def by_kernel(row: int, count: int) -> None:
            given[0] = count
            for k, address, row_bytes in moving:
                given[k] = address + row * row_bytes
            code(given)

        return by_kernel


def _text(stage: RowKernel) -> Callable[[str], str]:
    return lambda name: text_of(stage, name)


def _rows(x: Array) -> _Rows:
    return _Rows(x, address_of(x), x.strides[0] if x.shape[0] > 1 else 0)


def _block(
    x: int, arrays: dict[int, _Rows], buffers: dict[int, _Rows], row: int, count: int
) -> Array:
    found = arrays.get(x)
    if found is None:
        return buffers[x].array[:count]
    return found.array[row : row + count] if found.array.shape[0] > 1 else found.array


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
