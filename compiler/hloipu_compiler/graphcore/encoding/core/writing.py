"""Writes called computations out into one.

What Graphcore's encoding is made of besides plain ops (calls, accumulators, counters, queues) is
left to whoever writes: methods to be overridden. Tuples are taken apart, so that no call hides what
passes.
"""

from collections.abc import Sequence
from dataclasses import replace

from hloipu_compiler.graphcore.encoding.core import errors
from hloipu_compiler.graphcore.encoding.core.call_config import config_of
from hloipu_compiler.graphcore.encoding.core.custom_ops import (
    ADD,
    CHECKED_INPUT,
    COUNT,
    COUNTER,
    CREATE,
    MOVES,
    NOTHING,
    REPLICATION,
    SHARE,
    SINK,
    TELLING,
    target_of,
)
from hloipu_compiler.graphcore.encoding.core.devices import devices_of
from hloipu_compiler.graphcore.encoding.core.errors import PoplarError, placing
from hloipu_compiler.graphcore.encoding.core.ops import Op
from hloipu_compiler.graphcore.encoding.core.sheet import Sheet
from hloipu_compiler.graphcore.encoding.core.values import (
    Buffer,
    Context,
    Counter,
    Lazy,
    Sunk,
    Token,
    TupleValue,
    Value,
)
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape, compatible
from hloipu_compiler.passes.framework.call_forms import INLINED

MOST_DEPTH = 60
"""Of calls within calls; Graphcore's own modules have about ten."""


