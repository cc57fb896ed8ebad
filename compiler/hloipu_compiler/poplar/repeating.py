"""Loops of Graphcore's encoding as loops of HLO's, with the meaning that its lowering gives them.

A RepeatLoop call becomes a `while`. Where micro-batches are accumulated, a loop of N turns becomes
one of N / K updates around one of K micro-batches (graphcore/tensorflow:
tensorflow/compiler/plugin/poplar/driver/visitors/repeat_loop_visitor.cc); a pipeline is such a
loop, whatever its schedule.
"""

from collections.abc import Sequence

from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape
from hloipu_compiler.passes.attribute_edits import renamed
from hloipu_compiler.passes.names import Names
from hloipu_compiler.poplar.call_config import PIPELINE, CallConfig
from hloipu_compiler.poplar.errors import PoplarError
from hloipu_compiler.poplar.facts import facts_of, window_in
from hloipu_compiler.poplar.loop_body import COUNTS, DIRECT, INNER, OUTER, LoopBody
from hloipu_compiler.poplar.loop_counts import repeat_count, updates_of, while_count
from hloipu_compiler.poplar.loop_forms import LoopForm, loop_form
from hloipu_compiler.poplar.values import OUTSIDE, Context, Made, Value, Varying
from hloipu_compiler.poplar.windows import of_replicas, windowed
from hloipu_compiler.poplar.writing import Writer
from hloipu_runtime.element_types import F32, PRED, ElementType


