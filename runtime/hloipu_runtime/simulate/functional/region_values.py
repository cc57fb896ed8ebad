"""Where values of a compiled region lie, who reads them later, and what needs no code."""

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from hloipu_runtime.codelets.core.native_lowering import storage_type
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.kernels.native.regions import Held, Memory, Place, Region, Register
from hloipu_runtime.kernels.native.text import is_known_type
from hloipu_runtime.program.program import Array, Value
from hloipu_runtime.program.steps import ValueId
from hloipu_runtime.simulate.functional.whole_tensors import Values

Sizes = tuple[int, ...]


class Refused(Exception):
    """A node that no compiled function does."""


class RegionValues:
    """Values by number: in registers, in the arena, in memory from outside or of the next turn."""

    def __init__(self, table: Sequence[Value], first: Values, values: Values) -> None:
        """Begin with outside values that lie as these; `first`: those that no run changes."""
        self.table, self.first, self.given = table, first, values
        self.region = Region()
        self.held: dict[ValueId, Held] = {}
        self.outside: dict[ValueId, str] = {}
        self.unsure: dict[int, tuple[Array, bool]] = {}
        """Stand-ins for memory of values that the plain path may lay otherwise, and whether that is
        in the same order, with gaps: what is made of them element by element lies alike."""
        self.last: dict[ValueId, float] = {}
        self.now = 0
        self.turn_of: dict[ValueId, ValueId] = {}
        """What is carried on in which turn's memory."""
        self.state: dict[ValueId, Place] = {}
        """Memory of what is carried."""
        self.multiplies = False
        self.halves = rounds_in_halves()

    def _form(self, value: ValueId) -> tuple[Sizes, str]:
        """Return shape and storage type."""
        made = self.table[value]
        kind = storage_type(made.element_type)
        if not is_known_type(kind):
            raise Refused
        return made.shape, kind

    def _value(self, value: ValueId) -> Held:
        held = self.held.get(value)
        if held is not None:
            return held
        array = self.given[value] if self.first[value] is None else self.first[value]
        shape, kind = self._form(value)
        if not isinstance(array, np.ndarray) or array.shape != shape:
            raise Refused
        if array.dtype != storage_dtype(self.table[value].element_type):
            raise Refused
        name = self.outside[value] = f"%outside.{len(self.outside)}"
        held = self.held[value] = Place(Memory(name, 0, array), array, kind)
        return held

    def _loaded(self, place: Place) -> Register:
        return Register(self.region.one(place), place.type, place.view.shape)

    def _doubt(self, place: Place, *, is_in_order: bool = False) -> None:
        self.unsure[id(place.memory.stand_in)] = place.memory.stand_in, is_in_order

    def _is_unsure(self, place: Place, *, of_order: bool = False) -> bool:
        """Whether the plain path may lay a value otherwise, or in another order."""
        found = self.unsure.get(id(place.memory.stand_in))
        return found is not None and not (of_order and found[1])

    def _is_dead(self, memory: Memory) -> bool:
        """Whether no later node, nor anybody after the block, reads what lies in a memory."""
        return not any(
            isinstance(held, Place)
            and held.memory is memory
            and self.last.get(value, -1) > self.now
            for value, held in self.held.items()
        )

    def _free_state(self, written: ValueId) -> Place | None:
        """Return the memory in which a value is to be carried on, if nothing later reads it."""
        turn = self.turn_of.get(written)
        if turn is None:
            return None
        place = self.state[turn]
        if place.view.shape != self.table[written].shape or prod(place.view.shape) == 1:
            return None
        if place.type != storage_type(self.table[written].element_type):
            return None
        return place if self._is_dead(place.memory) else None

    def _place_for(self, written: ValueId, reads: Sequence[Held]) -> Place:
        """Return memory for a result while `reads` are read; is theirs only element by element."""
        shape, kind = self._form(written)
        place = self._free_state(written)
        if place is None or any(isinstance(x, Place) and x.memory is place.memory for x in reads):
            return self.region.temporary(shape, kind)
        return place

    def _start(self, value: ValueId, limit: int) -> str | None:
        """Return where a window begins, from 0 to a limit; None: at 0."""
        if not limit:
            return None
        held, (_, kind) = self._value(value), self._form(value)
        if kind[0] not in "su" or kind == "u64":
            raise Refused
        region, name = self.region, self.region.one(held)
        wide = region.op("convert", "s64", name, types=[kind])
        low = region.op("integer_extremum:max", "s64", wide, "0")
        return region.op("integer_extremum:min", "s64", low, str(limit))

    def _window(self, data: Place, sizes: Sizes, starts: Sequence[ValueId]) -> Place:
        """Return a window of an array as a place of its own."""
        region = self.region
        pointer = region.address(data)
        for value, size, whole, stride in zip(
            starts, sizes, data.view.shape, data.view.strides, strict=True
        ):
            start = self._start(value, whole - size)
            if start is not None:
                offset = region.new(f"mul nsw i64 {start}, {stride}")
                pointer = region.new(f"getelementptr i8, ptr {pointer}, i64 {offset}")
        view = cut_of(data.view, [slice(n) for n in sizes])
        return Place(Memory(pointer, 0, view), view, data.type)


def cut_of(array: Array, parts: Sequence[slice | int]) -> Array:
    """Return a part as an array, also of an array without dimensions."""
    index: tuple[Any, ...] = (*parts, ...)
    view: Array = array[index]
    return view


def is_in_order(view: Array) -> bool:
    """Whether numpy lays what it makes of an array row-major."""
    strides = [x for n, x in zip(view.shape, view.strides, strict=True) if n > 1 and x]
    return all(x >= y > 0 for x, y in pairwise((*strides, 1)))


def empty_as(shape: Sizes, dtype: np.dtype[Any], strides: Sizes) -> Array:
    """Return an uninitialised array of positive strides."""
    last = sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    return np.ndarray(shape, dtype, np.empty(last + dtype.itemsize, np.uint8), 0, strides)


def rounds_in_halves() -> bool:
    """Return whether the processor converts f32 to f16; raises Refused without a compiler."""
    from hloipu_runtime.kernels.native.llvm import the_compiler

    compiler = the_compiler()
    if compiler is None:
        raise Refused
    return compiler.halves
