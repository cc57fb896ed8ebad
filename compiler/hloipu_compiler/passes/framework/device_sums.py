"""Values that linear ops make of one sum over devices, and sums written anew at another place.

A sum over devices and a sum over time may change places, with what is linear between them: every
device adds up its own part first, and what the devices have is added up once, at the end.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from hloipu_compiler.interpret.planning.regions import monoid_of
from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape
from hloipu_compiler.passes.algebra.expand_bitcasts import plain
from hloipu_compiler.passes.framework.names import Names
from hloipu_runtime.element_types import ElementType

MOVING = frozenset("negate copy transpose reshape slice reverse broadcast".split())
"""Opcodes that are linear in their operand, on all devices alike."""
_GTE = "get-tuple-element"


class DeviceSum(NamedTuple):
    """A value that is made of one sum over devices; positions are those of its computation."""

    ops: tuple[int, ...]
    """From the value back to the sum, both included."""
    meeting: int
    """The collective, which may add up other arrays as well."""
    element: int
    """Which of its operands."""
    source: int
    """What each device has of it."""
    element_type: ElementType
    """In which it is to be added up: the widest on the way, so that nothing more is rounded."""


def device_sum(
    computation: Computation,
    position: int,
    opcodes: Sequence[str],
    followed: Callable[[Instruction], int | None],
    adds_up: Callable[[Instruction], bool],
) -> DeviceSum | None:
    """Return the sum over devices that a value is made of by linear ops, None where it is not.

    `followed`: the operand in which an op is linear; `opcodes`: of collectives, `adds_up` says
    whether one adds up.
    """
    ops, at = [position], position
    while True:
        x = computation.instructions[at]
        element = x.attributes.integer("index") if x.opcode == _GTE else 0
        meeting = x.operands[0] if x.opcode == _GTE else at
        met = computation.instructions[meeting]
        if met.opcode in opcodes and adds_up(met):
            value = computation.instructions[position].shape
            if not isinstance(value, ArrayShape):
                return None
            return DeviceSum(
                tuple(ops), meeting, element, met.operands[element], value.element_type
            )
        operand = followed(x)
        if operand is None:
            return None
        at = operand
        ops.append(at)


def moved_operand(x: Instruction, computation: Computation) -> int | None:
    """Return the operand that an op moves, or converts to a wider float; None for other ops."""
    if x.opcode in MOVING:
        return x.operands[0]
    if x.opcode != "convert":
        return None
    old, new = computation.instructions[x.operands[0]].shape, x.shape
    if not isinstance(old, ArrayShape) or not isinstance(new, ArrayShape):
        return None
    a, b = old.element_type, new.element_type
    return x.operands[0] if a.is_float and b.is_float and a.bits < b.bits else None


def with_type(shape: Shape, element_type: ElementType) -> ArrayShape:
    """Return an array's shape with another element type."""
    if not isinstance(shape, ArrayShape):
        raise TypeError(f"{shape} is no array")
    if shape.element_type is element_type:
        return shape
    return plain(element_type, shape.dimensions)


class Sums:
    """Which collectives of a module add up, and new ones beside them."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.known: dict[str, bool] = {}
        self.reducers: dict[str, Computation] = {}
        """By element type."""
        self._names = Names(module.computation)
        channels = (
            x.attributes.integer("channel_id") for c in module.computations for x in c.instructions
        )
        self._channel = max(channels, default=0)

    def adds_up(self, x: Instruction) -> bool:
        """Whether a collective adds up floats."""
        name = x.attributes.text("to_apply")
        if name not in self.known:
            self.known[name] = monoid_of(self.module, name) == "add"
        shapes = x.shape.elements if isinstance(x.shape, TupleShape) else (x.shape,)
        floats = all(isinstance(s, ArrayShape) and s.element_type.is_float for s in shapes)
        return floats and self.known[name] and "control-predecessors" not in x.attributes

    def attributes(self, x: Instruction, kind: ElementType) -> Attributes:
        """Return those of a collective like `x` that adds up elements of one type."""
        name = x.attributes.text("to_apply")
        old = x.shape.elements[0] if isinstance(x.shape, TupleShape) else x.shape
        if not isinstance(old, ArrayShape) or old.element_type is not kind:
            name = self._reducer(kind)
        changed = {"to_apply": name}
        if "channel_id" in x.attributes:
            self._channel += 1
            return Attributes(
                {**dict(x.attributes.items()), **changed, "channel_id": self._channel}, (name,)
            )
        return Attributes({**dict(x.attributes.items()), **changed}, (name,))

    def _reducer(self, kind: ElementType) -> str:
        if kind.name not in self.reducers:
            number = plain(kind, ())
            a = Instruction("a", "parameter", number, parameter_number=0)
            b = Instruction("b", "parameter", number, parameter_number=1)
            total = Instruction("total", "add", number, (0, 1))
            name = self._names.fresh(f"sum.{kind.name}")
            self.reducers[kind.name] = Computation(name, (a, b, total), 2)
        return self.reducers[kind.name].name


def meeting_of(
    like: Instruction, name: str, operands: Sequence[int], shapes: Sequence[ArrayShape],
    attributes: Attributes,
) -> Instruction:  # fmt: skip
    """Return a collective like another one, of other arrays."""
    shape: Shape = shapes[0] if len(shapes) == 1 else TupleShape(tuple(shapes))
    return like._replace(name=name, shape=shape, operands=tuple(operands), attributes=attributes)


def elements_of(meeting: Instruction, at: int, names: Names) -> Iterator[Instruction]:
    """Yield what reads each array of a collective's result; nothing where it is one array."""
    if isinstance(meeting.shape, TupleShape):
        for index, shape in enumerate(meeting.shape.elements):
            yield Instruction(
                names.fresh(meeting.name), _GTE, shape, (at,), Attributes({"index": index}),
                meeting.metadata,
            )  # fmt: skip
