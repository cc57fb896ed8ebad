"""Writes a loop body, with queues and effects left as they are.

A body is written in one of three ways. `DirectBody`: all of it, every iteration. `MicroBatchBody`:
the update left out; what the update makes is `Late`. `UpdateBody`: the update alone, after its
micro-batches; what a micro-batch makes is `Varying` there, and accumulators hold their sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloipu_compiler.graphcore.encoding.core import errors
from hloipu_compiler.graphcore.encoding.core.call_config import LOOP, PIPELINE, UPDATE
from hloipu_compiler.graphcore.encoding.core.custom_ops import attributes_of
from hloipu_compiler.graphcore.encoding.core.ops import Op, holds, spread
from hloipu_compiler.graphcore.encoding.core.values import (
    OUTSIDE,
    Buffer,
    Context,
    Counter,
    Late,
    Sunk,
    Token,
    Value,
    Varying,
)
from hloipu_compiler.graphcore.encoding.core.writing import Writer, added_to
from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape
from hloipu_runtime.element_types import S32, TOKEN

if TYPE_CHECKING:
    from hloipu_compiler.graphcore.encoding.loops.repeating import Loops

COUNTS = ArrayShape(S32)


@dataclass(slots=True)
class Extra:
    """A value that a loop carries for itself, from zeros on."""

    shape: ArrayShape
    start: int
    next: int


class LoopBody(Writer):
    """Writes the body of a loop, or any other computation on its own."""

    def __init__(
        self, loops: "Loops", micro_batches: int = 1, *, is_pipeline: bool = False
    ) -> None:
        super().__init__(loops.module, places=loops.places)
        self.loops = loops
        self.micro_batches = micro_batches
        self.is_pipeline = is_pipeline
        self.is_loop = False
        self.state = -1
        self.iteration = -1
        """Counts the iterations of this loop."""
        self.extras: list[Extra] = []
        self.in_update = False

    def begin(self, shapes: Sequence[Shape]) -> list[int]:
        """Write the loop's state; return the carried values."""
        self.is_loop = True
        self.state = self.parameter("state", TupleShape((COUNTS, *shapes)))
        self.iteration = self.part(self.state, 0)
        return [self.part(self.state, 1 + n) for n in range(len(shapes))]

    def extra(self, shape: ArrayShape, name: str) -> Extra:
        """Carry one more value from iteration to iteration."""
        state = self.made[self.state]
        old = state.shape
        if not isinstance(old, TupleShape) or not self.is_loop:
            raise errors.LOOP(
                f"{name!r} accumulates outside of a loop",
                hint="accumulate in the body of a RepeatLoop call, a counted while or a pipeline",
            )
        grown = TupleShape((*old.elements, shape))
        self.made[self.state] = state._replace(shape=grown)
        at = self.part(self.state, len(old.elements))
        carried = Extra(shape, at, at)
        self.extras.append(carried)
        return carried

    def ended(self, name: str, results: Sequence[int]) -> Computation:
        """Return the body: it counts one iteration and returns the carried values."""
        increment = self.number("one", COUNTS, "1")
        after = self.add("turn.next", "add", COUNTS, (self.iteration, increment))
        shape = TupleShape(tuple(self.made[at].shape for at in (after, *results)))
        root = self.add("out", "tuple", shape, (after, *results))
        return Computation(self.loops.names.fresh(name), tuple(self.made), root)

    def settled_in(self, value: Value, name: str) -> int:
        """Return the position of a value, for what is called `name`."""
        return self.settled(value, Instruction(name, "tuple", TupleShape(())), OUTSIDE)

    # -- ops -----------------------------------------------------------------------------------

    def plain(self, op: Op) -> Value:
        """Write an op, unless it is not of this way of writing."""
        marked = op.mark()
        if marked is not None:
            return marked
        instruction = op.instruction
        if instruction.opcode == "while" and self.loops.accumulates(
            instruction.attributes.text("body")
        ):
            return self.loops.counted(self, op)
        return self.copied(self.loops.without_structure(instruction), self.operands(op), op.context)

    def element(self, instruction: Instruction, value: Value, index: int) -> Value:
        """Return one part of a tuple."""
        if isinstance(value, Varying | Late):
            return spread(instruction.shape, type(value)(instruction.name))
        return super().element(instruction, value, index)

    def called(self, op: Op) -> Value:
        """Write what a call runs: an update, a loop, or ops."""
        if op.kind == UPDATE:
            return self.update(op)
        if op.kind in (LOOP, PIPELINE):
            marked = op.mark()
            return self.loops.call(self, op) if marked is None else marked
        return super().called(op)

    def update(self, op: Op) -> Value:
        """Write an update."""
        if not self.is_loop:
            raise errors.LOOP(
                f"the update {op.name!r} is in no loop and no pipeline",
                hint="call it in the body of a RepeatLoop call or of a counted while",
            )
        inputs: list[Value] = []
        for number, value in enumerate(op.operands):
            sunk_or_value = value.position if isinstance(value, Sunk) else value
            inputs.append(
                self.varying(op, number, sunk_or_value)
                if holds(sunk_or_value, Varying)
                else sunk_or_value
            )
        self.in_update = True
        result = self.computation(self.callee(op.instruction), inputs, Context())
        self.in_update = False
        return result

    def varying(self, op: Op, number: int, value: Value) -> Value:
        """Return what an update reads that each micro-batch makes."""
        raise errors.ACCUMULATOR(
            f"operand {number} of the update {op.name!r} differs from one micro-batch to the next "
            "and is not accumulated",
            hint="add it up with GradientAccumulatorCreate, AddWithScale and Sink",
        )

    def replicated(self, op: Op) -> Value:
        """Write what depends on the replicas, by HLO's own collectives."""
        marked = op.mark()
        return self.loops.of_replicas(self, op, self.operands(op)) if marked is None else marked

    # -- accumulators and counters -------------------------------------------------------------

    def counter(self, op: Op) -> Value:
        """Record a counter."""
        return Counter(attributes_of(op.instruction).get("lower_into_pipeline_stage") is True)

    def windowed(self, op: Op) -> Value:
        """Write an accumulator of the older form."""
        marked = op.mark()
        return self.loops.windowed(self, op, self.operands(op)) if marked is None else marked

    def created(self, op: Op) -> Value:
        """Begin an accumulator."""
        shape = op.instruction.shape
        if not isinstance(shape, ArrayShape) or not shape.element_type.is_array:
            raise errors.ACCUMULATOR(f"the accumulator {op.name!r} is not an array")
        return Buffer(self.begun(op, shape))

    def sunk(self, op: Op) -> Value:
        """Return what an accumulator holds in the end."""
        numbers = {v.number for v in op.operands if isinstance(v, Buffer)}
        if len(numbers) != 1 or not all(isinstance(v, Buffer) for v in op.operands):
            raise errors.ACCUMULATOR(
                f"{op.name!r} closes something else than one accumulator",
                hint="give it what GradientAccumulatorAddWithScale returns",
            )
        return Sunk(self.total(numbers.pop()), op.name)

    def begun(self, op: Op, shape: ArrayShape) -> int:
        """Begin an accumulator; return its number."""
        raise NotImplementedError

    def total(self, number: int) -> int:
        """Return the position of what an accumulator holds in the end."""
        raise NotImplementedError

    def scaled_sum(self, op: Op, now: int) -> int:
        """Write what an accumulator is after an addition, `now` before it."""
        value, scale = (self.settled(v, op.instruction, op.context) for v in op.operands[1:])
        scale = self.one_number(op.instruction, scale)
        shape, addend_shape = self.made[now].shape, self.made[value].shape
        if not isinstance(shape, ArrayShape):
            raise errors.ACCUMULATOR(f"{op.name!r} adds to something that is not an array")
        if not isinstance(addend_shape, ArrayShape) or addend_shape.dimensions != shape.dimensions:
            raise errors.ACCUMULATOR(
                f"the accumulator of {op.name!r} is {shape}, and {addend_shape} is added to it",
                hint="give the accumulator the shape of its gradients",
            )
        value = self.as_type(op.name, value, shape)
        scale = self.as_type(op.name, scale, ArrayShape(shape.element_type))
        scales = self.spread(f"{op.name}.scale", shape, scale)
        old = self.add(f"{op.name}.old", "multiply", shape, (now, scales))
        return self.add(op.name, "add", shape, (old, value))

    # -- queues --------------------------------------------------------------------------------

    def fed(self, op: Op) -> Value:
        """Write an infeed, once for what it feeds."""
        return self.copied(op.instruction, [self.ordered()], op.context)

    def sent(self, op: Op) -> Value:
        """Write an outfeed where what it sends is made."""
        value = op.operands[0]
        if not holds(value, Late) and not holds(value, Varying):
            position = self.settled(value, op.instruction, op.context)
            if self.sends(position):
                self.copied(op.instruction, [position, self.ordered()], op.context)
        return Token()

    def sends(self, position: int) -> bool:
        """Whether a value is sent to its queue from here."""
        return True

    def ordered(self) -> int:
        """Write a token."""
        return self.add("ready", "after-all", ArrayShape(TOKEN))


