"""Finds values that linear ops make of one sum over devices, and moves that sum elsewhere.

A sum over devices and a sum over time may change places, with what is linear between them: every
device adds up its own part first, and what the devices have is added up once, at the end.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from hloipu_compiler.interpret.planning.regions import monoid_of
from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module, combiner
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape, array_shape, leaves_of
from hloipu_compiler.passes.algebra.expand_bitcasts import plain
from hloipu_compiler.passes.framework.names import Names
from hloipu_compiler.passes.framework.rewriting import with_operands
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

    def is_alone(self, computation: Computation) -> bool:
        """Whether nothing but the value is made of the sum, which can be in the value's type."""
        x = computation.instructions
        for user, i in pairwise(self.ops):
            if computation.users[i] != (user,) or i == computation.root:
                return False
        if self.meeting not in self.ops:
            elements = [x[i].attributes.integer("index") for i in computation.users[self.meeting]]
            if elements.count(self.element) != 1 or self.meeting == computation.root:
                return False
        opcodes = [x[i].opcode for i in self.ops]
        last = opcodes[::-1].index("convert") if "convert" in opcodes else 0
        return all(
            opcode in MOVING or opcode == _GTE for opcode in opcodes[len(opcodes) - last : -1]
        )


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
        op = computation.instructions[at]
        element = op.attributes.integer("index") if op.opcode == _GTE else 0
        meeting = op.operands[0] if op.opcode == _GTE else at
        met = computation.instructions[meeting]
        if met.opcode in opcodes and adds_up(met):
            value = computation.instructions[position].shape
            if not isinstance(value, ArrayShape):
                return None
            return DeviceSum(
                tuple(ops), meeting, element, met.operands[element], value.element_type
            )
        operand = followed(op)
        if operand is None:
            return None
        at = operand
        ops.append(at)


def moved_operand(op: Instruction, computation: Computation) -> int | None:
    """Return the operand that an op moves, or converts to a wider float; None for other ops."""
    if op.opcode in MOVING:
        return op.operands[0]
    if op.opcode != "convert":
        return None
    old, new = computation.instructions[op.operands[0]].shape, op.shape
    if not isinstance(old, ArrayShape) or not isinstance(new, ArrayShape):
        return None
    a, b = old.element_type, new.element_type
    return op.operands[0] if a.is_float and b.is_float and a.bits < b.bits else None


def with_type(shape: Shape, element_type: ElementType) -> ArrayShape:
    """Return an array's shape with another element type."""
    array = array_shape(shape)
    if array.element_type is element_type:
        return array
    return plain(element_type, array.dimensions)


