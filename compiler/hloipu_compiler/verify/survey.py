"""What the structural checks share: places and what they look at, a bounded list of faults."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hloipu_compiler.errors import Fault, Note
from hloipu_compiler.hlo.attributes.frontend_attributes import read_frontend_attributes
from hloipu_compiler.hlo.syntax.text_fault import TextFault
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import Shape
from hloipu_compiler.source import Span


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


MOST_FAULTS = 1000
"""Faults kept of one module: what a hostile text can make us build is bounded by this."""


class ReportFullError(Exception):
    """The report has as many faults as it may hold; the checks stop, and so does their cost."""


class Report:
    """Collects up to `most` faults; the last of them ends the checks by ReportFullError."""

    __slots__ = ("_faults", "_most")

    def __init__(self, most: int = MOST_FAULTS) -> None:
        self._most = most
        self._faults: list[Fault] = []

    def __len__(self) -> int:
        return len(self._faults)

    def add(
        self,
        code: str,
        message: str,
        at: Span | None,
        *,
        expected: str = "",
        hint: str = "",
        notes: Sequence[Note] = (),
    ) -> None:
        """Add one fault; raises ReportFullError when it was the last that fits."""
        self._faults.append(Fault(code, message, at, expected, hint, tuple(notes)))
        if len(self._faults) >= self._most:
            raise ReportFullError

    def in_text_order(self) -> list[Fault]:
        """Return the faults by position; those without a place in the text come last."""
        far = max((f.span.start for f in self._faults if f.span), default=0) + 1
        return sorted(self._faults, key=lambda f: f.span.start if f.span else far)


def frontend_value(instruction: Instruction, key: str) -> str | None:
    """Return the value of a frontend attribute, None where it is absent."""
    raw = instruction.attributes.text("frontend_attributes")
    if key not in raw:
        return None
    try:
        return read_frontend_attributes(raw).get(key)
    except TextFault:
        return None  # the parser reports texts that it cannot read
