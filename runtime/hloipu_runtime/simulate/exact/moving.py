"""Large variables whose memory is the host's: read where it stands, or made for the host to keep.

A parameter that only exchanges and vertices read needs no copy: its parts on tiles are views of the
host's array, as those of a buffer are of its source (shared_buffers.py). A result that is complete
when it streams out is given away as it stands, and the next run writes to other memory. Prepared
steps therefore follow such memory: their views are made anew wherever it is.
"""

from collections import Counter
from collections.abc import Set
from math import prod
from typing import Any, NamedTuple

import numpy as np

from hloipu_runtime.kernels.core.blocks import aligned_empty
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.mapping import whole
from hloipu_runtime.program.program import Array, Program, Variable
from hloipu_runtime.program.uses import steps_within, touched_by, used, written_by

LEAST_BYTES = 1 << 20
"""Smaller variables are copied: that takes no longer than to call kernels once more for short last
parts, beyond whose ends nothing may be touched in memory that is the host's (assumed)."""


class Moving(NamedTuple):
    """Variables whose memory is the host's."""

    lent: frozenset[s.VariableId]
    """Parameters, read only."""
    given: frozenset[s.VariableId]
    """Results."""

    @property
    def all(self) -> frozenset[s.VariableId]:
        """Both."""
        return self.lent | self.given


NOTHING_MOVES = Moving(frozenset(), frozenset())


def moving_variables(program: Program, private: Set[s.VariableId]) -> Moving:
    """Return the variables whose memory may be the host's.

    Exchanges and vertices alone touch them in between, and each streams in, or out, in one place.
    `private` are those whose replicated parts may differ.
    """
    into: Counter[s.VariableId] = Counter()
    out: Counter[s.VariableId] = Counter()
    written: set[s.VariableId] = set()
    others = {port.variable for port in program.state} | program.constants.keys()
    for step in steps_within(program.body, program):
        match step:
            case s.StreamIn():
                into[step.variable] += 1
            case s.StreamOut():
                out[step.variable] += 1
            case s.ComputeSet() | s.Exchange():
                written |= written_by(step)
            case s.If():
                others.add(step.predicate)
            case s.Switch():
                others.add(step.index)
            case s.Repeat() | s.RepeatWhile() | s.Pipeline():
                others |= used(step, program)  # one copy serves all iterations
            case s.Call():
                pass  # its body stands among the steps
            case _:
                others |= touched_by(step)
    ends = _last_touched(program, out.keys() - others)
    lent = {v for v, n in into.items() if n == 1 and v not in written | out.keys() | others}
    given = {v for v in ends if out[v] == 1}

    def is_large(variable: s.VariableId) -> bool:
        record = program.variables[variable]
        size = prod(record.shape) * storage_dtype(record.element_type).itemsize
        return size >= LEAST_BYTES

    return Moving(
        frozenset(v for v in lent if is_large(v) and v not in private),
        frozenset(v for v in given if is_large(v) and _is_one_array(program.variables[v])),
    )


def _last_touched(program: Program, variables: Set[s.VariableId]) -> set[s.VariableId]:
    """Return the variables that stream out as the last thing, on the outermost level."""
    last: dict[s.VariableId, s.Step] = {}
    for step in program.body.steps:
        for inner in steps_within(step, program):
            for variable in touched_by(inner) & variables:
                last[variable] = step
    return {v for v, step in last.items() if isinstance(step, s.StreamOut)}


def _is_one_array(record: Variable) -> bool:
    """Whether parts cover one whole array once, but for unused ends of the last ones."""
    return not record.mapping.replicated_axes and all(
        span == whole(size) or (span.axis >= 0 and span.step == span.size and span.offset == 0)
        for span, size in zip(record.mapping.spans, record.shape, strict=True)
    )


class _View(NamedTuple):
    """An array of a prepared step, and how it lies in the memory that moves."""

    arrays: list[Any]
    at: int
    offset: int
    array: Array


class MovingMemory:
    """The memory of one variable, elsewhere in each run; it has the layout of a whole array."""

    def __init__(self, value: Array) -> None:
        """`value`: an array like those that will come, views of which are to be followed."""
        self._model = value
        self._address = _address(value)
        self._views: list[_View] = []
        self._now: Array | None = None
        """The array that has the value in this run."""

    def follow(self, arrays: list[Any], at: int) -> None:
        """Have an item of a list, a view of the model, be the same view of the memory as it moves.

        Raises ValueError where it goes beyond the ends of the value.
        """
        array: Array = arrays[at]
        if array.size:
            view = _View(arrays, at, _address(array) - self._address, array)
            self._seen(view, self._model)
            self._views.append(view)
            if self._now is not None:
                arrays[at] = self._seen(view, self._now)

    def seen(self, array: Array) -> Array:
        """Return a view of the model as one of the memory where it is now."""
        if self._now is None or not array.size:
            return array
        return self._seen(_View([], 0, _address(array) - self._address, array), self._now)

    def lend(self, value: Array) -> None:
        """Move to an array of the host's, or to a copy that lies as it must."""
        like = self._model
        if value.dtype != like.dtype or not value.flags.c_contiguous or not value.flags.aligned:
            value = np.ascontiguousarray(value, like.dtype)
        here = value.reshape(like.shape).view()
        here.flags.writeable = False
        self._move_to(here)

    def begin(self) -> None:
        """Move to memory for a new result."""
        self._move_to(aligned_empty(self._model.shape, self._model.dtype))

    def fill(self, value: Array) -> None:
        """Begin a result with a value."""
        assert self._now is not None
        np.copyto(self._now, value)

    def taken(self) -> Array:
        """Return the result, which nobody else has from now on."""
        value = self._now
        assert value is not None
        self.leave()
        return value

    def leave(self) -> None:
        """Let go of the memory."""
        self._now = None
        for view in self._views:
            view.arrays[view.at] = view.array

    def _move_to(self, value: Array) -> None:
        self._now = value
        for view in self._views:
            view.arrays[view.at] = self._seen(view, value)

    @staticmethod
    def _seen(view: _View, memory: Array) -> Array:
        like = view.array
        array: Array = np.ndarray(like.shape, like.dtype, memory, view.offset, like.strides)
        return array


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