class Writer(Sheet):
    """Writes one computation, with the ops of all that it calls."""

    def __init__(self, module: Module, *, places: bool = False) -> None:
        super().__init__(places=places)
        self.module = module
        self._hurried: dict[tuple[int, Context], int] = {}
        self._kept: list[Lazy] = []
        """So that no other is at their address."""
        self.depth = 0
        self.current = module.entry
        """What is being written out."""

    def computation(self, old: Computation, arguments: Sequence[Value], context: Context) -> Value:
        """Write the ops of a computation with its parameters' values; return the root's value."""
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise errors.CARRIED(
                f"calls stand in each other more than {MOST_DEPTH} deep, in {old.name!r}",
                hint="write the calls out",
            )
        outer, self.current = self.current, old
        place: list[Value] = []
        for instruction in old.instructions:
            if instruction.parameter_number >= 0:
                place.append(arguments[instruction.parameter_number])
                continue
            with placing(self.module, instruction):
                place.append(
                    self.written(
                        instruction, tuple(place[i] for i in instruction.operands), context
                    )
                )
        self.depth -= 1
        self.current = outer
        return place[old.root]

    def written(
        self, instruction: Instruction, operands: tuple[Value, ...], context: Context
    ) -> Value:
        """Write one instruction; return its value."""
        if instruction.opcode == "tuple":
            return TupleValue(operands)
        if instruction.opcode == "get-tuple-element":
            return self.element(instruction, operands[0], instruction.attributes.integer("index"))
        if instruction.opcode == "infeed":
            return self.fed(Op(instruction, operands, context))
        if instruction.opcode == "outfeed":
            return self.sent(Op(instruction, operands, context))
        if instruction.opcode == "after-all":
            return Token()
        if instruction.opcode == "add-dependency":
            return operands[0]
        if instruction.opcode == "all-reduce" and self.takes_means(instruction):
            return self._means(Op(instruction, operands, context, SHARE))
        if instruction.opcode in INLINED:
            return self.called(Op(instruction, operands, context, config=config_of(instruction)))
        target = target_of(instruction)
        op = Op(instruction, operands, context, target)
        return self.as_declared(instruction, self.special(op)) if target else self.plain(op)

    def special(self, op: Op) -> Value:
        """Write an op of Graphcore's that belongs to a step's structure."""
        if op.target in MOVES:
            return op.operands[0] if len(op.operands) == 1 else TupleValue(op.operands)
        if op.target == CHECKED_INPUT:
            return op.operands[-1]
        if op.target in TELLING and op.operands and not _is_nothing(op.instruction.shape):
            return op.operands[0]
        if op.target in REPLICATION:
            return self.replicated(op)
        if op.target in (COUNT, NOTHING) or op.target in TELLING:
            return nothing_of(op.instruction)
        if op.target == COUNTER:
            return self.counter(op)
        if op.target == CREATE:
            return self.created(op)
        if op.target == ADD:
            return self.added(op)
        return self.sunk(op) if op.target == SINK else self.windowed(op)

    def as_declared(self, instruction: Instruction, value: Value) -> Value:
        """Return a value; PoplarError E0545 where it has another shape than the text says."""
        waiting: list[tuple[Value, Shape]] = [(value, instruction.shape)]
        while waiting:
            part, shape = waiting.pop()
            if isinstance(part, TupleValue):
                parts = shape.elements if isinstance(shape, TupleShape) else ()
                fits = len(parts) == len(part.parts) and isinstance(shape, TupleShape)
                waiting.extend(zip(part.parts, parts, strict=False))
            else:
                fits = not isinstance(part, int) or compatible(self.made[part].shape, shape)
            if not fits:
                raise errors.ACCUMULATOR(
                    f"{instruction.name!r} is {instruction.shape}, and what it gives is something "
                    "else",
                    hint="declare it as what goes into it",
                )
        return value

    # -- what whoever writes says of ---------------------------------------------------------------

    def called(self, op: Op) -> Value:
        """Write what a call runs."""
        return self.computation(self.callee(op.instruction), op.operands, self.inside(op))

    def replicated(self, op: Op) -> Value:
        """Write what depends on the number of replicas, or on which one this is."""
        raise NotImplementedError

    def counter(self, op: Op) -> Value:
        """Record a counter of executions."""
        raise NotImplementedError

    def created(self, op: Op) -> Value:
        """Record the creation of an accumulator."""
        raise NotImplementedError

    def added(self, op: Op) -> Value:
        """Record an addition to an accumulator."""
        raise NotImplementedError

    def sunk(self, op: Op) -> Value:
        """Record the end of additions."""
        raise NotImplementedError

    def windowed(self, op: Op) -> Value:
        """Record an accumulator of the older form."""
        raise NotImplementedError

    def fed(self, op: Op) -> Value:
        """Write an infeed."""
        raise NotImplementedError

    def sent(self, op: Op) -> Value:
        """Write an outfeed."""
        raise NotImplementedError

    def plain(self, op: Op) -> Value:
        """Write any other op."""
        return self.copied(op.instruction, self.operands(op), op.context)

    def counted(self, counter: Counter, context: Context) -> int:
        """Return the position of the counter of a place."""
        raise NotImplementedError

    def ordered(self) -> int:
        """Return the position of a token."""
        raise NotImplementedError

    # -- values ------------------------------------------------------------------------------------

    def inside(self, op: Op) -> Context:
        """Return how ops are marked that a call or a loop runs."""
        devices = devices_of(op.instruction) if self.places else ()
        return replace(op.context, device=devices[0]) if len(devices) == 1 else op.context

    def callee(self, instruction: Instruction) -> Computation:
        """Return the computation that a call or a fusion runs."""
        return self.module.computation[instruction.attributes.called[0]]

    def takes_means(self, instruction: Instruction) -> bool:
        """Whether an all-reduce divides by the number of replicas what it adds up."""
        return any(
            target_of(inner) == SHARE
            for name in instruction.attributes.called
            for inner in self.module.computation[name].instructions
        )

    def _means(self, op: Op) -> Value:
        shape = op.instruction.shape
        if not isinstance(shape, TupleShape):
            return self.replicated(op)
        return TupleValue(
            tuple(
                self.replicated(Op(op.instruction._replace(shape=part), (v,), op.context, SHARE))
                for v, part in zip(op.operands, shape.elements, strict=True)
            )
        )

    def element(self, instruction: Instruction, value: Value, index: int) -> Value:
        """Return one part of a tuple."""
        if isinstance(value, TupleValue):
            return value.parts[index]
        if not isinstance(value, int):
            raise _misplaced(instruction, value)
        return self.copied(instruction, (value,), self.where(value))

    def operands(self, op: Op) -> list[int]:
        """Return the positions of an op's operands, made if they are not there yet."""
        return [self.settled(v, op.instruction, op.context) for v in op.operands]

    def settled(self, value: Value, user: Instruction, context: Context) -> int:
        """Return the position of a value, made if it is not there yet."""
        if isinstance(value, int):
            return value
        if isinstance(value, TupleValue):
            parts = [self.settled(part, user, context) for part in value.parts]
            shape = TupleShape(tuple(self.made[at].shape for at in parts))
            return self.add(f"{user.name}.parts", "tuple", shape, parts, context)
        if isinstance(value, Counter):
            return self.counted(value, context)
        if isinstance(value, Lazy):
            return self._hurry(value, user, context)
        if isinstance(value, Token):
            return self.ordered()
        raise _misplaced(user, value)

    def _hurry(self, value: Lazy, user: Instruction, context: Context) -> int:
        """Write an op that was put off, and those that it reads."""
        key = (id(value), context)
        position = self._hurried.get(key)
        if position is None:
            operands = [self.settled(v, user, context) for v in value.operands]
            position = self.copied(value.instruction, operands, context)
            self._hurried[key] = position
            self._kept.append(value)
        return position

    def leaves(self, value: Value, user: Instruction, context: Context) -> list[int]:
        """Return the positions of the arrays that a value consists of; tokens do not count."""
        if isinstance(value, Token):
            return []
        if isinstance(value, TupleValue):
            return [at for part in value.parts for at in self.leaves(part, user, context)]
        position = self.settled(value, user, context)
        shape = self.made[position].shape
        if isinstance(shape, TupleShape):
            return [
                at
                for index in range(len(shape.elements))
                for at in self.leaves(self.part(position, index), user, context)
            ]
        if isinstance(shape, ArrayShape) and shape.element_type.name == "token":
            return []
        return [position]