class Sums:
    """Which collectives of a module add up, and new ones beside them."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.known: dict[str, bool] = {}
        self.reducers: dict[str, Computation] = {}
        """By element type."""
        self._names = Names(module.computation)
        channels = (
            op.attributes.integer("channel_id")
            for c in module.computations
            for op in c.instructions
        )
        self._channel = max(channels, default=0)

    def adds_up(self, op: Instruction) -> bool:
        """Whether a collective adds up floats."""
        name = op.attributes.text("to_apply")
        if name not in self.known:
            self.known[name] = monoid_of(self.module, name) == "add"
        shapes = op.shape.elements if isinstance(op.shape, TupleShape) else (op.shape,)
        floats = all(isinstance(s, ArrayShape) and s.element_type.is_float for s in shapes)
        return floats and self.known[name] and "control-predecessors" not in op.attributes

    def attributes(self, op: Instruction, kind: ElementType) -> Attributes:
        """Return those of a collective like `op` that adds up elements of one type."""
        name = op.attributes.text("to_apply")
        old = op.shape.elements[0] if isinstance(op.shape, TupleShape) else op.shape
        if not isinstance(old, ArrayShape) or old.element_type is not kind:
            name = self._reducer(kind)
        changed = {"to_apply": name}
        if "channel_id" in op.attributes:
            self._channel += 1
            return Attributes(
                {**dict(op.attributes.items()), **changed, "channel_id": self._channel}, (name,)
            )
        return Attributes({**dict(op.attributes.items()), **changed}, (name,))

    def within(self, module: Module) -> Module:
        """Return a module with the computations by which new collectives add up."""
        added = tuple(self.reducers.values())
        if not added:
            return module
        every = (*added, *module.computations)
        return replace(
            module, computations=every, entry_position=module.entry_position + len(added)
        )

    def _reducer(self, kind: ElementType) -> str:
        if kind.name not in self.reducers:
            name = self._names.fresh(f"sum.{kind.name}")
            self.reducers[kind.name] = combiner(name, "add", plain(kind, ()))
        return self.reducers[kind.name].name


@dataclass
class MovedSums:
    """A computation in the making without some of its sums over devices, or with these late.

    `summed`: the values that are made of them by linear ops. Where these ops come late, so does a
    collective of the same elements, in front of them; else they work on each device's own part.
    """

    computation: Computation
    sums: Sums
    summed: Mapping[int, DeviceSum]
    comes_late: bool
    instructions: list[Instruction] = field(default_factory=list)
    late: set[int] = field(default_factory=set)
    """New positions of late ops."""
    place: dict[int, int] = field(default_factory=dict)
    """Position -> new position."""
    origin: dict[int, int] = field(default_factory=dict)
    """New position -> position that it is of."""
    source: dict[int, int] = field(default_factory=dict)
    """Position of a value that is summed -> new position of what each device has of it."""

    def __post_init__(self) -> None:
        old = self.computation.instructions
        self._names = Names(op.name for op in old)
        linear = {i: each for each in self.summed.values() for i in each.ops}
        at_meeting: dict[int, list[int]] = {}
        for position, each in self.summed.items():
            at_meeting.setdefault(each.meeting, []).append(position)
        for position, op in enumerate(old):
            if position in at_meeting:
                self._meeting(position, {i: self.summed[i] for i in at_meeting[position]})
            elif position not in self.place:
                self._op(position, op, linear.get(position))

    @property
    def new(self) -> Computation:
        """The computation."""
        old = self.computation
        return replace(old, instructions=tuple(self.instructions), root=self.place[old.root])

    def _op(self, position: int, op: Instruction, each: DeviceSum | None) -> None:
        moved = with_operands(op, tuple(self.place[i] for i in op.operands))
        if each is not None:
            if op.opcode == "convert":  # to the type in which the sum is by now
                self.place[position] = moved.operands[0]
                return
            moved = moved._replace(shape=with_type(op.shape, each.element_type))
        self.place[position] = self._append(moved, position, is_late=each is not None)

    def _append(self, op: Instruction, position: int, *, is_late: bool = False) -> int:
        at = len(self.instructions)
        self.instructions.append(op)
        self.origin[at] = position
        if is_late and self.comes_late:
            self.late.add(at)
        return at

    def _meeting(self, position: int, summed: Mapping[int, DeviceSum]) -> None:
        """Write a collective without what is moved; and that in one of its own for each type."""
        op = self.computation.instructions[position]
        waiting = {each.element for each in summed.values()}
        shapes = leaves_of(op.shape)
        rest = [n for n in range(len(op.operands)) if n not in waiting]
        if rest:
            operands = [self.place[op.operands[n]] for n in rest]
            combined = collective(op, op.name, operands, [shapes[n] for n in rest], op.attributes)
            self._elements(position, combined, rest)
        for kind in dict.fromkeys(each.element_type for each in summed.values()):
            own = {i: each for i, each in summed.items() if each.element_type is kind}
            operands = [self._widened(self.place[e.source], position, kind) for e in own.values()]
            self.source.update(zip(own, operands, strict=True))
            if self.comes_late:
                kept = [with_type(shapes[e.element], kind) for e in own.values()]
                name = self._names.fresh(op.name) if self.place.get(position, -1) >= 0 else op.name
                attributes = self.sums.attributes(op, kind)
                combined = collective(op, name, operands, kept, attributes)
                self._elements(position, combined, [e.element for e in own.values()], is_late=True)
            else:
                for each, operand in zip(own.values(), operands, strict=True):
                    self.place[each.ops[-1]] = operand
        self.place.setdefault(position, -1)

    def _elements(
        self,
        position: int,
        combined: Instruction,
        elements: Sequence[int],
        *,
        is_late: bool = False,
    ) -> None:
        """Write a collective, and what reads its arrays in place of the old one's."""
        at = self._append(combined, position, is_late=is_late)
        self.place[position] = at
        if isinstance(self.computation.instructions[position].shape, ArrayShape):
            return
        shapes = leaves_of(combined.shape)
        for user in self.computation.users[position]:
            op = self.computation.instructions[user]
            element = op.attributes.integer("index")
            if element in elements:
                n = elements.index(element)
                index = Attributes({"index": n})
                taken = op._replace(shape=shapes[n], operands=(at,), attributes=index)
                alone = isinstance(combined.shape, ArrayShape)
                self.place[user] = at if alone else self._append(taken, user, is_late=is_late)

    def _widened(self, at: int, position: int, kind: ElementType) -> int:
        op = self.instructions[at]
        shape = with_type(op.shape, kind)
        if shape is op.shape:
            return at
        name = self._names.fresh(op.name)
        return self._append(
            Instruction(name, "convert", shape, (at,), metadata=op.metadata), position
        )


def collective(
    like: Instruction, name: str, operands: Sequence[int], shapes: Sequence[ArrayShape],
    attributes: Attributes,
) -> Instruction:  # fmt: skip
    """Return a collective like another one, of other arrays."""
    shape: Shape = shapes[0] if len(shapes) == 1 else TupleShape(tuple(shapes))
    return like._replace(name=name, shape=shape, operands=tuple(operands), attributes=attributes)
