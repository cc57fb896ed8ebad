"""Converts loops of Graphcore's encoding to `while`, with the meaning that its lowering gives them.

A RepeatLoop call becomes a `while`. Where micro-batches are accumulated, a loop of N iterations
becomes one of N / K updates around one of K micro-batches (graphcore/tensorflow:
tensorflow/compiler/plugin/poplar/driver/visitors/repeat_loop_visitor.cc); a pipeline is such a
loop, whatever its schedule.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hloipu_compiler.graphcore.encoding.core import errors
from hloipu_compiler.graphcore.encoding.core.call_config import PIPELINE
from hloipu_compiler.graphcore.encoding.core.ops import Op
from hloipu_compiler.graphcore.encoding.core.values import OUTSIDE, Context, Value, Varying
from hloipu_compiler.graphcore.encoding.core.writing import Writer
from hloipu_compiler.graphcore.encoding.loops.loop_body import COUNTS, DirectBody, LoopBody
from hloipu_compiler.graphcore.encoding.loops.loop_forms import (
    LoopForm,
    facts_of,
    loop_form,
    repeat_count,
    updates_of,
    while_count,
    window_in,
)
from hloipu_compiler.graphcore.encoding.loops.update_body import MicroBatchBody, UpdateBody
from hloipu_compiler.graphcore.encoding.loops.windows import Window, of_replicas
from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module, combiner
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape
from hloipu_compiler.passes.framework.attribute_edits import renamed
from hloipu_compiler.passes.framework.names import Names
from hloipu_runtime.element_types import F32, PRED, ElementType


@dataclass(frozen=True, slots=True)
class Repeated:
    """A loop, and how often it turns."""

    form: LoopForm
    operands: Sequence[int]
    """What goes on from iteration to iteration, before the first."""
    iterations: int
    """Of all that the body says, or updates where micro-batches are turns of their own."""
    micro_batches: int = 1
    is_pipeline: bool = False
    inside: Context = OUTSIDE
    """How ops of its body are marked."""

    @property
    def name(self) -> str:
        """The loop's name."""
        return self.form.name


