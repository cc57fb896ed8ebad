"""Splits a loop of updates in two: a micro-batch without the update, and the update alone."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hloipu_compiler.graphcore.encoding.core.ops import Op, spread
from hloipu_compiler.graphcore.encoding.core.values import (
    Context,
    Counter,
    Late,
    TupleValue,
    Value,
    Varying,
)
from hloipu_compiler.graphcore.encoding.core.writing import added_to
from hloipu_compiler.graphcore.encoding.loops.loop_body import COUNTS, LoopBody
from hloipu_compiler.ir.graph import Instruction
from hloipu_compiler.ir.shapes import ArrayShape

if TYPE_CHECKING:
    from hloipu_compiler.graphcore.encoding.loops.repeating import Loops

OperandKey = tuple[str, int]
"""Name of an update's call, and number of an operand of it."""


class MicroBatchBody(LoopBody):
    """Writes a micro-batch, whose update is left out."""

    def __init__(self, loops: "Loops", micro_batches: int, *, is_pipeline: bool = False) -> None:
        super().__init__(loops, micro_batches, is_pipeline=is_pipeline)
        self.update_count = -1
        """Counts the updates of a run."""
        self.buffers: list[int] = []
        """Which extra each accumulator is."""
        self.lasts: dict[OperandKey, int] = {}
        """What updates read of their last micro-batch."""

    def update(self, op: Op) -> Value:
        """Leave an update out, and keep what it may read of a micro-batch."""
        for number, value in enumerate(op.operands if not self.is_pipeline else ()):
            shape = self.array(value) if isinstance(value, int) else None
            if isinstance(value, int) and shape is not None and self._is_made_here(value):
                self.lasts[op.name, number] = len(self.extras)
                self.extra(shape, op.name).next = value
        return spread(op.instruction.shape, Late(op.name))

    def _is_made_here(self, position: int) -> bool:
        instruction = self.made[position]
        if instruction.opcode == "get-tuple-element":
            instruction = self.made[instruction.operands[0]]
        return instruction.opcode not in ("constant", "parameter")

    def late_parts(self, values: tuple[Value, ...]) -> list[bool]:
        """Return which values the update makes."""
        return [isinstance(v, Late) for v in values]

    def begun(self, op: Op, shape: ArrayShape) -> int:
        """Carry an accumulator from micro-batch to micro-batch."""
        self.buffers.append(len(self.extras))
        self.extra(shape, op.name)
        return len(self.buffers) - 1

    def added(self, op: Op) -> Value:
        """Add to an accumulator."""
        buffer = added_to(op)
        accumulator = self.extras[self.buffers[buffer.number]]
        accumulator.next = self.scaled_sum(op, accumulator.next)
        return buffer

    def total(self, number: int) -> int:
        """Return nothing: only the update reads it."""
        return -1

    def counted(self, counter: Counter, context: Context) -> int:
        """Return how often what is here has run."""
        if self.is_pipeline:
            return self.iteration if counter.goes_into_stages else self.update_count
        count = self.number("window", COUNTS, str(self.micro_batches))
        before = self.add("turns.before", "multiply", COUNTS, (self.update_count, count))
        return self.add("turns", "add", COUNTS, (before, self.iteration))


class UpdateBody(LoopBody):
    """Writes an update, after its micro-batches; their values are marks."""

    def __init__(self, loops: "Loops", micro_batches: int, *, is_pipeline: bool = False) -> None:
        super().__init__(loops, micro_batches, is_pipeline=is_pipeline)
        self.sums: list[int] = []
        """What accumulators hold."""
        self.lasts: dict[OperandKey, int] = {}
        """What updates read of the last micro-batch."""
        self.late: set[int] = set()
        """What the update makes."""
        self._created = 0

    def take(self, inner: MicroBatchBody, ends: Sequence[int]) -> None:
        """Take over the micro-batches' own carried values, as they are after the last one."""
        self.sums = [ends[at] for at in inner.buffers]
        self.lasts = {key: ends[at] for key, at in inner.lasts.items()}

    def plain(self, op: Op) -> Value:
        """Write an op; what is made of the update's values is its own."""
        before = len(self.made)
        value = super().plain(op)
        return self._noted(value, before)

    def _noted(self, value: Value, before: int) -> Value:
        for at in range(before, len(self.made)):
            if self.in_update or not self.late.isdisjoint(self.made[at].operands):
                self.late.add(at)
        return value

    def element(self, instruction: Instruction, value: Value, index: int) -> Value:
        """Return one part of a tuple."""
        before = len(self.made)
        return self._noted(super().element(instruction, value, index), before)

    def replicated(self, op: Op) -> Value:
        """Write what depends on the replicas."""
        before = len(self.made)
        return self._noted(super().replicated(op), before)

    def update(self, op: Op) -> Value:
        """Write the update; what it only hands on is its own, too."""
        before = len(self.made)
        result = super().update(op)
        self.late.update(range(before, len(self.made)))
        if not isinstance(result, TupleValue):
            return result
        return TupleValue(tuple(self._settled_value(v, op) for v in result.parts))

    def _settled_value(self, value: Value, op: Op) -> Value:
        if isinstance(value, int) and value not in self.late:
            value = self.add(f"{op.name}.kept", "copy", self.made[value].shape, (value,))
            self.late.add(value)
        return value

    def varying(self, op: Op, number: int, value: Value) -> Value:
        """Return what the last micro-batch made."""
        last = self.lasts.get((op.name, number))
        return super().varying(op, number, value) if last is None else last

    def begun(self, op: Op, shape: ArrayShape) -> int:
        """Return the number of an accumulator."""
        self._created += 1
        return self._created - 1

    def added(self, op: Op) -> Value:
        """Pass an addition over: micro-batches do them."""
        return added_to(op)

    def total(self, number: int) -> int:
        """Return what an accumulator holds."""
        return self.sums[number]

    def counter(self, op: Op) -> Value:
        """Record a counter: only the update's is known."""
        return super().counter(op) if self.in_update else Varying(op.name)

    def counted(self, counter: Counter, context: Context) -> int:
        """Return how many updates there were."""
        return self.iteration

    def fed(self, op: Op) -> Value:
        """Write an infeed of the update."""
        if not self.in_update:
            return spread(op.instruction.shape, Varying(op.name))
        before = len(self.made)
        return self._noted(super().fed(op), before)

    def sends(self, position: int) -> bool:
        """Whether the update makes what is sent."""
        instruction = self.made[position]
        parts = instruction.operands if instruction.opcode == "tuple" else (position,)
        return self.in_update or not self.late.isdisjoint(parts)
