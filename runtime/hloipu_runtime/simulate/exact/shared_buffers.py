"""Buffers that need no memory of their own: views of the memory that they are copied from.

A buffer that one transfer fills as a whole holds what its source holds, until somebody writes
there. Where nobody does before the buffer is read for the last time, no tile can tell whether it
was copied, and the buffer is the source's memory, seen as the transfer's descriptor says: with one
stride for each grid axis, 0 where parts are multicast, less than a part where parts overlap. So is
what vertices make that only repeat their parts of an operand.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.mapping import Sizes, extent_of, whole_box
from hloipu_runtime.program.program import Program, Variable
from hloipu_runtime.program.uses import touched_by, written, written_by


class Place(NamedTuple):
    """Where a variable's value lies in another one's memory."""

    memory: s.VariableId
    offset: int
    """Bytes from the beginning of that memory to the value's first element; may be negative."""
    strides: Sizes
    """Bytes from element to element, along each dimension of the value."""


class SharedBuffers(NamedTuple):
    """Which variables lie in the memory of others."""

    places: Mapping[s.VariableId, Place]
    reaches: Mapping[s.VariableId, tuple[int, int]]
    """Of such a memory: where the parts of buffers begin and end, their unused ends included, in
    bytes from its beginning."""


NO_SHARED_BUFFERS = SharedBuffers({}, {})


def shared_buffers(
    program: Program, private: Set[s.VariableId], moving: Set[s.VariableId] = frozenset()
) -> SharedBuffers:
    """Return the buffers of a program that may lie in the memory that they are copied from.

    `private` are the variables whose replicated parts may differ, `moving` those that lie as whole
    arrays.
    """
    places: dict[s.VariableId, Place] = {}
    reaches: dict[s.VariableId, tuple[int, int]] = {}
    kept = {port.variable for port in program.state} | program.constants.keys()
    for filling in _Order(program).unwritten(kept):
        source, buffer = (program.variables[v] for v in (filling.source, filling.buffer))
        make = whole_place if filling.source in moving else _own_place
        at = places.get(filling.source) or make(filling.source, source)
        how, place = filling.how, None
        if at is not None and isinstance(how, s.Transfer):
            place = None if filling.buffer in private else _through(how, at, source, buffer)
        elif at is not None and isinstance(how, s.VertexGroup):
            differs = filling.source in private and source.mapping.replicated_axes
            place = None if differs else _repeated(how, at, source, buffer)
        if place is not None:
            places[filling.buffer] = place
            low, high = reaches.get(place.memory, (0, 0))
            first, last = reach(place, buffer)
            reaches[place.memory] = (min(low, first), max(high, last))
    return SharedBuffers(places, reaches)


def whole_place(variable: s.VariableId, record: Variable) -> Place:
    """Return where a value lies that is in memory as a whole array is."""
    stride = storage_dtype(record.element_type).itemsize
    strides: list[int] = []
    for size in reversed(record.shape):
        strides.insert(0, stride)
        stride *= size
    return Place(variable, 0, tuple(strides))


def _own_place(variable: s.VariableId, record: Variable) -> Place | None:
    """Return where a value lies in its own memory; None where its parts do not lie side by side."""
    mapping = record.mapping
    stride, offset = storage_dtype(record.element_type).itemsize, 0
    strides: list[int] = []
    for span, size in zip(reversed(mapping.spans), reversed(record.shape), strict=True):
        is_there = span.offset <= 0 and span.offset + span.size >= size
        if not is_there if span.axis < 0 else (span.step, span.offset) != (span.size, 0):
            return None
        strides.insert(0, stride)
        offset -= span.offset * stride
        stride *= span.size * extent_of(mapping.tiles, span)
    return Place(variable, offset, tuple(strides))


def _through(transfer: s.Transfer, at: Place, source: Variable, buffer: Variable) -> Place | None:
    """Return where the value of a buffer lies in its source's memory; None: not in one piece."""
    mapping = buffer.mapping
    dtype = storage_dtype(source.element_type)
    if (transfer.tiles, transfer.spans) != (mapping.tiles, mapping.spans) or (
        dtype != storage_dtype(buffer.element_type)
    ):
        return None
    takes_all = transfer.receivers == whole_box(mapping.tiles.extents) and all(
        low <= 0 and high >= size and shift >= 0 and size + shift <= extent
        for (low, high), size, shift, extent in zip(
            transfer.box, buffer.shape, transfer.shift, transfer.view, strict=True
        )
    )
    strides = _reshaped(source.shape, at.strides, transfer.view, dtype) if takes_all else None
    if strides is None:
        return None
    shifted = sum(n * stride for n, stride in zip(transfer.shift, strides, strict=True))
    return Place(at.memory, at.offset + shifted, strides)


def _repeated(group: s.VertexGroup, at: Place, source: Variable, buffer: Variable) -> Place | None:
    """Return where a result lies that only repeats its operand; None: it does not."""
    labels = group.codelet.repeats
    operand, result = group.inputs[0], group.outputs[0]
    if labels is None or storage_dtype(source.element_type) != storage_dtype(buffer.element_type):
        return None
    if any(
        (x.mapping.tiles, x.mapping.spans) != (group.tiles, each.spans)
        for x, each in ((source, operand), (buffer, result))
    ) or operand.spans != tuple(result.spans[d] for d in labels):
        return None  # a part of an operand that is not the result's
    strides = dict(zip(labels, at.strides, strict=True))
    return Place(at.memory, at.offset, tuple(strides.get(d, 0) for d in range(len(buffer.shape))))


