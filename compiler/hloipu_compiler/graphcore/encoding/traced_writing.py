"""Places a step's ops in phases, by their call or by what they read."""

from collections.abc import Mapping, Sequence

from hloipu_compiler.graphcore.encoding.core.accumulators import Accumulator
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
    Context,
    Counter,
    Lazy,
    TupleValue,
    Value,
)
from hloipu_compiler.graphcore.encoding.core.writing import Writer
from hloipu_compiler.graphcore.encoding.loops.repeating import Loops
from hloipu_compiler.ir.annotations import PER_MICRO_BATCH
from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Instruction, Module

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
