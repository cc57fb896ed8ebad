"""Gather what the structural checks need, in one pass over all instructions."""

from dataclasses import dataclass, field
from typing import NamedTuple

from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import Shape


class Place(NamedTuple):
    """One instruction with the computation that it stands in."""

    computation: Computation
    position: int

    @property
    def instruction(self) -> Instruction:
        """The instruction."""
        return self.computation.instructions[self.position]

    @property
    def operand_instructions(self) -> tuple[Instruction, ...]:
        """The operands, in order."""
        instructions = self.computation.instructions
        return tuple(instructions[i] for i in self.instruction.operands)

    @property
    def operand_shapes(self) -> tuple[Shape, ...]:
        """The operands' shapes, in order."""
        instructions = self.computation.instructions
        return tuple(instructions[i].shape for i in self.instruction.operands)


@dataclass(slots=True)
class Survey:
    """The instructions that more than one look is needed for."""

    module: Module
    by_opcode: dict[str, list[Place]] = field(default_factory=dict)
    """Places of the opcodes that `WATCHED` lists, in text order."""
    callers: list[Place] = field(default_factory=list)
    """Every instruction that refers to a computation."""
    controlled: list[Place] = field(default_factory=list)
    """Every instruction with control predecessors."""
    buffered: bool = False
    """Whether any shape has a buffer in it."""

    def places(self, *opcodes: str) -> list[Place]:
        """Return the places of some watched opcodes."""
        return [place for opcode in opcodes for place in self.by_opcode.get(opcode, ())]


WATCHED = frozenset(
    "parameter fusion while conditional call custom-call "
    "async-start async-update async-done copy-start copy-done all-reduce all-reduce-start "
    "all-reduce-done all-gather-start all-gather-done collective-permute-start "
    "collective-permute-done send send-done recv recv-done".split()
)
