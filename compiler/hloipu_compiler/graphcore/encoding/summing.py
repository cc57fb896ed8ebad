"""Imports a step's accumulators: gradients, and what is accumulated besides."""

from collections.abc import Mapping, Sequence

from hloipu_compiler.graphcore.encoding.core import errors
from hloipu_compiler.graphcore.encoding.core.accumulators import (
    Accumulator,
    addend_of,
    common_reduction,
)
from hloipu_compiler.graphcore.encoding.core.ops import Op
from hloipu_compiler.graphcore.encoding.core.scales import Factors
from hloipu_compiler.graphcore.encoding.core.traces import (
    BACKWARD_PHASE,
    FORWARD_PHASE,
    NONE,
    UPDATE_PHASE,
    Anchor,
    Count,
    Queue,
    Trace,
    joined,
)
from hloipu_compiler.graphcore.encoding.core.values import (
    OUTSIDE,
    Buffer,
    Context,
    Counter,
    Lazy,
    Sunk,
    TupleValue,
    Value,
)
from hloipu_compiler.graphcore.encoding.core.writing import Writer, added_to
from hloipu_compiler.graphcore.encoding.loops.repeating import Loops
from hloipu_compiler.ir.annotations import PER_MICRO_BATCH
from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, Shape
from hloipu_compiler.plan.pipelining import MEAN, RUNNING_MEAN, SUM

_FEW = 4
"""Operands of an op on numbers."""


class TracedWriter(Writer):
    """Writes ops, and keeps what of a micro-batch each depends on."""

    def __init__(self, module: Module, micro_batches: int, stages: int, iterations: int) -> None:
        super().__init__(module, places=not stages)
        self.micro_batches = micro_batches
        self.counter_positions: set[int] = set()
        self._factors: Factors | None = None
        self.written_count = 0
        """Micro-batches of an update as the text says; 0: as many."""
        self.iterations = iterations
        """Updates of a run."""
        self.stages = stages
        """Forward stages; 0: there is no pipeline."""
        self.has_backward = False
        self.returns: Mapping[int, int] = {}
        """Backward stages of a pipeline without update -> the stages that they are then."""
        self.trains = False
        self.traces: dict[int, Trace] = {}
        self.feeds: list[Queue] = []
        self.outfeeds: list[Queue] = []
        self.accumulators: list[Accumulator] = []
        self.anchors: list[Anchor] = []
        self.counts: dict[Context, Count] = {}
        self.inputs: list[Value] = []
        """What goes into the pipeline or loop."""
        self.outputs: list[Value] = []
        """What comes out of it, input i as output i."""
        self.loops = Loops(module, places=self.places)

    # -- marks ---------------------------------------------------------------------------------

    def trace(self, positions: Sequence[int]) -> Trace:
        """Return what some positions depend on."""
        return joined([self.traces.get(at, NONE) for at in positions])

    def noted(self, position: int, operands: Sequence[int], context: Context) -> int:
        """Keep what a new position depends on, where it stands included."""
        trace = self.trace(operands)
        if context.phase == FORWARD_PHASE and context.stage >= 0:
            trace = joined((trace, Trace(forward=context.stage)))
        elif context.phase == BACKWARD_PHASE and context.stage >= 0:
            trace = joined((trace, Trace(backward=context.stage)))
        elif context.phase == UPDATE_PHASE:
            trace = joined((trace, Trace(late=True)))
        if trace != NONE:
            self.traces[position] = trace
        return position

    def placed(self, operands: Sequence[int], context: Context) -> Context:
        """Return the marks of an op that stands between the calls: by what it reads."""
        if context.phase or not self.stages:
            return context
        trace = self.trace(operands)
        if trace.late:
            return Context(UPDATE_PHASE)
        if trace.backward >= 0:
            return Context(BACKWARD_PHASE, trace.backward)
        if trace.forward < 0:
            return context
        if not self.trains:
            return Context(FORWARD_PHASE, trace.forward)
        return Context(BACKWARD_PHASE, trace.forward if self.has_backward else -1)

    # -- what is written -----------------------------------------------------------------------

    def plain(self, op: Op) -> Value:
        """Write an op where its operands say that it belongs."""
        op = op.placed(self.placed(op.positions, op.context))
        counts = any(isinstance(v, Counter | Lazy) for v in op.operands)
        if op.context == OUTSIDE and self.stages and counts and len(op.operands) <= _FEW:
            return Lazy(op.instruction, op.operands)
        positions = self.operands(op)
        instruction = self.loops.without_structure(op.instruction)
        return self.noted(self.copied(instruction, positions, op.context), positions, op.context)

    def replicated(self, op: Op) -> Value:
        """Write what depends on the replicas, by HLO's own collectives."""
        op = op.placed(self.placed(op.positions, op.context))
        values = self.operands(op)
        before = len(self.made)
        position = self.loops.of_replicas(self, op, values)
        self.all_noted(before, op.context)
        return position

    def all_noted(self, before: int, context: Context) -> None:
        """Keep what all ops from a position on depend on."""
        for at in range(before, len(self.made)):
            self.noted(at, self.made[at].operands, context)

    def element(self, instruction: Instruction, value: Value, index: int) -> Value:
        """Return a part of a tuple, which depends on what the tuple does."""
        part = super().element(instruction, value, index)
        if isinstance(value, int) and isinstance(part, int):
            self.traces[part] = self.traces.get(value, NONE)
        return part

    def part(self, position: int, index: int) -> int:
        """Write a part of a tuple."""
        part = super().part(position, index)
        self.traces[part] = self.traces.get(position, NONE)
        return part

    def settled(self, value: Value, user: Instruction, context: Context) -> int:
        """Return the position of a value; a tuple made here depends on its parts."""
        position = super().settled(value, user, context)
        if isinstance(value, TupleValue):
            self.noted(position, self.made[position].operands, context)
        return position

    def anchored(self, name: str, value: int, context: Context) -> int:
        """Write the op that says that each micro-batch makes a value, whatever it depends on."""
        target = Attributes({"custom_call_target": PER_MICRO_BATCH})
        shape = self.made[value].shape
        at = self.add(f"{name}.each", "custom-call", shape, (value,), context, target)
        return self.noted(at, (value,), context)


