"""One micro-batch and its update written out flat, with queues as parameters and results.

What makes a step of Graphcore's encoding is gone afterwards: calls are marks on ops, accumulators
are the gradients that they add up, counters are state, and queues feed parameters and take results.
"""

from dataclasses import replace

from hloipu_compiler.analysis.feed_config import feed_config
from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape
from hloipu_compiler.poplar.call_config import (
    BACKWARD,
    LOOP,
    RECOMPUTATION,
    STAGE,
    UPDATE,
    CallConfig,
)
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
from hloipu_compiler.poplar.summing import SummingWriter
from hloipu_compiler.poplar.traces import (
    BACKWARD_PHASE,
    FORWARD_PHASE,
    UPDATE_PHASE,
    Count,
    Queue,
    Trace,
)
from hloipu_compiler.poplar.values import OUTSIDE, Context, Counter, Made, Sunk, Token, Value
from hloipu_compiler.poplar.writing import nothing_of
from hloipu_runtime.element_types import S32

COUNTS = ArrayShape(S32)
_PHASES = {
    STAGE: FORWARD_PHASE,
    BACKWARD: BACKWARD_PHASE,
    RECOMPUTATION: BACKWARD_PHASE,
}


class FlatWriter(SummingWriter):
    """Writes a step flat."""

    def entry(self, old: Computation) -> Value:
        """Write the entry of a module; return what it results in."""
        arguments = []
        for position in old.parameters:
            x = old.instructions[position]
            arguments.append(self.add(x.name, "parameter", x.shape, parameter_number=0))
            self.made[-1] = self.made[-1]._replace(metadata=x.metadata)
        return self.computation(old, arguments, OUTSIDE)

    def ending_here(self) -> Context:
        """Return how what is made of the results is marked."""
        return Context(UPDATE_PHASE) if self.trains else OUTSIDE

    def called(
        self,
        x: Instruction,
        config: CallConfig | None,
        operands: list[Value],
        here: Context,
    ) -> Value:
        """Write what a call runs, marked as the call says."""
        kind = config.type if config is not None else ""
        if config is not None and kind in _PHASES:
            stage = config.count("PIPELINE_STAGE_ID")
            inside = here.phase and here.stage >= 0
            place = replace(here, branch=stage) if inside else Context(_PHASES[kind], stage)
            return self.stage(x, operands, place)
        if kind == UPDATE:
            return self.update(x, operands)
        if config is not None and kind == LOOP:
            given = [v for v in _flat(Made(tuple(operands))) if isinstance(v, int)]
            return self.loop(x, config, operands, self.placed(given, here))
        return super().called(x, config, operands, here)

    def loop(
        self, x: Instruction, config: CallConfig, operands: list[Value], here: Context
    ) -> Value:
        """Write a loop that is part of a micro-batch."""
        before = len(self.made)
        made = self.loops.call(self, x, config, operands, here)
        for at in range(before, len(self.made)):
            self.noted(at, self.made[at].operands, here)
        return made

    def stage(self, x: Instruction, operands: list[Value], here: Context) -> Value:
        """Write a stage; one without ops passes its first array through one, to be there."""
        before = len(self.made)
        found = self.computation(self.callee(x), operands, here)
        if len(self.made) > before or not isinstance(found, Made):
            return found
        for number, part in enumerate(found.parts):
            if isinstance(part, int) and isinstance(self.made[part].shape, ArrayShape):
                parts = list(found.parts)
                parts[number] = self.anchored(x.name, part, here)
                return Made(tuple(parts))
        return found

    def update(self, x: Instruction, operands: list[Value]) -> Value:
        """Write the update: it reads what was accumulated, and what no micro-batch changes."""
        given: list[Value] = []
        for number, value in enumerate(operands):
            if isinstance(value, Sunk):
                given.append(value.position)
                continue
            if isinstance(value, int) and self.trace((value,)).varies:
                value = self._taken_once(x, number, value)
            given.append(value)
        return self.computation(self.callee(x), given, Context(UPDATE_PHASE))

    def _taken_once(self, x: Instruction, number: int, value: int) -> int:
        """Return what an update reads of its one micro-batch."""
        if self.micro_batches > 1:
            raise PoplarError(
                "E0545",
                f"operand {number} of the update {x.name!r}, {self.made[value].name!r}, differs "
                "from one micro-batch to the next and is not accumulated",
                hint="add it up with GradientAccumulatorCreate, AddWithScale and Sink",
            )
        found = self.trace((value,))
        return self.anchored(self.made[value].name, value, Context(BACKWARD_PHASE, found.backward))

    # -- structure -----------------------------------------------------------------------------

    def structure(self, x: Instruction, target: str, operands: list[Value], here: Context) -> Value:
        """Take in accumulators and counters."""
        if target == CREATE:
            return self.created(x)
        if target == ADD:
            return self.added(x, operands, here)
        if target == SINK:
            return self.sunk(x, operands)
        if target == COUNTER:
            into = attributes_of(x).get("lower_into_pipeline_stage") in (
                True,
                "true",
                "1",
                1,
            )
            return Counter(into or here.phase in (FORWARD_PHASE, BACKWARD_PHASE))
        if target in (COUNT, NOTHING):
            return nothing_of(x)
        return self.windowed(x, target, operands, here)

    def windowed(self, x: Instruction, target: str, operands: list[Value], here: Context) -> Value:
        """Take in an accumulator of the older form."""
        raise PoplarError(
            "E0546",
            f"{x.name!r} ({target}) is not in a loop that runs a step again and again",
            hint="accumulate in the body of a RepeatLoop call or of a counted while",
        )

    # -- counters and queues -------------------------------------------------------------------

    def counted(self, counter: Counter, here: Context, user: Instruction) -> int:
        """Return the parameter that counts what runs here.

        In stages it counts the micro-batches of an update, in loops those of a run; elsewhere in
        a pipeline it counts the updates of a run.
        """
        late = here.phase == UPDATE_PHASE or (self.stages > 0 and not counter.goes_into_stages)
        key = Context(UPDATE_PHASE) if late else Context(here.phase, here.stage)
        found = self.counts.get(key)
        if found is None:
            at = self.add("execution_counter", "parameter", COUNTS, parameter_number=0)
            one = self.number("one", COUNTS, "1")
            window = self.micro_batches if self.stages else self.micro_batches * self.turns
            end = self.number("end", COUNTS, str(self.turns if late else window))
            after = self.add("execution_counter.after", "add", COUNTS, (at, one), key)
            after = self.add("execution_counter.next", "remainder", COUNTS, (after, end), key)
            found = self.counts[key] = Count(at, after, key)
            self.counter_positions.add(at)
            if not late:
                self.traces[at] = Trace(fed=True)
        return found.parameter

    def fed(self, x: Instruction, operands: list[Value], here: Context) -> Value:
        """Put parameters in the place of a queue's arrays."""
        if here.phase == UPDATE_PHASE:
            raise PoplarError(
                "E0544",
                f"the update reads a queue, {x.name!r}",
                hint="read it in the first stage, or make its values parameters",
            )
        said = feed_config(x.attributes.text("infeed_config"))
        queue = Queue(said.name or "infeed", [])
        value = self._parameters(x, x.shape, queue)
        known = [feed for feed in self.feeds if feed.name == queue.name]
        if known:
            raise PoplarError(
                "E0544",
                f"{x.name!r} reads the queue {queue.name!r} a second time in a micro-batch",
                hint="read each queue once, and use its values twice",
            )
        self.feeds.append(queue)
        return value

    def _parameters(self, x: Instruction, shape: Shape, queue: Queue) -> Value:
        if isinstance(shape, TupleShape):
            return Made(tuple(self._parameters(x, part, queue) for part in shape.elements))
        if isinstance(shape, ArrayShape) and shape.element_type.name == "token":
            return Token()
        at = self.add(f"{x.name}.{len(queue.positions)}", "parameter", shape, parameter_number=0)
        queue.positions.append(at)
        self.traces[at] = Trace(fed=True)
        return at

    def sent(self, x: Instruction, operands: list[Value], here: Context) -> Value:
        """Put results in the place of what a queue takes."""
        said = feed_config(x.attributes.text("outfeed_config"))
        values = operands[0]
        here = self.placed([v for v in _flat(values) if isinstance(v, int)], here)
        late = here.phase == UPDATE_PHASE
        queue = Queue(said.name or "outfeed", [], said.takes_last, late)
        if any(queue.name == known.name for known in self.outfeeds):
            raise PoplarError(
                "E0544",
                f"{x.name!r} sends to the queue {queue.name!r}, and another op does so, too",
                hint="send to each queue in one place",
            )
        for at in self.leaves(values, x, here):
            queue.positions.append(self.anchored(x.name, at, here))
        if queue.positions:
            self.outfeeds.append(queue)
        return Token()

    def ordered(self) -> int:
        """Return a token, for ops that keep theirs."""
        raise PoplarError(
            "E0544",
            "an op between the stages is ordered by a token, which only queues are here",
            hint="take the op out of the step",
        )


def _flat(value: Value) -> list[Value]:
    if isinstance(value, Made):
        return [leaf for part in value.parts for leaf in _flat(part)]
    return [value]
