"""Writes one micro-batch and its update flat, with queues as parameters and results.

What makes a step of Graphcore's encoding is gone afterwards: calls are marks on ops, accumulators
are the gradients that they add up, counters are state, and queues feed parameters and take results.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat

from hloipu_compiler.analysis.feed_config import feed_config
from hloipu_compiler.graphcore.encoding.core import errors
from hloipu_compiler.graphcore.encoding.core.call_config import (
    BACKWARD,
    LOOP,
    RECOMPUTATION,
    STAGE,
    UPDATE,
)
from hloipu_compiler.graphcore.encoding.core.custom_ops import attributes_of
from hloipu_compiler.graphcore.encoding.core.ops import Op, flat
from hloipu_compiler.graphcore.encoding.core.sheet import division_of
from hloipu_compiler.graphcore.encoding.core.traces import (
    BACKWARD_PHASE,
    FORWARD_PHASE,
    UPDATE_PHASE,
    Count,
    Queue,
    Trace,
)
from hloipu_compiler.graphcore.encoding.core.values import (
    OUTSIDE,
    Context,
    Counter,
    Sunk,
    Token,
    TupleValue,
    Value,
)
from hloipu_compiler.graphcore.encoding.summing import SummingWriter
from hloipu_compiler.hlo.attributes.sharding import read_sharding
from hloipu_compiler.ir.annotations import OF_A_QUEUE
from hloipu_compiler.ir.attributes import NO_ATTRIBUTES, Attributes, Raw
from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape
from hloipu_compiler.verify.sharding_forms import leaf_shardings
from hloipu_runtime.element_types import S32

COUNTS = ArrayShape(S32)
_PHASES = {STAGE: FORWARD_PHASE, BACKWARD: BACKWARD_PHASE, RECOMPUTATION: BACKWARD_PHASE}
_PASSING = frozenset(
    "bitcast broadcast constant copy get-tuple-element parameter reshape tuple".split()
)
"""What may be gone when the stages of an inference are looked for."""


class FlatWriter(SummingWriter):
    """Writes a step flat."""

    def entry(self, old: Computation) -> Value:
        """Write the entry of a module; return what it results in."""
        arguments = []
        for position in old.parameters:
            instruction = old.instructions[position]
            arguments.append(
                self.parameter(
                    instruction.name, instruction.shape, attributes=division_of(instruction)
                )
            )
            parameter = self.made[-1]
            self.made[-1] = parameter._replace(
                metadata=instruction.metadata, start=instruction.start, end=instruction.end
            )
        return self.computation(old, arguments, OUTSIDE)

    def ending_here(self) -> Context:
        """Return how what is made of the results is marked."""
        return Context(UPDATE_PHASE) if self.trains else OUTSIDE

    def called(self, op: Op) -> Value:
        """Write what a call runs, marked as the call says."""
        if op.config is not None and op.kind in _PHASES:
            stage = op.config.count("PIPELINE_STAGE_ID")
            inside = op.context.phase and op.context.stage >= 0
            place = replace(op.context, branch=stage) if inside else self._place(op.kind, stage)
            return self.stage(op.placed(place))
        if op.kind == UPDATE:
            return self.update(op)
        if op.kind == LOOP:
            inputs = [v for v in flat(TupleValue(op.operands)) if isinstance(v, int)]
            return self.loop(op.placed(self.placed(inputs, op.context)))
        return super().called(op)

    def _place(self, kind: str, stage: int) -> Context:
        """Return how ops of a stage are marked."""
        if kind == STAGE or stage not in self.returns:
            return Context(_PHASES[kind], stage)
        return Context(FORWARD_PHASE, self.returns[stage])

    def loop(self, op: Op) -> Value:
        """Write a loop that is part of a micro-batch."""
        before = len(self.made)
        result = self.loops.call(self, op)
        self.all_noted(before, op.context)
        return result

    def stage(self, op: Op) -> Value:
        """Write a stage; one that computes nothing passes its first array through an op."""
        before = len(self.made)
        result = self.computation(self.callee(op.instruction), op.operands, op.context)
        ops = self.made[before:]
        computes = bool(ops) if self.trains else any(x.opcode not in _PASSING for x in ops)
        if computes or not isinstance(result, TupleValue):
            return result
        parts = list(result.parts)
        arrays = [
            (not self.trace((part,)).varies, number)
            for number, part in enumerate(parts)
            if isinstance(part, int) and isinstance(self.made[part].shape, ArrayShape)
        ]
        for _, number in sorted(arrays)[:1]:
            first_array = self.settled(parts[number], op.instruction, op.context)
            parts[number] = self.anchored(op.name, first_array, op.context)
        return TupleValue(tuple(parts))

    def update(self, op: Op) -> Value:
        """Write the update: it reads what was accumulated, and what no micro-batch changes."""
        inputs: list[Value] = []
        for number, value in enumerate(op.operands):
            if isinstance(value, Sunk):
                inputs.append(value.position)
                continue
            if isinstance(value, int):
                trace = self.trace((value,))
                if trace.varies and not trace.late:
                    value = self.taken_once(op, number, value)
            inputs.append(value)
        context = Context(UPDATE_PHASE, device=self.inside(op).device)
        return self.computation(self.callee(op.instruction), inputs, context)

    def taken_once(self, op: Op, number: int, value: int) -> int:
        """Return what an update reads of its one micro-batch."""
        if self.micro_batches > 1:
            raise errors.ACCUMULATOR(
                f"operand {number} of the update {op.name!r}, {self.made[value].name!r}, differs "
                "from one micro-batch to the next and is not accumulated",
                hint="add it up with GradientAccumulatorCreate, AddWithScale and Sink",
            )
        trace = self.trace((value,))
        return self.anchored(self.made[value].name, value, Context(BACKWARD_PHASE, trace.backward))

    # -- structure -----------------------------------------------------------------------------

    def counter(self, op: Op) -> Value:
        """Record a counter."""
        stated = attributes_of(op.instruction).get("lower_into_pipeline_stage")
        into = stated in (True, "true", "1", 1)
        return Counter(into or op.context.phase in (FORWARD_PHASE, BACKWARD_PHASE))

    def windowed(self, op: Op) -> Value:
        """Record an accumulator of the older form."""
        raise errors.LOOP(
            f"{op.name!r} ({op.target}) is not in a loop that runs a step again and again",
            hint="accumulate in the body of a RepeatLoop call or of a counted while",
        )

    # -- counters and queues -------------------------------------------------------------------

    def counted(self, counter: Counter, context: Context) -> int:
        """Return the parameter that counts what runs here.

        In stages it counts the micro-batches of an update, in loops those of a run; elsewhere in
        a pipeline it counts the updates of a run.
        """
        late = context.phase == UPDATE_PHASE or (self.stages > 0 and not counter.goes_into_stages)
        key = Context(UPDATE_PHASE) if late else Context(context.phase, context.stage)
        count = self.counts.get(key)
        if count is None:
            at = self.parameter("execution_counter", COUNTS)
            increment = self.number("one", COUNTS, "1")
            window = self.micro_batches if self.stages else self.micro_batches * self.iterations
            end = self.number("end", COUNTS, str(self.iterations if late else window))
            after = self.add("execution_counter.after", "add", COUNTS, (at, increment), key)
            after = self.add("execution_counter.next", "remainder", COUNTS, (after, end), key)
            count = self.counts[key] = Count(at, after, key)
            self.counter_positions.add(at)
            if not late:
                self.traces[at] = Trace(fed=True)
        return count.parameter

    def fed(self, op: Op) -> Value:
        """Put parameters in the place of a queue's arrays."""
        infeed = op.instruction
        if op.context.phase == UPDATE_PHASE:
            raise errors.STAGE(
                f"the update reads a queue, {infeed.name!r}",
                hint="read it in the first stage, or make its values parameters",
            )
        config = feed_config(infeed.attributes.text("infeed_config"))
        queue = Queue(config.name or "infeed", [])
        value = self._parameters(infeed, infeed.shape, queue, self._divisions(infeed))
        known = [feed for feed in self.feeds if feed.name == queue.name]
        if known:
            raise errors.STAGE(
                f"{infeed.name!r} reads the queue {queue.name!r} a second time in a micro-batch",
                hint="read each queue once, and use its values twice",
            )
        self.feeds.append(queue)
        return value

    def _divisions(self, infeed: Instruction) -> Iterator[Attributes]:
        text = infeed.attributes.text("sharding")
        if not text:
            return repeat(NO_ATTRIBUTES)
        shardings = (
            str(sharding_text)
            for sharding_text in leaf_shardings(read_sharding(text), infeed.shape)
        )
        return (
            Attributes({"sharding": Raw(division), "frontend_attributes": OF_A_QUEUE})
            if "maximal" not in division
            else NO_ATTRIBUTES
            for division in shardings
        )

    def _parameters(
        self, infeed: Instruction, shape: Shape, queue: Queue, divisions: Iterator[Attributes]
    ) -> Value:
        if isinstance(shape, TupleShape):
            parts = (self._parameters(infeed, part, queue, divisions) for part in shape.elements)
            return TupleValue(tuple(parts))
        division = next(divisions)
        if isinstance(shape, ArrayShape) and shape.element_type.name == "token":
            return Token()
        at = self.parameter(f"{infeed.name}.{len(queue.positions)}", shape, attributes=division)
        queue.positions.append(at)
        self.traces[at] = Trace(fed=True)
        return at

    def sent(self, op: Op) -> Value:
        """Put results in the place of what a queue takes."""
        outfeed, values = op.instruction, op.operands[0]
        config = feed_config(outfeed.attributes.text("outfeed_config"))
        context = self.placed([v for v in flat(values) if isinstance(v, int)], op.context)
        late = context.phase == UPDATE_PHASE
        queue = Queue(config.name or "outfeed", [], config.takes_last, late)
        if any(queue.name == known.name for known in self.outfeeds):
            raise errors.STAGE(
                f"{outfeed.name!r} sends to the queue {queue.name!r}, and another op does so, too",
                hint="send to each queue in one place",
            )
        for at in self.leaves(values, outfeed, context):
            queue.positions.append(self.anchored(outfeed.name, at, context))
        if queue.positions:
            self.outfeeds.append(queue)
        return Token()

    def ordered(self) -> int:
        """Return a token, for ops that keep theirs."""
        raise errors.STAGE(
            "an op between the stages is ordered by a token, which only queues are here",
            hint="take the op out of the step",
        )