class DirectBody(LoopBody):
    """Writes all of an iteration."""

    def __init__(
        self, loops: "Loops", micro_batches: int = 1, *, is_pipeline: bool = False
    ) -> None:
        super().__init__(loops, micro_batches, is_pipeline=is_pipeline)
        self.buffers: list[int] = []
        """Where each accumulator is now."""

    def begun(self, op: Op, shape: ArrayShape) -> int:
        """Begin an accumulator with zeros."""
        self.buffers.append(self.zeros(shape, op.name))
        return len(self.buffers) - 1

    def added(self, op: Op) -> Value:
        """Add to an accumulator."""
        buffer = added_to(op)
        self.buffers[buffer.number] = self.scaled_sum(op, self.buffers[buffer.number])
        return buffer

    def total(self, number: int) -> int:
        """Return where an accumulator is."""
        return self.buffers[number]

    def counted(self, counter: Counter, context: Context) -> int:
        """Return how often what is here has run."""
        if not self.is_loop:
            return self.number("execution_counter", COUNTS, "0")
        if not self.is_pipeline:
            return self.iteration
        opcode = "remainder" if counter.goes_into_stages else "divide"
        count = self.number("window", COUNTS, str(self.micro_batches))
        return self.add("turns", opcode, COUNTS, (self.iteration, count))
