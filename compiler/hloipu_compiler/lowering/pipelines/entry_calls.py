"""Roles of the values of an entry that was cut into calls."""

from functools import cached_property

from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.ir.shapes import ArrayShape, leaves_of
from hloipu_compiler.plan.pipelining import Accumulation
from hloipu_runtime.program.mapping import Sizes

Element = tuple[str, int]
"""Name of a call, and which of its results."""


class EntryCalls:
    """An entry that holds parameters, calls, their results, and tuples of these."""

    def __init__(self, entry: Computation) -> None:
        self.entry = entry
        self._leaves: dict[str, list[ArrayShape]] = {}
        """Arrays that calls give, as far as they were asked for."""

    def __getitem__(self, call: str) -> Instruction:
        return self.entry[call]

    @cached_property
    def arrays(self) -> list[tuple[str, Sizes]]:
        """Element type and shape of each parameter."""
        return [
            (shape.element_type.name, shape.dimensions)
            for position in self.entry.parameters
            for shape in leaves_of(self.entry.instructions[position].shape)
        ]

    def parameter(self, position: int) -> int | None:
        """Return the number of a parameter, or None for another value."""
        number = self.entry.instructions[position].parameter_number
        return number if number >= 0 else None

    def element(self, position: int) -> Element:
        """Return which result of which call a value is that is no parameter."""
        instruction = self.entry.instructions[position]
        return (
            self.entry.instructions[instruction.operands[0]].name,
            instruction.attributes.integer("index"),
        )

    def maker(self, position: int) -> str:
        """Return the name of the call that makes a value; empty for a parameter."""
        return "" if self.parameter(position) is not None else self.element(position)[0]

    @cached_property
    def result_positions(self) -> list[int]:
        """The value of each result, tuples walked in order."""
        positions: list[int] = []
        waiting = [self.entry.root]
        while waiting:
            position = waiting.pop()
            instruction = self.entry.instructions[position]
            if instruction.opcode == "tuple":
                waiting.extend(reversed(instruction.operands))
            else:
                positions.append(position)
        return positions

    def array_at(self, position: int) -> tuple[str, Sizes]:
        """Return element type and shape of a value that is an array."""
        (shape,) = leaves_of(self.entry.instructions[position].shape)
        return shape.element_type.name, shape.dimensions

    def tensor_of(self, x: Accumulation) -> tuple[str, Sizes]:
        """Return element type and shape of a gradient."""
        leaves = self._leaves.get(x.call)
        if leaves is None:
            leaves = self._leaves[x.call] = leaves_of(self.entry[x.call].shape)
        shape = leaves[x.element]
        return shape.element_type.name, shape.dimensions