def added_to(op: Op) -> Buffer:
    """Return the accumulator that an AddWithScale adds to.

    Raises PoplarError E0545 where there is none, or an operand is missing.
    """
    buffer = op.operands[0] if len(op.operands) == 3 else None
    if not isinstance(buffer, Buffer):
        raise errors.ACCUMULATOR(
            f"{op.name!r} adds to something that is not an accumulator, or lacks an operand",
            hint="it takes an accumulator, a gradient and the accumulator's factor",
        )
    return buffer


def nothing_of(instruction: Instruction) -> Value:
    """Return what an op gives that has no values; PoplarError E0545 for one that has some."""
    if _is_nothing(instruction.shape):
        return TupleValue(()) if isinstance(instruction.shape, TupleShape) else Token()
    raise errors.ACCUMULATOR(
        f"{instruction.name!r} ({instruction.attributes.text('custom_call_target')}) is "
        f"{instruction.shape}, and gives nothing",
        hint="it is () or token[]",
    )


def _is_nothing(shape: Shape) -> bool:
    if isinstance(shape, TupleShape):
        return not shape.elements
    return isinstance(shape, ArrayShape) and shape.element_type.name == "token"


def _misplaced(user: Instruction, value: Value) -> PoplarError:
    if isinstance(value, Sunk):
        return errors.ACCUMULATOR(
            f"{user.name!r} ({user.opcode}) reads the accumulated {value.name!r} outside of an "
            "update: it is there only when all micro-batches are through",
            hint="read it in the computation of the ResourceUpdate call",
        )
    return errors.ACCUMULATOR(
        f"{user.name!r} ({user.opcode}) reads an accumulator that is still being filled",
        hint="take it through a GradientAccumulatorSink and the ResourceUpdate call",
    )
