"""Imports older accumulators of a step: sums that only the last micro-batch gives out.

The update reads them; what an iteration does with the zeros that they give out before must be
nothing.
"""

from collections.abc import Collection, Mapping, Sequence

from hloipu_compiler.graphcore.encoding.core.accumulators import Accumulator, Addend
from hloipu_compiler.graphcore.encoding.core.custom_ops import (
    ACCUMULATE,
    ACCUMULATE_REDUCE,
    MOMENTUM_REDUCE,
)
from hloipu_compiler.graphcore.encoding.core.errors import PoplarError
from hloipu_compiler.graphcore.encoding.core.ops import Op
from hloipu_compiler.graphcore.encoding.core.scales import ONE
from hloipu_compiler.graphcore.encoding.core.traces import UPDATE_PHASE, Trace
from hloipu_compiler.graphcore.encoding.core.values import Context, TupleValue, Value
from hloipu_compiler.graphcore.encoding.flat_writing import FlatWriter
from hloipu_compiler.graphcore.encoding.loops.windows import accumulated_shape, averaged, reduced
from hloipu_compiler.ir.graph import Instruction, Module

_LINEAR = frozenset(
    "broadcast reshape transpose convert copy negate slice reverse bitcast all-reduce abs".split()
)
"""Zeros of zeros."""


def sources(instructions: Sequence[Instruction], zeros: Collection[int]) -> list[int]:
    """Return, for each op, the op that it is equal to if all of `zeros` are zeros.

    For finite numbers; itself where nothing is known.
    """
    is_zero = bytearray(len(instructions))
    same = list(range(len(instructions)))
    for at, instruction in enumerate(instructions):
        if at in zeros:
            is_zero[at] = 1
            continue
        if not instruction.operands:
            continue
        first = instruction.operands[0]
        if instruction.opcode in _LINEAR:
            is_zero[at] = is_zero[first]
            if instruction.opcode == "copy":
                same[at] = same[first]
        elif instruction.opcode == "multiply":
            is_zero[at] = any(is_zero[i] for i in instruction.operands)
        elif instruction.opcode == "divide":
            is_zero[at] = is_zero[first]
        elif instruction.opcode in ("add", "subtract"):
            second = instruction.operands[1]
            if is_zero[first] and is_zero[second]:
                is_zero[at] = 1
            elif is_zero[second]:
                same[at] = same[first]
            elif is_zero[first] and instruction.opcode == "add":
                same[at] = same[second]
    return same


_LATE = Context(UPDATE_PHASE)


class NoStep(PoplarError):
    """The loop cannot be written as a step, and stays a loop."""

    def __init__(self, why: str) -> None:
        super().__init__("E0549", why)


class WindowWriter(FlatWriter):
    """Writes a step flat, with accumulators that give out zeros but after the last micro-batch."""

    def __init__(self, module: Module, micro_batches: int) -> None:
        super().__init__(module, micro_batches, 0, 1)
        self.is_written = False
        """Whether the loop has begun."""
        self.silent: list[int] = []
        """What accumulators give out."""
        self.remembered: dict[int, tuple[int, int]] = {}
        """Accumulators with momentum -> what they were before, and the one op that may read it."""

    def plain(self, op: Op) -> Value:
        """Write an op; NoStep where it reads what is accumulated and what micro-batches change."""
        value = super().plain(op)
        if self.silent and isinstance(value, int):
            traces = [self.trace((i,)) for i in self.made[value].operands]
            if any(t.late for t in traces) and any(t.fed and not t.late for t in traces):
                raise NoStep(
                    f"{op.name!r} reads an accumulated gradient, and what each micro-batch changes"
                )
        return value

    def windowed(self, op: Op) -> Value:
        """Record an accumulator: the update reads its sum."""
        if not self.is_written:
            return super().windowed(op)
        values = self.operands(op)
        if op.target in (ACCUMULATE, ACCUMULATE_REDUCE):
            running: list[Value] = [self._returned_sum(op, at) for at in values]
            return running[0] if len(running) == 1 else TupleValue(tuple(running))
        half = len(values) // 2
        momentum = self.one_number(op.instruction, values[-1])
        sums, outputs = [], []
        for old, value in zip(values[:half], values[half : 2 * half], strict=True):
            total = self._with_momentum(op, old, self._total_of(op, value), momentum)
            sums.append(total)
            outputs.append(self._silent(op, total))
        return TupleValue((*sums, *outputs))

    def placed(self, operands: Sequence[int], context: Context) -> Context:
        """Return the marks of an op: those of the update, of what reads a sum."""
        if context.phase:
            return context
        return _LATE if self.trace(operands).late else context

    def _total_of(self, op: Op, value: int) -> int:
        shape = accumulated_shape(self, op.instruction, value)
        accumulator = Accumulator(op.name, shape, [Addend(op.name, value, value, ONE, ONE)], True)
        self.accumulators.append(accumulator)
        return self._late(self.total(op.instruction, accumulator))

    def _late(self, position: int) -> int:
        self.traces[position] = Trace(late=True)
        return position

    def _returned_sum(self, op: Op, value: int) -> int:
        total = self._total_of(op, value)
        shape = self.array(total)
        if op.target == ACCUMULATE_REDUCE and shape is not None:
            reducer = self.loops.reducer(shape.element_type)
            total = self._late(reduced(self, op.name, total, reducer, _LATE))
        return self._silent(op, total)

    def _silent(self, op: Op, total: int) -> int:
        at = self._late(self.add(op.name, "copy", self.made[total].shape, (total,), _LATE))
        self.silent.append(at)
        return at

    def _with_momentum(self, op: Op, old: int, total: int, momentum: int) -> int:
        shape = accumulated_shape(self, op.instruction, old, total)
        before = len(self.made)
        factor = self.spread(f"{op.name}.factor", shape, momentum, _LATE)
        less = self.add(f"{op.name}.less", "multiply", shape, (old, factor), _LATE)
        total_with_momentum = self.add(f"{op.name}.sum", "add", shape, (less, total), _LATE)
        if op.target == MOMENTUM_REDUCE:
            total_with_momentum = averaged(
                self, op.name, total_with_momentum, self.loops.reducer(shape.element_type), _LATE
            )
        for at in range(before, len(self.made)):
            self._late(at)
        self.remembered[total_with_momentum] = (old, less)
        return total_with_momentum

    def check_going_on(
        self, instruction: Instruction, slots: Sequence[int], parts: Sequence[int]
    ) -> None:
        """Raise NoStep where turns change values, and not only where a sum is given out."""
        self._check_remembered(dict(zip(slots, parts, strict=True)))
        if not self.silent:
            return
        same = sources(self.made, set(self.silent))
        for number, (slot, new) in enumerate(zip(slots, parts, strict=True)):
            late = self.trace((new,)).late and new not in self.remembered
            if late and same[slot] != same[new]:
                raise NoStep(
                    f"value {number} of the loop {instruction.name!r} changes in every iteration, "
                    "and not "
                    "only where a sum is given out"
                )

    def _check_remembered(self, following: Mapping[int, int]) -> None:
        """Raise where anything else reads an accumulator that each micro-batch adds to."""
        readers = dict(self.remembered.values())
        if not readers:
            return
        if any(following.get(old) != new for new, (old, _) in self.remembered.items()):
            raise NoStep("an accumulator with momentum does not go on from iteration to iteration")
        for at, instruction in enumerate(self.made):
            if any(i in readers and readers[i] != at for i in instruction.operands):
                raise NoStep(f"{instruction.name!r} reads an accumulator while it is being filled")
