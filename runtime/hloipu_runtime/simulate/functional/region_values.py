"""Where values of a compiled region lie, who reads them later, and what needs no code."""

from collections.abc import Sequence
from math import prod

import numpy as np

from hloipu_runtime.codelets.core.native_lowering import storage_type
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.kernels.native.instructions import is_known_type
from hloipu_runtime.kernels.native.regions import Held, Memory, Place, Region, Register
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
        self.unsure: dict[int, Array] = {}
        """Stand-ins for memory of values that the plain path may lay otherwise."""
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

    def _doubt(self, place: Place) -> None:
        self.unsure[id(place.memory.stand_in)] = place.memory.stand_in

    def _is_unsure(self, place: Place) -> bool:
        return id(place.memory.stand_in) in self.unsure

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


def rounds_in_halves() -> bool:
    """Return whether the processor converts f32 to f16; raises Refused without a compiler."""
    from hloipu_runtime.kernels.native.library import the_compiler

    compiler = the_compiler()
    if compiler is None:
        raise Refused
    return compiler.halves