class Loops:
    """The rewritten loops of a module, and the computations that they call."""

    def __init__(
        self, module: Module, micro_batches: int | None = None, *, places: bool = False
    ) -> None:
        self.module = module
        self.places = places
        """Whether ops stay on the devices that they name."""
        self.micro_batches = micro_batches
        """Of the module's one update, or of its pipeline; None: nothing says."""
        self.names = Names(c.name for c in module.computations)
        self.computations: list[Computation] = []
        """New ones, callees first."""
        self._rewritten: dict[str, str] = {}
        self.facts = facts_of(module)
        self._reducers: dict[ElementType, str] = {}

    def call(self, writer: Writer, op: Op) -> Value:
        """Write a RepeatLoop or Pipeline call as a `while`."""
        form = loop_form(op.instruction, writer.callee(op.instruction))
        initial = form.opened(writer, op)
        if op.config is None or op.kind != PIPELINE:
            iterations = repeat_count(op.instruction, op.config)
            loop = Repeated(form, initial, iterations, inside=_device(writer, op))
            return self._loop(writer, loop, op.context)
        iterations = op.config.count("PIPELINE_REPEAT_COUNT", 1) or 1
        count = self.micro_batches or 1
        if count == 1 or not self.accumulates(form.body.name):
            loop_of_batches = Repeated(form, initial, iterations * count, count, is_pipeline=True)
            return self.direct(writer, loop_of_batches, op.context)
        return self.updating(
            writer, Repeated(form, initial, iterations, count, is_pipeline=True), op.context
        )

    def counted(self, writer: Writer, op: Op) -> Value:
        """Write a `while` in which something is accumulated.

        Raises PoplarError E0546 where its trip count is not known.
        """
        iterations = while_count(self.module, writer.current, op.instruction)
        form = loop_form(
            op.instruction, self.module.computation[op.instruction.attributes.text("body")]
        )
        loop = Repeated(form, form.opened(writer, op), iterations, inside=_device(writer, op))
        return self._loop(writer, loop, op.context)

    def _loop(self, writer: Writer, loop: Repeated, context: Context) -> Value:
        """Write a loop that is no pipeline, and may update something."""
        body, iterations = loop.form.body, loop.iterations
        count = window_in(self.module, body)
        if self.facts[body.name].updates:
            count = self.micro_batches or 0
            updates = updates_of(loop.name, iterations, count)
            if count > 1:
                loop = replace(loop, iterations=updates, micro_batches=count)
                return self.updating(writer, loop, context)
        elif count:
            updates_of(loop.name, iterations, count)
        return self.direct(writer, replace(loop, micro_batches=count or 1), context)

    def windowed(self, body: LoopBody, op: Op, operands: Sequence[int]) -> Value:
        """Write an accumulator of the older form."""
        shape = body.array(operands[0]) if operands else None
        if shape is None:
            raise errors.ACCUMULATOR(f"{op.name!r} accumulates nothing that is an array")
        return Window(body, op, self.reducer(shape.element_type)).written(operands)

    def of_replicas(self, writer: Writer, op: Op, values: Sequence[int]) -> int:
        """Write what depends on the replicas."""
        like = writer.made[values[0]].shape if values else op.instruction.shape
        kind = like.element_type if isinstance(like, ArrayShape) else F32
        return of_replicas(writer, op, values, self.reducer(kind))

    def reducer(self, kind: ElementType) -> str:
        """Return the name of a computation that adds two numbers."""
        name = self._reducers.get(kind)
        if name is None:
            name = self._reducers[kind] = self.names.fresh(f"add_{kind.name}")
            self.computations.append(combiner(name, "add", ArrayShape(kind)))
        return name

    def accumulates(self, name: str) -> bool:
        """Whether a computation updates or accumulates, itself or by plain calls."""
        return self.facts[name].accumulates

    def is_plain(self, name: str) -> bool:
        """Whether a computation, and all that it calls, has none of Graphcore's ops."""
        return self.facts[name].is_plain

    def without_structure(self, instruction: Instruction) -> Instruction:
        """Return an op calling computations without Graphcore's ops."""
        names = {name: self.rewritten(name) for name in instruction.attributes.called}
        if all(new == old for old, new in names.items()):
            return instruction
        return instruction._replace(attributes=renamed(instruction.attributes, names))

    def direct(self, writer: Writer, loop: Repeated, context: Context) -> Value:
        """Write a loop whose iterations each run the whole body.

        Its micro-batches are those of accumulators of the older form, which count for themselves.
        """
        inner = DirectBody(self, loop.micro_batches, is_pipeline=loop.is_pipeline)
        values = inner.begin([writer.made[at].shape for at in loop.operands])
        results = [inner.settled_in(v, loop.name) for v in _iteration(inner, loop, values)]
        _check_shapes(loop.name, inner, values, results)
        results += [extra.next for extra in inner.extras]
        body = inner.ended(f"{loop.name}.body", results)
        zeros = [writer.zeros(extra.shape, loop.name, context) for extra in inner.extras]
        with_sums = replace(loop, operands=[*loop.operands, *zeros])
        parts = self._while(writer, with_sums, body, context)
        return loop.form.result(parts[: len(loop.operands)])

    def updating(self, writer: Writer, loop: Repeated, context: Context) -> Value:
        """Write a loop of updates, each after K micro-batches."""
        name, form = loop.name, loop.form
        shapes = [writer.made[at].shape for at in loop.operands]
        inner = MicroBatchBody(self, loop.micro_batches, is_pipeline=loop.is_pipeline)
        values = inner.begin([COUNTS, *shapes])
        inner.update_count, olds = values[0], values[1:]
        results_of_batch = _iteration(inner, loop, olds)
        late = inner.late_parts(results_of_batch)
        carried = [
            old if is_late else inner.settled_in(v, name)
            for v, old, is_late in zip(results_of_batch, olds, late, strict=True)
        ]
        _check_shapes(name, inner, olds, carried)
        changed = [new != old for new, old in zip(carried, olds, strict=True)]
        sums = [extra.next for extra in inner.extras]
        iteration = inner.ended(f"{name}.micro_batch", [values[0], *carried, *sums])

        outer = UpdateBody(self, loop.micro_batches, is_pipeline=loop.is_pipeline)
        starts = outer.begin(shapes)
        zeros = [outer.zeros(extra.shape, name) for extra in inner.extras]
        batches = Repeated(
            replace(form, name=f"{name}.micro_batches"), [outer.iteration, *starts, *zeros],
            loop.micro_batches,
        )  # fmt: skip
        ends = self._while(outer, batches, iteration, OUTSIDE)[1:]
        outer.take(inner, ends[len(starts) :])
        initial = [
            Varying(writer.made[at].name) if is_changed else start
            for at, start, is_changed in zip(loop.operands, starts, changed, strict=True)
        ]
        again = _iteration(outer, loop, initial)
        results = [
            outer.settled_in(v, name) if is_late else end
            for v, is_late, end in zip(again, late, ends, strict=False)
        ]
        _check_shapes(name, outer, starts, results)
        return form.result(
            self._while(writer, loop, outer.ended(f"{name}.update", results), context)
        )

    def _while(
        self, writer: Writer, loop: Repeated, body: Computation, context: Context
    ) -> tuple[int, ...]:
        """Write a loop whose first value counts turns; return the others."""
        name, operands = loop.name, loop.operands
        shapes = TupleShape((COUNTS, *(writer.made[at].shape for at in operands)))
        condition = self._condition(name, shapes, loop.iterations)
        self.computations += [condition, body]
        zero = writer.number(f"{name}.first", COUNTS, "0")
        start = writer.add(f"{name}.start", "tuple", shapes, (zero, *operands), context)
        names = (condition.name, body.name)
        called = Attributes({"condition": names[0], "body": names[1]}, names)
        loop_result = writer.add(name, "while", shapes, (start,), context, called)
        return tuple(writer.part(loop_result, 1 + n) for n in range(len(operands)))

    def _condition(self, name: str, shapes: TupleShape, count: int) -> Computation:
        writer = DirectBody(self)
        iteration = writer.part(writer.parameter("state", shapes), 0)
        limit = writer.number("turns", COUNTS, str(count))
        goes_on = Attributes({"direction": "LT"})
        root = writer.add("goes_on", "compare", ArrayShape(PRED), (iteration, limit),
                          attributes=goes_on)  # fmt: skip
        new = self.names.fresh(f"{name}.condition")
        return Computation(new, tuple(writer.made), root)

    def rewritten(self, name: str) -> str:
        """Return the name of a computation without Graphcore's ops; the same where it has none."""
        plain_name = self._rewritten.get(name)
        if plain_name is None:
            self._rewritten[name] = name  # no computation calls itself
            plain_name = self._rewritten[name] = self._made_plain(self.module.computation[name])
        return plain_name

    def _made_plain(self, old: Computation) -> str:
        if self.is_plain(old.name):
            return old.name
        writer = DirectBody(self)
        arguments = []
        for position in old.parameters:
            instruction = old.instructions[position]
            arguments.append(
                writer.parameter(instruction.name, instruction.shape, instruction.parameter_number)
            )
        root = writer.settled_in(writer.computation(old, arguments, OUTSIDE), old.name)
        name = self.names.fresh(old.name)
        self.computations.append(Computation(name, tuple(writer.made), root))
        return name


def _device(writer: Writer, op: Op) -> Context:
    """Return the device of a loop, if it has one for all that it runs."""
    return Context(device=writer.inside(op).device)


def _iteration(writer: Writer, loop: Repeated, values: Sequence[Value]) -> tuple[Value, ...]:
    """Write what one iteration does with the carried values; return those after it."""
    result = writer.computation(loop.form.body, loop.form.arguments(values), loop.inside)
    return loop.form.parts(result, values)


def _check_shapes(name: str, writer: Writer, before: Sequence[int], after: Sequence[int]) -> None:
    old = [str(_bare(writer, at)) for at in before]
    new = [str(_bare(writer, at)) for at in after]
    if old != new:
        raise errors.CARRIED(
            f"{name!r} takes {', '.join(old)} and returns {', '.join(new)}: carried values "
            "must keep their types and shapes",
            hint="return every parameter at its own place, changed or not",
        )


def _bare(writer: Writer, position: int) -> object:
    shape = writer.made[position].shape
    return shape.without_layout() if isinstance(shape, ArrayShape) else shape