class Loops:
    """The loops of one module that are written anew, and what they run."""

    def __init__(self, module: Module, micro_batches: int | None = None) -> None:
        self.module = module
        self.micro_batches = micro_batches
        """Of the module's one update, or of its pipeline; None: nothing says."""
        self.names = Names(c.name for c in module.computations)
        self.computations: list[Computation] = []
        """New ones, callees first."""
        self._rewritten: dict[str, str] = {}
        self.facts = facts_of(module)
        self._reducers: dict[ElementType, str] = {}

    def call(
        self, writer: Writer, x: Instruction, config: CallConfig, operands: Sequence[Value],
        here: Context,
    ) -> Value:  # fmt: skip
        """Write a RepeatLoop or Pipeline call as a `while`."""
        form = loop_form(x, self.module.computation[x.attributes.called[0]])
        given = form.opened(writer, x, operands, here)
        if config.type != PIPELINE:
            return self._loop(writer, form, given, repeat_count(x, config), here)
        turns = config.count("PIPELINE_REPEAT_COUNT", 1) or 1
        count = self.micro_batches or 1
        if count == 1 or not self.accumulates(form.body.name):
            return self.plain(writer, form, given, turns * count, count, here, is_pipeline=True)
        return self.updating(writer, form, given, turns, count, here, is_pipeline=True)

    def counted(
        self,
        writer: Writer,
        computation: Computation,
        x: Instruction,
        state: Value,
        here: Context,
    ) -> Value:
        """Write a `while` in which something is accumulated.

        Raises PoplarError E0546 where nobody can tell how often it runs.
        """
        turns = while_count(self.module, computation, x)
        form = loop_form(x, self.module.computation[x.attributes.text("body")])
        return self._loop(writer, form, form.opened(writer, x, [state], here), turns, here)

    def _loop(
        self,
        writer: Writer,
        form: LoopForm,
        operands: Sequence[int],
        turns: int,
        here: Context,
    ) -> Value:
        """Write a loop that is no pipeline, and may update something."""
        count = window_in(self.module, form.body)
        if self.facts[form.body.name].updates:
            count = self.micro_batches or 0
            updates = updates_of(form.name, turns, count)
            if count > 1:
                return self.updating(writer, form, operands, updates, count, here)
        elif count:
            updates_of(form.name, turns, count)
        return self.plain(writer, form, operands, turns, count or 1, here)

    def windowed(
        self, body: LoopBody, x: Instruction, target: str, operands: Sequence[int]
    ) -> Value:
        """Write an accumulator of the older form."""
        shape = body.made[operands[0]].shape if operands else None
        if not isinstance(shape, ArrayShape):
            raise PoplarError("E0545", f"{x.name!r} accumulates nothing that is an array")
        return windowed(body, x, target, operands, self.reducer(shape.element_type))

    def of_replicas(
        self, writer: Writer, x: Instruction, target: str, values: Sequence[int], here: Context, *,
        is_sum: bool,
    ) -> int:  # fmt: skip
        """Write what depends on the replicas."""
        like = writer.made[values[0]].shape if values else x.shape
        kind = like.element_type if isinstance(like, ArrayShape) else F32
        return of_replicas(writer, x, target, values, self.reducer(kind), here, is_sum=is_sum)

    def reducer(self, kind: ElementType) -> str:
        """Return the name of a computation that adds two numbers."""
        found = self._reducers.get(kind)
        if found is None:
            shape = ArrayShape(kind)
            a, b = (
                Instruction(n, "parameter", shape, parameter_number=k) for k, n in enumerate("ab")
            )
            total = Instruction("sum", "add", shape, (0, 1))
            found = self._reducers[kind] = self.names.fresh(f"sum_{kind.name}")
            self.computations.append(Computation(found, (a, b, total), 2))
        return found

    def accumulates(self, name: str) -> bool:
        """Whether a computation updates or accumulates, itself or by plain calls."""
        return self.facts[name].accumulates

    def is_plain(self, name: str) -> bool:
        """Whether a computation, and all that it calls, has none of Graphcore's ops."""
        return self.facts[name].is_plain

    def without_structure(self, x: Instruction) -> Instruction:
        """Return an op calling computations without Graphcore's ops."""
        names = {name: self.rewritten(name) for name in x.attributes.called}
        if all(new == old for old, new in names.items()):
            return x
        return x._replace(attributes=renamed(x.attributes, names))

    def plain(
        self, writer: Writer, form: LoopForm, operands: Sequence[int], count: int,
        micro_batches: int, here: Context, *, is_pipeline: bool = False,
    ) -> Value:  # fmt: skip
        """Write a loop of so many turns, each of which does all that its body says.

        `micro_batches`: of accumulators of the older form, which count for themselves.
        """
        inner = LoopBody(self, DIRECT, micro_batches, is_pipeline=is_pipeline)
        values = inner.begin([writer.made[at].shape for at in operands])
        made = _turn(inner, form, values)
        results = [inner.settled_in(v, form.name) for v in made]
        _check_shapes(form.name, inner, values, results)
        results += [extra.next for extra in inner.extras]
        computation = inner.ended(f"{form.name}.body", results)
        zeros = [writer.zeros(extra.shape, form.name, here) for extra in inner.extras]
        whole = self._while(writer, form.name, computation, [*operands, *zeros], count, here)
        return form.result(whole.parts[: len(operands)])

    def updating(
        self, writer: Writer, form: LoopForm, operands: Sequence[int], turns: int,
        micro_batches: int, here: Context, *, is_pipeline: bool = False,
    ) -> Value:  # fmt: skip
        """Write a loop of updates, each after so many micro-batches."""
        name = form.name
        shapes = [writer.made[at].shape for at in operands]
        inner = LoopBody(self, INNER, micro_batches, is_pipeline=is_pipeline)
        values = inner.begin([COUNTS, *shapes])
        inner.update_count, olds = values[0], values[1:]
        made = _turn(inner, form, olds)
        late = inner.late_parts(made)
        kept = [
            old if is_late else inner.settled_in(v, name)
            for v, old, is_late in zip(made, olds, late, strict=True)
        ]
        _check_shapes(name, inner, olds, kept)
        changed = [new != old for new, old in zip(kept, olds, strict=True)]
        sums = [extra.next for extra in inner.extras]
        turn = inner.ended(f"{name}.micro_batch", [values[0], *kept, *sums])

        outer = LoopBody(self, OUTER, micro_batches, is_pipeline=is_pipeline)
        starts = outer.begin(shapes)
        outer.update_count = outer.counter
        zeros = [outer.zeros(extra.shape, name, OUTSIDE) for extra in inner.extras]
        begun = [outer.counter, *starts, *zeros]
        whole = self._while(outer, f"{name}.micro_batches", turn, begun, micro_batches, OUTSIDE)
        ends = [at for at in whole.parts if isinstance(at, int)][1:]
        outer.sums = ends[len(starts) :]
        given = [
            Varying(writer.made[operands[n]].name) if is_changed else starts[n]
            for n, is_changed in enumerate(changed)
        ]
        again = _turn(outer, form, given)
        results = [
            outer.settled_in(v, name) if is_late else end
            for v, is_late, end in zip(again, late, ends, strict=False)
        ]
        _check_shapes(name, outer, starts, results)
        computation = outer.ended(f"{name}.update", results)
        return form.result(self._while(writer, name, computation, operands, turns, here).parts)

    def _while(
        self, writer: Writer, name: str, body: Computation, operands: Sequence[int], count: int,
        here: Context,
    ) -> Made:  # fmt: skip
        """Write a loop whose first value counts turns; return the first so many of the others."""
        shapes = TupleShape((COUNTS, *(writer.made[at].shape for at in operands)))
        condition = self._condition(name, shapes, count)
        self.computations += [condition, body]
        zero = writer.number(f"{name}.first", COUNTS, "0")
        start = writer.add(f"{name}.start", "tuple", shapes, (zero, *operands), here)
        names = (condition.name, body.name)
        called = Attributes({"condition": names[0], "body": names[1]}, names)
        whole = writer.add(name, "while", shapes, (start,), here, called)
        return Made(tuple(writer.part(whole, 1 + n) for n in range(len(operands))))

    def _condition(self, name: str, shapes: TupleShape, count: int) -> Computation:
        writer = LoopBody(self, DIRECT, 1)
        state = writer.add("state", "parameter", shapes, parameter_number=0)
        turn = writer.part(state, 0)
        limit = writer.number("turns", COUNTS, str(count))
        goes_on = Attributes({"direction": "LT"})
        root = writer.add("goes_on", "compare", ArrayShape(PRED), (turn, limit),
                          attributes=goes_on)  # fmt: skip
        new = self.names.fresh(f"{name}.condition")
        return Computation(new, tuple(writer.made), root)

    def rewritten(self, name: str) -> str:
        """Return the name of a computation without Graphcore's ops; the same where it has none."""
        found = self._rewritten.get(name)
        if found is None:
            self._rewritten[name] = name  # no computation calls itself
            found = self._rewritten[name] = self._made_plain(self.module.computation[name])
        return found

    def _made_plain(self, old: Computation) -> str:
        if self.is_plain(old.name):
            return old.name
        writer = LoopBody(self, DIRECT, 1)
        arguments = []
        for position in old.parameters:
            x = old.instructions[position]
            number = x.parameter_number
            arguments.append(writer.add(x.name, "parameter", x.shape, parameter_number=number))
        root = writer.settled_in(writer.computation(old, arguments, OUTSIDE), old.name)
        name = self.names.fresh(old.name)
        self.computations.append(Computation(name, tuple(writer.made), root))
        return name


def _turn(writer: Writer, form: LoopForm, values: Sequence[Value]) -> tuple[Value, ...]:
    """Write what one turn does with the values that go on; return those after it."""
    result = writer.computation(form.body, form.arguments(values), OUTSIDE)
    return form.parts(result, values)


def _check_shapes(name: str, writer: Writer, before: Sequence[int], after: Sequence[int]) -> None:
    old = [str(_bare(writer, at)) for at in before]
    new = [str(_bare(writer, at)) for at in after]
    if old != new:
        raise PoplarError(
            "E0549",
            f"{name!r} takes {', '.join(old)} and returns {', '.join(new)}: they go on from turn "
            "to turn, and must be alike",
            hint="return every parameter at its own place, changed or not",
        )


def _bare(writer: Writer, position: int) -> object:
    shape = writer.made[position].shape
    return shape.without_layout() if isinstance(shape, ArrayShape) else shape
