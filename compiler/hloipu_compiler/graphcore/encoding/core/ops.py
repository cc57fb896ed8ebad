"""An instruction being rewritten, with its operands' values and its context."""

from dataclasses import dataclass, replace

from hloipu_compiler.graphcore.encoding.core.call_config import CallConfig
from hloipu_compiler.graphcore.encoding.core.values import (
    Context,
    Late,
    Token,
    TupleValue,
    Value,
    Varying,
)
from hloipu_compiler.ir.graph import Instruction
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape


@dataclass(frozen=True, slots=True)
class Op:
    """One instruction, and what its operands are."""

    instruction: Instruction
    operands: tuple[Value, ...]
    context: Context
    """How ops are marked where it stands."""
    target: str = ""
    """Which of Graphcore's ops it is; empty: none that belongs to a step's structure."""
    config: CallConfig | None = None
    """Of a call that says what part of a step it is."""

    @property
    def name(self) -> str:
        """The instruction's name."""
        return self.instruction.name

    @property
    def kind(self) -> str:
        """The part of a step that a call is; empty: none."""
        return self.config.type if self.config is not None else ""

    @property
    def positions(self) -> list[int]:
        """Operands that are there already, as a whole."""
        return [v for v in self.operands if isinstance(v, int)]

    def placed(self, context: Context) -> "Op":
        """Return the same op in another place."""
        return self if context == self.context else replace(self, context=context)

    def mark(self) -> Value | None:
        """Return the mark of an operand that is written elsewhere, spread over the op's result."""
        for kind in (Varying, Late):
            if any(holds(value, kind) for value in self.operands):
                return spread(self.instruction.shape, kind(self.name))
        return None


def holds(value: Value, kind: type) -> bool:
    """Whether a value is of one kind, or has a part that is."""
    if isinstance(value, TupleValue):
        return any(holds(part, kind) for part in value.parts)
    return isinstance(value, kind)


def flat(value: Value) -> list[Value]:
    """Return the parts of a value that are no tuples made here."""
    if isinstance(value, TupleValue):
        return [leaf for part in value.parts for leaf in flat(part)]
    return [value]


def spread(shape: Shape, value: Value) -> Value:
    """Return a mark on every array of a shape."""
    if isinstance(shape, TupleShape):
        return TupleValue(tuple(spread(part, value) for part in shape.elements))
    if isinstance(shape, ArrayShape) and shape.element_type.name == "token":
        return Token()
    return value