def _reshaped(
    shape: Sizes, strides: Sizes, view: Sizes, dtype: "np.dtype[np.generic]"
) -> Sizes | None:
    """Return the strides of an array seen in another shape, None where that takes a copy."""
    if shape == view:
        return strides
    if 0 in shape:
        return None
    try:
        # One element stands for all of them: only their addresses are asked for.
        seen = as_strided(np.empty(1, dtype), shape, strides).reshape(view, copy=False)
    except ValueError:
        return None
    return seen.strides


def part_strides(place: Place, buffer: Variable) -> tuple[int, Sizes]:
    """Return where the first tile's part lies, and the strides of grid axes, then of elements."""
    offset, axes = place.offset, [0] * len(buffer.mapping.tiles.extents)
    for span, stride in zip(buffer.mapping.spans, place.strides, strict=True):
        offset += span.offset * stride
        if span.axis >= 0:
            axes[span.axis] += span.step * stride
    return offset, (*axes, *place.strides)


def reach(place: Place, buffer: Variable) -> tuple[int, int]:
    """Return where a buffer's parts begin and end, in bytes from the beginning of the memory."""
    offset, strides = part_strides(place, buffer)
    steps = [(n - 1) * s for n, s in zip(buffer.mapping.storage_shape, strides, strict=True)]
    low, high = (sum(limit(0, step) for step in steps) for limit in (min, max))
    return offset + low, offset + high + storage_dtype(buffer.element_type).itemsize


class _Filling(NamedTuple):
    """What may fill a buffer as a whole, which nothing else of its step touches."""

    number: int
    block: "_Block"
    source: s.VariableId
    buffer: s.VariableId
    how: s.Transfer | s.VertexGroup


@dataclass(slots=True)
class _Block:
    """A sequence: the numbers at which its steps begin."""

    starts: list[int] = field(default_factory=list)
    end: int = 0

    def end_of_step(self, number: int) -> int:
        """Return the number after the last one of the step that holds a number."""
        after = bisect_right(self.starts, number)
        return self.starts[after] if after < len(self.starts) else self.end


class _Order:
    """All steps of a program, numbered as they are written, and who touches what at which."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._count = 0
        self._filling: list[_Filling] = []
        self._first: dict[s.VariableId, int] = {}
        self._last: dict[s.VariableId, int] = {}
        self._writes: defaultdict[s.VariableId, list[int]] = defaultdict(list)
        self._writes_of_calls: defaultdict[s.VariableId, list[int]] = defaultdict(list)
        self._written_by: dict[str, frozenset[s.VariableId]] = {}
        for body in (program.body, *program.functions.values()):
            self._number(body)

    def unwritten(self, kept: Set[s.VariableId]) -> list[_Filling]:
        """Return fillings whose source nobody writes while somebody will read the buffer.

        They alone write the buffer, which is none of `kept`.
        """
        unwritten = []
        # Later ones first: who reads a buffer's buffer reads the buffer.
        for filling in reversed(self._filling):
            number, block, source, buffer, _ = filling
            first, last = self._first[buffer], self._last[buffer]
            if buffer in kept or self._writes[buffer] != [number]:
                continue
            if first < number or not number < last < block.end:
                continue
            until = block.end_of_step(last)
            if not any(
                bisect_left(at, number) < bisect_left(at, until)
                for at in (self._writes[source], self._writes_of_calls[source])
            ):
                unwritten.append(filling)
                self._last[source] = max(self._last[source], last)
        return unwritten[::-1]

    def _number(self, step: s.Step, block: _Block | None = None) -> None:
        """Give a step and all inside of it numbers; `block` is the sequence that it stands in."""
        if isinstance(step, s.Sequence):
            inner = _Block()
            for each in step.steps:
                inner.starts.append(self._count)
                self._number(each, inner)
            inner.end = self._count
            return
        number = self._count
        self._count += 1
        for variable in touched_by(step):
            self._first.setdefault(variable, number)
            self._last[variable] = number
        for variable in written_by(step):
            self._writes[variable].append(number)
        match step:
            case s.Exchange() | s.ComputeSet() if block is not None:
                ends = _ends(step)
                touches = Counter(v for _, reads, writes in ends for v in (*reads, *writes))
                self._filling += [
                    _Filling(number, block, reads[0], writes[0], how)
                    for how, reads, writes in ends
                    if len(reads) == len(writes) == touches[writes[0]] == 1
                    and (isinstance(how, s.Transfer) or how.codelet.repeats is not None)
                ]
            case s.Call():
                if step.function not in self._written_by:
                    self._written_by[step.function] = written(step, self.program)
                for variable in self._written_by[step.function]:
                    self._writes_of_calls[variable].append(number)
            case _:
                for each in s.inner_steps(step):
                    self._number(each)


_Ends = tuple[s.Transfer | s.VertexGroup, list[s.VariableId], list[s.VariableId]]
"""A part of a step, the variables that it reads, and those that it writes."""


def _ends(step: s.Exchange | s.ComputeSet) -> list[_Ends]:
    if isinstance(step, s.Exchange):
        return [(x, [x.source], [x.destination]) for x in step.transfers]
    return [
        (x, [operand.variable for operand in x.inputs], [result.variable for result in x.outputs])
        for x in step.groups
    ]