class SummingWriter(TracedWriter):
    """Writes ops, and gradients in the place of accumulators."""

    def created(self, op: Op) -> Value:
        """Record the creation of an accumulator."""
        shape = op.instruction.shape
        if not isinstance(shape, ArrayShape) or not shape.element_type.is_array:
            raise errors.ACCUMULATOR(f"the accumulator {op.name!r} is not an array")
        self.accumulators.append(Accumulator(op.name, shape, creator=op.instruction))
        return Buffer(len(self.accumulators) - 1)

    def added(self, op: Op) -> Value:
        """Record an addition to an accumulator."""
        buffer = added_to(op)
        accumulator = self.accumulators[buffer.number]
        if accumulator.is_sunk:
            raise errors.ACCUMULATOR(
                f"{op.name!r} adds to the accumulator {accumulator.name!r}, which a sink has "
                "closed",
                hint="add before the GradientAccumulatorSink",
            )
        place = self.placed([v for v in op.operands[1:2] if isinstance(v, int)], op.context)
        value, scale = (self.settled(v, op.instruction, place) for v in op.operands[1:])
        scale = self.one_number(op.instruction, scale)
        accumulator.addends.append(
            addend_of(self.placing(place), self.factors(), op.instruction, value, scale)
        )
        return buffer

    def factors(self) -> Factors:
        """Return what recognises factors among the ops so far."""
        if self._factors is None:
            self._factors = Factors(
                self.made,
                self.counter_positions,
                self.micro_batches,
                goes_on=not self.stages,
                written=self.written_count,
            )
        return self._factors

    def sunk(self, op: Op) -> Value:
        """Record the end of additions."""
        numbers = {v.number for v in op.operands if isinstance(v, Buffer)}
        if not op.operands or not all(isinstance(v, Buffer) for v in op.operands):
            raise errors.ACCUMULATOR(
                f"{op.name!r} closes something that is not an accumulator",
                hint="give it what GradientAccumulatorAddWithScale returns",
            )
        if len(numbers) > 1:
            names = ", ".join(repr(self.accumulators[n].name) for n in sorted(numbers))
            raise errors.ACCUMULATOR(
                f"{op.name!r} joins different accumulators, {names}",
                hint="make one accumulator, and add to it from every stage",
            )
        accumulator = self.accumulators[numbers.pop()]
        if not accumulator.addends:
            raise errors.ACCUMULATOR(
                f"nothing is added to the accumulator {accumulator.name!r}, which {op.name!r} "
                "closes",
                hint="add a gradient to it with GradientAccumulatorAddWithScale",
            )
        accumulator.is_sunk = True
        return Sunk(self.total(op.instruction, accumulator), accumulator.name)

    def total(self, instruction: Instruction, accumulator: Accumulator) -> int:
        """Write an accumulator's total: sum each place's addends, then add the sums."""
        running = accumulator.reduction(self.micro_batches) == RUNNING_MEAN
        places: dict[Context, list[int]] = {}
        for number, addend in enumerate(accumulator.addends):
            trace = self.trace((addend.value,))
            stage = trace.backward if trace.backward >= 0 else trace.forward
            places.setdefault(Context(BACKWARD_PHASE, stage), []).append(number)
        totals = []
        for context, numbers in places.items():
            addends = [accumulator.addends[n] for n in numbers]
            value = self._sum(accumulator, [addend.value for addend in addends], context)
            bare = self._sum(accumulator, [addend.bare for addend in addends], context)
            share = self._share(accumulator, bare, context) if running else -1
            at = self.anchored(accumulator.name, value, context)
            self.anchors.append(Anchor(at, value, bare, share))
            totals.append(at)
        late = Context(UPDATE_PHASE)
        total = totals[0]
        for partial in totals[1:]:
            total = self.add(instruction.name, "add", accumulator.shape, (total, partial), late)
            self.noted(total, (total, partial), late)
        return total

    def _sum(self, accumulator: Accumulator, values: Sequence[int], context: Context) -> int:
        total = -1
        for value in values:
            shape = self.made[value].shape
            if (
                not isinstance(shape, ArrayShape)
                or shape.dimensions != accumulator.shape.dimensions
            ):
                raise errors.ACCUMULATOR(
                    f"the accumulator {accumulator.name!r} is {accumulator.shape}, and {shape} is "
                    "added to it",
                    hint="give the accumulator the shape of its gradients",
                )
            if shape.element_type is not accumulator.shape.element_type:
                name = f"{accumulator.name}.as"
                converted = self.add(name, "convert", accumulator.shape, (value,), context)
                value = self.noted(converted, (value,), context)
            if total >= 0:
                value = self.noted(
                    self.add(f"{accumulator.name}.sum", "add", accumulator.shape, (total, value),
                             context), (total, value), context)  # fmt: skip
            total = value
        return total

    def _share(self, accumulator: Accumulator, value: int, context: Context) -> int:
        """Write a K-th of a value."""
        kind = ArrayShape(accumulator.shape.element_type)
        text = repr(1 / self.micro_batches)
        number = self.number(f"{accumulator.name}.share", kind, text)
        shares = self.spread(f"{accumulator.name}.shares", accumulator.shape, number)
        name = f"{accumulator.name}.part"
        part = self.add(name, "multiply", accumulator.shape, (value, shares), context)
        return self.noted(part, (value,), context)

    def placing(self, context: Context) -> "_Placing":
        """Return where ops are written that stand in one place."""
        return _Placing(self, context)

    def reduced(self) -> str:
        """Settle which form of the gradients is added up; return the reduction."""
        open_ones = [
            accumulator
            for accumulator in self.accumulators
            if accumulator.addends and not accumulator.is_sunk
        ]
        if open_ones:
            raise errors.ACCUMULATOR(
                f"no GradientAccumulatorSink closes the accumulator {open_ones[0].name!r}",
                hint="close it, and give what it holds to the ResourceUpdate call",
                op=open_ones[0].creator,
            )
        reduction = common_reduction(self.accumulators, self.micro_batches)
        for anchor in self.anchors:
            addend = anchor.value
            if reduction in (MEAN, RUNNING_MEAN):
                addend = anchor.bare
            elif anchor.share >= 0:
                addend = anchor.share
            self.made[anchor.position] = self.made[anchor.position]._replace(operands=(addend,))
        return reduction if self.anchors else SUM


class _Placing:
    """Writes ops in one place."""

    def __init__(self, writer: SummingWriter, context: Context) -> None:
        self.writer = writer
        self.context = context
        self.made = writer.made

    def add(self, name: str, opcode: str, shape: Shape, operands: Sequence[int] = ()) -> int:
        at = self.writer.add(name, opcode, shape, operands, self.context)
        return self.writer.noted(at, operands, self.context)
