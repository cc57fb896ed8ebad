"""Writes what a turn of a loop does, queues and effects left as they are.

A body is written in one of three ways. `DIRECT`: all of it, every turn. `INNER`: a micro-batch,
the update left out; what the update makes is `Late`. `OUTER`: the update alone, after its
micro-batches; what a micro-batch makes is `Varying` there, and accumulators hold their sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape
from hloipu_compiler.poplar.call_config import LOOP, PIPELINE, UPDATE, CallConfig
from hloipu_compiler.poplar.custom_ops import (
    ADD,
    COUNT,
    COUNTER,
    CREATE,
    NOTHING,
    SINK,
    attributes_of,
)
from hloipu_compiler.poplar.errors import PoplarError
from hloipu_compiler.poplar.values import (
    OUTSIDE,
    Buffer,
    Context,
    Counter,
    Late,
    Made,
    Sunk,
    Token,
    Value,
    Varying,
)
from hloipu_compiler.poplar.writing import Writer, added_to, nothing_of
from hloipu_runtime.element_types import S32, TOKEN

if TYPE_CHECKING:
    from hloipu_compiler.poplar.repeating import Loops

COUNTS = ArrayShape(S32)
DIRECT, INNER, OUTER = "direct", "inner", "outer"


@dataclass(slots=True)
class Extra:
    """A value that a loop carries for itself, from zeros on."""

    shape: ArrayShape
    start: int
    next: int


class LoopBody(Writer):
    """Writes the body of a loop, or any other computation on its own."""

    def __init__(
        self,
        loops: "Loops",
        mode: str,
        micro_batches: int,
        *,
        is_pipeline: bool = False,
    ) -> None:
        super().__init__(loops.module)
        self.loops = loops
        self.mode = mode
        self.micro_batches = micro_batches
        self.is_pipeline = is_pipeline
        self.is_loop = False
        self.state = -1
        self.counter = -1
        """Counts the turns of this loop."""
        self.update_count = -1
        """Counts the updates of a run."""
        self.extras: list[Extra] = []
        self.buffers: list[int] = []
        """Accumulators: which extra each is; as `DIRECT`, where it is now."""
        self.sums: list[int] = []
        """As `OUTER`: what accumulators hold."""
        self.late: set[int] = set()
        """As `OUTER`: what the update makes."""
        self.in_update = False

    def begin(self, shapes: Sequence[Shape]) -> list[int]:
        """Write the loop's state; return the values that go on."""
        self.is_loop = True
        whole = TupleShape((COUNTS, *shapes))
        self.state = self.add("state", "parameter", whole, parameter_number=0)
        self.counter = self.part(self.state, 0)
        return [self.part(self.state, 1 + n) for n in range(len(shapes))]

    def extra(self, shape: ArrayShape, name: str) -> Extra:
        """Carry one more value from turn to turn."""
        whole = self.made[self.state]
        old = whole.shape
        if not isinstance(old, TupleShape) or not self.is_loop:
            raise PoplarError(
                "E0546",
                f"{name!r} accumulates outside of a loop",
                hint="accumulate in the body of a RepeatLoop call, a counted while or a pipeline",
            )
        grown = TupleShape((*old.elements, shape))
        self.made[self.state] = whole._replace(shape=grown)
        at = self.part(self.state, len(old.elements))
        found = Extra(shape, at, at)
        self.extras.append(found)
        return found

    def ended(self, name: str, results: Sequence[int]) -> Computation:
        """Return the body: it counts one turn and returns the values that go on."""
        one = self.number("one", COUNTS, "1")
        after = self.add("turn.next", "add", COUNTS, (self.counter, one))
        shape = TupleShape(tuple(self.made[at].shape for at in (after, *results)))
        root = self.add("out", "tuple", shape, (after, *results))
        return Computation(self.loops.names.fresh(name), tuple(self.made), root)

    def settled_in(self, value: Value, name: str) -> int:
        """Return the position of a value, for what is called `name`."""
        return self.settled(value, Instruction(name, "tuple", TupleShape(())), OUTSIDE)

    def late_parts(self, values: Sequence[Value]) -> list[bool]:
        """Return which values the update makes."""
        return [isinstance(v, Late) for v in values]

    # -- ops -----------------------------------------------------------------------------------

    def plain(self, x: Instruction, operands: list[Value], here: Context) -> Value:
        """Write an op, unless it is not of this way of writing."""
        for kind in (Varying, Late):
            if any(_holds(v, kind) for v in operands):
                return _spread(x.shape, kind(x.name))
        if x.opcode == "while" and self.loops.accumulates(x.attributes.text("body")):
            return self.loops.counted(self, self.current, x, operands[0], here)
        positions = [self.settled(v, x, here) for v in operands]
        x = self.loops.without_structure(x)
        found = self.copied(x, positions, here)
        if isinstance(found, int) and (self.in_update or self.late.intersection(positions)):
            self.late.add(found)
        return found

    def element(self, x: Instruction, value: Value, index: int) -> Value:
        """Return one part of a tuple."""
        if isinstance(value, Varying | Late):
            return _spread(x.shape, type(value)(x.name))
        found = super().element(x, value, index)
        if isinstance(value, int) and isinstance(found, int) and value in self.late:
            self.late.add(found)
        return found

    def called(
        self,
        x: Instruction,
        config: CallConfig | None,
        operands: list[Value],
        here: Context,
    ) -> Value:
        """Write what a call runs: an update, a loop, or ops."""
        kind = config.type if config is not None else ""
        if kind == UPDATE:
            return self._update(x, operands)
        if config is not None and kind in (LOOP, PIPELINE):
            for mark in (Varying, Late):
                if any(_holds(v, mark) for v in operands):
                    return _spread(x.shape, mark(x.name))
            return self.loops.call(self, x, config, operands, here)
        return super().called(x, config, operands, here)

    def _update(self, x: Instruction, operands: list[Value]) -> Value:
        if self.mode == INNER:
            return _spread(x.shape, Late(x.name))
        if not self.is_loop:
            raise PoplarError(
                "E0546",
                f"the update {x.name!r} is in no loop and no pipeline",
                hint="call it in the body of a RepeatLoop call or of a counted while",
            )
        given: list[Value] = []
        for number, value in enumerate(operands):
            if isinstance(value, Varying):
                raise PoplarError(
                    "E0545",
                    f"operand {number} of the update {x.name!r}, {value.name!r}, differs from one "
                    "micro-batch to the next and is not accumulated",
                    hint="add it up with GradientAccumulatorCreate, AddWithScale and Sink",
                )
            given.append(value.position if isinstance(value, Sunk) else value)
        before, self.in_update = len(self.made), True
        found = self.computation(self.callee(x), given, Context())
        self.in_update = False
        self.late.update(range(before, len(self.made)))
        if self.mode == OUTER and isinstance(found, Made):
            copies = [self._own(v, x) for v in found.parts]
            return Made(tuple(copies))
        return found

    def _own(self, value: Value, x: Instruction) -> Value:
        """Return a value as one that the update makes, if only by handing it on."""
        if isinstance(value, int) and value not in self.late:
            value = self.add(f"{x.name}.kept", "copy", self.made[value].shape, (value,))
            self.late.add(value)
        return value

    # -- accumulators and counters -------------------------------------------------------------

    def replicated(
        self,
        x: Instruction,
        target: str,
        operands: Sequence[Value],
        here: Context,
        *,
        is_sum: bool = False,
    ) -> Value:
        """Write what depends on the replicas, by HLO's own collectives."""
        for kind in (Varying, Late):
            if any(_holds(v, kind) for v in operands):
                return _spread(x.shape, kind(x.name))
        values = [self.settled(v, x, here) for v in operands]
        found = self.loops.of_replicas(self, x, target, values, here, is_sum=is_sum)
        if self.in_update or self.late.intersection(values):
            self.late.add(found)
        return found

    def structure(self, x: Instruction, target: str, operands: list[Value], here: Context) -> Value:
        """Take in accumulators and counters."""
        if target in (COUNT, NOTHING):
            return nothing_of(x)
        if target == COUNTER:
            if self.mode == OUTER and not self.in_update:
                return Varying(x.name)
            return Counter(attributes_of(x).get("lower_into_pipeline_stage") is True)
        if any(_holds(v, Varying) for v in operands) and target not in (
            CREATE,
            ADD,
            SINK,
        ):
            return _spread(x.shape, Varying(x.name))
        if target == CREATE:
            return self._created(x)
        if target == ADD:
            return self._added(x, operands, here)
        if target == SINK:
            return self._sunk(x, operands)
        return self._windowed(x, target, operands, here)

    def _created(self, x: Instruction) -> Value:
        if not isinstance(x.shape, ArrayShape) or not x.shape.element_type.is_array:
            raise PoplarError("E0545", f"the accumulator {x.name!r} is no array")
        if self.mode == INNER:
            self.extra(x.shape, x.name)
        elif self.mode == DIRECT:
            self.buffers.append(self.zeros(x.shape, x.name, OUTSIDE))
            return Buffer(len(self.buffers) - 1)
        self.buffers.append(-1)
        return Buffer(len(self.buffers) - 1)

    def _added(self, x: Instruction, operands: list[Value], here: Context) -> Value:
        buffer = added_to(x, operands)
        if self.mode == OUTER:
            return buffer
        inner = self.mode == INNER
        extra = self.extras[buffer.number] if inner else None
        now = extra.next if extra is not None else self.buffers[buffer.number]
        total = self._scaled_sum(x, now, operands, here)
        if extra is not None:
            extra.next = total
        else:
            self.buffers[buffer.number] = total
        return buffer

    def _scaled_sum(self, x: Instruction, now: int, operands: list[Value], here: Context) -> int:
        value = self.settled(operands[1], x, here)
        scale = self.one_number(x, self.settled(operands[2], x, here))
        shape = self.made[now].shape
        if not isinstance(shape, ArrayShape):
            raise PoplarError("E0545", f"{x.name!r} adds to something that is no array")
        kind = ArrayShape(shape.element_type)
        given = self.made[value].shape
        if not isinstance(given, ArrayShape) or given.dimensions != shape.dimensions:
            raise PoplarError(
                "E0545",
                f"the accumulator of {x.name!r} is {shape}, and {given} is added to it",
                hint="give the accumulator the shape of its gradients",
            )
        value = self._as(x, value, shape)
        scale = self._as(x, scale, kind)
        nothing = Attributes({"dimensions": ()})
        scales = self.add(f"{x.name}.scale", "broadcast", shape, (scale,), attributes=nothing)
        old = self.add(f"{x.name}.old", "multiply", shape, (now, scales))
        return self.add(x.name, "add", shape, (old, value))

    def _as(self, x: Instruction, value: int, shape: ArrayShape) -> int:
        """Write a conversion, if a value has another type."""
        old = self.made[value].shape
        if isinstance(old, ArrayShape) and old.element_type is shape.element_type:
            return value
        return self.add(f"{x.name}.as", "convert", shape, (value,))

    def _sunk(self, x: Instruction, operands: list[Value]) -> Value:
        numbers = {v.number for v in operands if isinstance(v, Buffer)}
        if len(numbers) != 1 or not all(isinstance(v, Buffer) for v in operands):
            raise PoplarError(
                "E0545",
                f"{x.name!r} closes something else than one accumulator",
                hint="give it what GradientAccumulatorAddWithScale returns",
            )
        number = numbers.pop()
        if self.mode == DIRECT:
            return Sunk(self.buffers[number], x.name)
        return Sunk(self.sums[number] if self.mode == OUTER else -1, x.name)

    def _windowed(self, x: Instruction, target: str, operands: list[Value], here: Context) -> Value:
        return self.loops.windowed(self, x, target, [self.settled(v, x, here) for v in operands])

    def counted(self, counter: Counter, here: Context, user: Instruction) -> int:
        """Return how often what is here has run."""
        if not self.is_loop:
            return self.number("execution_counter", COUNTS, "0")
        if self.mode == DIRECT and self.is_pipeline:
            opcode = "remainder" if counter.goes_into_stages else "divide"
            count = self.number("window", COUNTS, str(self.micro_batches))
            return self.add("turns", opcode, COUNTS, (self.counter, count))
        if self.mode == DIRECT:
            return self.counter
        if self.mode == OUTER or (self.is_pipeline and not counter.goes_into_stages):
            return self.update_count
        if self.is_pipeline:
            return self.counter
        count = self.number("window", COUNTS, str(self.micro_batches))
        before = self.add("turns.before", "multiply", COUNTS, (self.update_count, count))
        return self.add("turns", "add", COUNTS, (before, self.counter))

    # -- queues --------------------------------------------------------------------------------

    def fed(self, x: Instruction, operands: list[Value], here: Context) -> Value:
        """Write an infeed, once for what it feeds."""
        if self.mode == OUTER and not self.in_update:
            return _spread(x.shape, Varying(x.name))
        if self.mode == INNER and self.in_update:
            return _spread(x.shape, Late(x.name))
        found = self.copied(x, [self.ordered()], here)
        if self.in_update:
            self.late.add(found)
        return found

    def sent(self, x: Instruction, operands: list[Value], here: Context) -> Value:
        """Write an outfeed where what it sends is made."""
        value = operands[0]
        if _holds(value, Late) or _holds(value, Varying):
            return Token()
        position = self.settled(value, x, here)
        if self.mode == OUTER and not (self.in_update or self._is_late(position)):
            return Token()
        self.copied(x, [position, self.ordered()], here)
        return Token()

    def _is_late(self, position: int) -> bool:
        x = self.made[position]
        parts = x.operands if x.opcode == "tuple" else (position,)
        return any(at in self.late for at in parts)

    def ordered(self) -> int:
        """Write a token."""
        return self.add("ready", "after-all", ArrayShape(TOKEN))


def _holds(value: Value, kind: type) -> bool:
    if isinstance(value, Made):
        return any(_holds(part, kind) for part in value.parts)
    return isinstance(value, kind)


def _spread(shape: Shape, value: Value) -> Value:
    """Return a mark on every array of a shape."""
    if isinstance(shape, TupleShape):
        return Made(tuple(_spread(part, value) for part in shape.elements))
    if isinstance(shape, ArrayShape) and shape.element_type.name == "token":
        return Token()
    return value
