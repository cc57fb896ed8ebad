"""One micro-batch and its update written out flat, with queues as parameters and results.

What makes a step of Graphcore's encoding is gone afterwards: calls are marks on ops, accumulators
are the gradients that they add up, counters are state, and queues feed parameters and take results.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hloipu_compiler.analysis.feed_config import feed_config
from hloipu_compiler.evaluate.custom_calls import PER_MICRO_BATCH
from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape
from hloipu_compiler.plan.pipelining import MEAN, RUNNING_MEAN, SUM
from hloipu_compiler.poplar.accumulators import Accumulator, addend_of, common_reduction
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
from hloipu_compiler.poplar.repeating import Loops
from hloipu_compiler.poplar.scales import Factors
from hloipu_compiler.poplar.writing import (
    OUTSIDE,
    Buffer,
    Context,
    Counter,
    Lazy,
    Made,
    Sunk,
    Token,
    Value,
    Writer,
    added_to,
    nothing_of,
)
from hloipu_runtime.element_types import S32

FORWARD_PHASE, BACKWARD_PHASE, UPDATE_PHASE = "fwd", "bwd", "wu"
COUNTS = ArrayShape(S32)
_FEW = 4
"""Operands of an op on numbers."""
_PHASES = {STAGE: FORWARD_PHASE, BACKWARD: BACKWARD_PHASE, RECOMPUTATION: BACKWARD_PHASE}


@dataclass(frozen=True, slots=True)
class Trace:
    """What of a micro-batch a value depends on."""

    forward: int = -1
    """The last forward stage."""
    backward: int = -1
    """The backward stage that runs last; -1: none."""
    fed: bool = False
    """On a queue, or on what goes from one micro-batch to the next."""
    late: bool = False
    """On the update."""

    @property
    def varies(self) -> bool:
        """Whether it differs from one micro-batch to the next, as far as can be seen."""
        return self.forward >= 0 or self.backward >= 0 or self.fed


NONE = Trace()


def joined(traces: Sequence[Trace]) -> Trace:
    """Return the trace of what depends on several values."""
    backward = [x.backward for x in traces if x.backward >= 0]
    return Trace(
        max((x.forward for x in traces), default=-1),
        min(backward, default=-1),
        any(x.fed for x in traces),
        any(x.late for x in traces),
    )


@dataclass(slots=True)
class Queue:
    """A queue with the positions of its arrays."""

    name: str
    positions: list[int]
    takes_last: bool = False
    late: bool = False


@dataclass(slots=True)
class Anchor:
    """The op that stands for what micro-batches add up, and the forms of what it takes."""

    position: int
    value: int
    bare: int
    share: int
    """A K-th of `bare`: of running means among sums; -1: not needed."""


@dataclass(slots=True)
class Count:
    """A counter that is state: its parameter, and its next value."""

    parameter: int
    next: int
    here: Context


class FlatWriter(Writer):
    """Writes a step flat."""

    def __init__(self, module: Module, micro_batches: int, stages: int, turns: int) -> None:
        super().__init__(module)
        self.micro_batches = micro_batches
        self.counter_positions: set[int] = set()
        self._factors: Factors | None = None
        self.written_count = 0
        """Micro-batches of an update as the text says; 0: as many."""
        self.turns = turns
        """Updates of a run."""
        self.stages = stages
        """Forward stages; 0: there is no pipeline."""
        self.has_backward = False
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
        self.loops = Loops(module)

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

    # -- marks ---------------------------------------------------------------------------------

    def trace(self, positions: Sequence[int]) -> Trace:
        """Return what some positions depend on."""
        return joined([self.traces.get(at, NONE) for at in positions])

    def noted(self, position: int, operands: Sequence[int], here: Context) -> int:
        """Keep what a new position depends on, where it stands included."""
        found = self.trace(operands)
        if here.phase == FORWARD_PHASE and here.stage >= 0:
            found = joined((found, Trace(forward=here.stage)))
        elif here.phase == BACKWARD_PHASE and here.stage >= 0:
            found = joined((found, Trace(backward=here.stage)))
        elif here.phase == UPDATE_PHASE:
            found = joined((found, Trace(late=True)))
        if found != NONE:
            self.traces[position] = found
        return position

    def placed(self, operands: Sequence[int], here: Context) -> Context:
        """Return the marks of an op that stands between the calls: by what it reads."""
        if here.phase or not self.stages:
            return here
        found = self.trace(operands)
        if found.late:
            return Context(UPDATE_PHASE)
        if found.backward >= 0:
            return Context(BACKWARD_PHASE, found.backward)
        if found.forward < 0:
            return here
        if not self.trains:
            return Context(FORWARD_PHASE, found.forward)
        return Context(BACKWARD_PHASE, found.forward if self.has_backward else -1)

    # -- what is written -----------------------------------------------------------------------

    def plain(self, x: Instruction, operands: list[Value], here: Context) -> Value:
        """Write an op where its operands say that it belongs."""
        given = [v for v in operands if isinstance(v, int)]
        here = self.placed(given, here)
        counts = any(isinstance(v, Counter | Lazy) for v in operands)
        if here == OUTSIDE and self.stages and counts and len(operands) <= _FEW:
            return Lazy(x, tuple(operands))
        positions = [self.settled(v, x, here) for v in operands]
        x = self.loops.without_structure(x)
        return self.noted(self.copied(x, positions, here), positions, here)

    def element(self, x: Instruction, value: Value, index: int) -> Value:
        """Return a part of a tuple, which depends on what the tuple does."""
        found = super().element(x, value, index)
        if isinstance(value, int) and isinstance(found, int):
            self.traces[found] = self.traces.get(value, NONE)
        return found

    def part(self, position: int, index: int) -> int:
        """Write a part of a tuple."""
        found = super().part(position, index)
        self.traces[found] = self.traces.get(position, NONE)
        return found

    def settled(self, value: Value, user: Instruction, here: Context) -> int:
        """Return the position of a value; a tuple made here depends on its parts."""
        found = super().settled(value, user, here)
        if isinstance(value, Made):
            self.noted(found, self.made[found].operands, here)
        return found

    def called(
        self, x: Instruction, config: CallConfig | None, operands: list[Value], here: Context
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

    def anchored(self, name: str, value: int, here: Context) -> int:
        """Write the op that says that each micro-batch makes a value, whatever it depends on."""
        target = Attributes({"custom_call_target": PER_MICRO_BATCH})
        shape = self.made[value].shape
        at = self.add(f"{name}.each", "custom-call", shape, (value,), here, target)
        return self.noted(at, (value,), here)

    # -- structure -----------------------------------------------------------------------------

    def structure(self, x: Instruction, target: str, operands: list[Value], here: Context) -> Value:
        """Take in accumulators and counters."""
        if target == CREATE:
            return self._created(x)
        if target == ADD:
            return self._added(x, operands, here)
        if target == SINK:
            return self._sunk(x, operands)
        if target == COUNTER:
            into = attributes_of(x).get("lower_into_pipeline_stage") in (True, "true", "1", 1)
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

    def _created(self, x: Instruction) -> Value:
        if not isinstance(x.shape, ArrayShape) or not x.shape.element_type.is_array:
            raise PoplarError("E0545", f"the accumulator {x.name!r} is no array")
        self.accumulators.append(Accumulator(x.name, x.shape))
        return Buffer(len(self.accumulators) - 1)

    def _added(self, x: Instruction, operands: list[Value], here: Context) -> Value:
        buffer = added_to(x, operands)
        found = self.accumulators[buffer.number]
        if found.is_sunk:
            raise PoplarError(
                "E0545",
                f"{x.name!r} adds to the accumulator {found.name!r}, which a sink has closed",
                hint="add before the GradientAccumulatorSink",
            )
        place = self.placed([v for v in operands[1:2] if isinstance(v, int)], here)
        value = self.settled(operands[1], x, place)
        scale = self.one_number(x, self.settled(operands[2], x, place))
        found.addends.append(addend_of(self.placing(place), self.factors(), x, value, scale))
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

    def _sunk(self, x: Instruction, operands: list[Value]) -> Value:
        numbers = {v.number for v in operands if isinstance(v, Buffer)}
        if not operands or not all(isinstance(v, Buffer) for v in operands):
            raise PoplarError(
                "E0545",
                f"{x.name!r} closes something that is no accumulator",
                hint="give it what GradientAccumulatorAddWithScale returns",
            )
        if len(numbers) > 1:
            names = ", ".join(repr(self.accumulators[n].name) for n in sorted(numbers))
            raise PoplarError(
                "E0545",
                f"{x.name!r} joins different accumulators, {names}",
                hint="make one accumulator, and add to it from every stage",
            )
        found = self.accumulators[numbers.pop()]
        if not found.addends:
            raise PoplarError(
                "E0545",
                f"nothing is added to the accumulator {found.name!r}, which {x.name!r} closes",
                hint="add a gradient to it with GradientAccumulatorAddWithScale",
            )
        found.is_sunk = True
        return Sunk(self._total(x, found), found.name)

    def _total(self, x: Instruction, accumulator: Accumulator) -> int:
        """Write what an accumulator holds: each place adds up what it adds, then all together."""
        running = accumulator.reduction(self.micro_batches) == RUNNING_MEAN
        places: dict[Context, list[int]] = {}
        for number, each in enumerate(accumulator.addends):
            found = self.trace((each.value,))
            stage = found.backward if found.backward >= 0 else found.forward
            places.setdefault(Context(BACKWARD_PHASE, stage), []).append(number)
        totals = []
        for here, numbers in places.items():
            addends = [accumulator.addends[n] for n in numbers]
            value = self._sum(accumulator, [each.value for each in addends], here)
            bare = self._sum(accumulator, [each.bare for each in addends], here)
            share = self._share(accumulator, bare, here) if running else -1
            at = self.anchored(accumulator.name, value, here)
            self.anchors.append(Anchor(at, value, bare, share))
            totals.append(at)
        late = Context(UPDATE_PHASE)
        total = totals[0]
        for other in totals[1:]:
            total = self.add(x.name, "add", accumulator.shape, (total, other), late)
            self.noted(total, (total, other), late)
        return total

    def _sum(self, accumulator: Accumulator, values: Sequence[int], here: Context) -> int:
        total = -1
        for value in values:
            shape = self.made[value].shape
            if (
                not isinstance(shape, ArrayShape)
                or shape.dimensions != accumulator.shape.dimensions
            ):
                raise PoplarError(
                    "E0545",
                    f"the accumulator {accumulator.name!r} is {accumulator.shape}, and {shape} is "
                    "added to it",
                    hint="give the accumulator the shape of its gradients",
                )
            if shape.element_type is not accumulator.shape.element_type:
                name = f"{accumulator.name}.as"
                taken = self.add(name, "convert", accumulator.shape, (value,), here)
                value = self.noted(taken, (value,), here)
            if total >= 0:
                value = self.noted(
                    self.add(f"{accumulator.name}.sum", "add", accumulator.shape, (total, value),
                             here), (total, value), here)  # fmt: skip
            total = value
        return total

    def _share(self, accumulator: Accumulator, value: int, here: Context) -> int:
        """Write a K-th of a value."""
        kind = ArrayShape(accumulator.shape.element_type)
        text = repr(1 / self.micro_batches)
        number = self.number(f"{accumulator.name}.share", kind, text)
        whole = self.spread(f"{accumulator.name}.shares", accumulator.shape, number)
        name = f"{accumulator.name}.part"
        part = self.add(name, "multiply", accumulator.shape, (value, whole), here)
        return self.noted(part, (value,), here)

    def placing(self, here: Context) -> "_Placing":
        """Return where ops are written that stand in one place."""
        return _Placing(self, here)

    def reduced(self) -> str:
        """Settle which form of the gradients is added up; return the reduction."""
        open_ones = [x.name for x in self.accumulators if x.addends and not x.is_sunk]
        if open_ones:
            raise PoplarError(
                "E0545",
                f"no GradientAccumulatorSink closes the accumulator {open_ones[0]!r}",
                hint="close it, and give what it holds to the ResourceUpdate call",
            )
        reduction = common_reduction(self.accumulators, self.micro_batches)
        for anchor in self.anchors:
            taken = anchor.value
            if reduction in (MEAN, RUNNING_MEAN):
                taken = anchor.bare
            elif anchor.share >= 0:
                taken = anchor.share
            self.made[anchor.position] = self.made[anchor.position]._replace(operands=(taken,))
        return reduction if self.anchors else SUM

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


class _Placing:
    """Writes ops in one place."""

    def __init__(self, writer: FlatWriter, here: Context) -> None:
        self.writer = writer
        self.here = here
        self.made = writer.made

    def add(self, name: str, opcode: str, shape: Shape, operands: Sequence[int] = ()) -> int:
        at = self.writer.add(name, opcode, shape, operands, self.here)
        return self.writer.noted(at, operands, self.here)


def _flat(value: Value) -> list[Value]:
    if isinstance(value, Made):
        return [leaf for part in value.parts for leaf in _flat(part)]
    return [value]
