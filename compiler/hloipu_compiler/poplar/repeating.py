"""Loops of Graphcore's encoding as loops of HLO's, with the meaning that its lowering gives them.

A RepeatLoop call becomes a `while`. Where micro-batches are accumulated, a loop of N turns becomes
one of N / K updates around one of K micro-batches (graphcore/tensorflow:
tensorflow/compiler/plugin/poplar/driver/visitors/repeat_loop_visitor.cc); a pipeline is such a
loop, whatever its schedule.
"""

from collections.abc import Callable, Sequence

from hloipu_compiler.analysis.trip_count import trip_count
from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape
from hloipu_compiler.passes.attribute_edits import renamed
from hloipu_compiler.passes.names import Names
from hloipu_compiler.poplar.call_config import PIPELINE, CallConfig
from hloipu_compiler.poplar.errors import PoplarError
from hloipu_compiler.poplar.facts import facts_of, window_in
from hloipu_compiler.poplar.loop_body import COUNTS, DIRECT, INNER, OUTER, LoopBody
from hloipu_compiler.poplar.windows import windowed
from hloipu_compiler.poplar.writing import OUTSIDE, Context, Made, Value, Varying, Writer
from hloipu_runtime.element_types import PRED, ElementType

Body = Callable[[Writer, Sequence[Value]], Value]
"""Writes what one turn does with the values that go on from turn to turn."""


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
        self, writer: Writer, x: Instruction, config: CallConfig, operands: Sequence[int],
        here: Context,
    ) -> Value:  # fmt: skip
        """Write a RepeatLoop or Pipeline call as a `while`."""
        callee = self.module.computation[x.attributes.called[0]]
        body = self.body_of(callee)
        if config.type == PIPELINE:
            turns = config.count("PIPELINE_REPEAT_COUNT", 1) or 1
            count = self.micro_batches or 1
            if count == 1 or not self.accumulates(callee.name):
                return self.plain(writer, x.name, body, operands, turns * count, count, here,
                                  is_pipeline=True)  # fmt: skip
            return self.updating(writer, x.name, body, operands, turns, count, here,
                                 is_pipeline=True)  # fmt: skip
        return self._loop(
            writer, x.name, callee.name, body, operands, repeat_count(x, config), here
        )

    def counted(
        self, writer: Writer, computation: Computation, x: Instruction, state: Value, here: Context
    ) -> Value:
        """Write a `while` in which something is accumulated.

        Raises PoplarError E0546 where nobody can tell how often it runs.
        """
        turns = trip_count(self.module, computation, x)
        if turns is None:
            raise PoplarError(
                "E0546",
                f"micro-batches are accumulated in the loop {x.name!r}, and nobody can tell how "
                "often it runs",
                hint="count its turns by a constant",
            )
        callee = self.module.computation[x.attributes.text("body")]
        whole = state if isinstance(state, Made) else None
        if whole is None:
            at = writer.settled(state, x, here)
            shape = writer.made[at].shape
            parts = range(len(shape.elements)) if isinstance(shape, TupleShape) else ()
            whole = Made(tuple(writer.part(at, n) for n in parts))
        operands = [writer.settled(v, x, here) for v in whole.parts]

        def body(inner: Writer, values: Sequence[Value]) -> Value:
            return inner.computation(callee, [Made(tuple(values))], OUTSIDE)

        return self._loop(writer, x.name, callee.name, body, operands, turns, here)

    def _loop(
        self, writer: Writer, name: str, callee: str, body: "Body", operands: Sequence[int],
        turns: int, here: Context,
    ) -> Value:  # fmt: skip
        count = window_in(self.module, self.module.computation[callee])
        update = self.facts[callee].updates
        count = self.micro_batches or 0 if update else count
        if update and not count:
            raise PoplarError(
                "E0541",
                f"nothing says how many micro-batches the update in the loop {name!r} has",
                hint="put a GradientAccumulationCount of a constant into the update",
            )
        if count and turns % count:
            raise PoplarError(
                "E0546",
                f"the loop {name!r} runs {turns} times, which is no multiple of its {count} "
                "micro-batches an update",
                hint=f"let it run {-(-turns // count) * count} times",
            )
        if not update or count == 1:
            return self.plain(writer, name, body, operands, turns, count or 1, here)
        return self.updating(writer, name, body, operands, turns // count, count, here,
                             is_pipeline=False)  # fmt: skip

    def windowed(
        self, body: LoopBody, x: Instruction, target: str, operands: Sequence[int]
    ) -> Value:
        """Write an accumulator of the older form."""
        shape = body.made[operands[0]].shape if operands else None
        if not isinstance(shape, ArrayShape):
            raise PoplarError("E0545", f"{x.name!r} accumulates nothing that is an array")
        return windowed(body, x, target, operands, self.reducer(shape.element_type))

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

    def body_of(self, callee: Computation) -> Body:
        """Return what writes a computation whose parameters are the values that go on."""
        return lambda writer, values: writer.computation(callee, values, OUTSIDE)

    def plain(
        self, writer: Writer, name: str, body: Body, operands: Sequence[int], count: int,
        micro_batches: int, here: Context, *, is_pipeline: bool = False,
    ) -> Value:  # fmt: skip
        """Write a loop of so many turns, each of which does all that its body says.

        `micro_batches`: of accumulators of the older form, which count for themselves.
        """
        inner = LoopBody(self, DIRECT, micro_batches, is_pipeline=is_pipeline)
        values = inner.begin([writer.made[at].shape for at in operands])
        made = _parts(body(inner, values), name, values)
        results = [inner.settled_in(v, name) for v in made]
        _check_shapes(name, inner, values, results)
        results += [extra.next for extra in inner.extras]
        computation = inner.ended(f"{name}.body", results)
        zeros = [writer.zeros(extra.shape, name, here) for extra in inner.extras]
        return self._while(writer, name, computation, [*operands, *zeros], count, here,
                           len(operands))  # fmt: skip

    def updating(
        self, writer: Writer, name: str, body: Body, operands: Sequence[int], turns: int,
        micro_batches: int, here: Context, *, is_pipeline: bool,
    ) -> Value:  # fmt: skip
        """Write a loop of updates, each after so many micro-batches."""
        shapes = [writer.made[at].shape for at in operands]
        inner = LoopBody(self, INNER, micro_batches, is_pipeline=is_pipeline)
        values = inner.begin([COUNTS, *shapes])
        inner.update_count = values[0]
        made = _parts(body(inner, values[1:]), name, values[1:])
        late = inner.late_parts(made)
        kept = [
            old if is_late else inner.settled_in(v, name)
            for v, old, is_late in zip(made, values[1:], late, strict=True)
        ]
        _check_shapes(name, inner, values[1:], kept)
        changed = [new != old for new, old in zip(kept, values[1:], strict=True)]
        sums = [extra.next for extra in inner.extras]
        turn = inner.ended(f"{name}.micro_batch", [values[0], *kept, *sums])

        outer = LoopBody(self, OUTER, micro_batches, is_pipeline=is_pipeline)
        starts = outer.begin(shapes)
        outer.update_count = outer.counter
        zeros = [outer.zeros(extra.shape, name, OUTSIDE) for extra in inner.extras]
        whole = self._while(
            outer, f"{name}.micro_batches", turn, [outer.counter, *starts, *zeros], micro_batches,
            OUTSIDE, 1 + len(starts) + len(zeros),
        )  # fmt: skip
        ends = [at for at in whole.parts if isinstance(at, int)]
        outer.sums = ends[1 + len(starts) :]
        given: list[Value] = [
            Varying(self._name(writer, operands[n])) if is_changed else starts[n]
            for n, is_changed in enumerate(changed)
        ]
        again = _parts(body(outer, given), name, given)
        results = [
            outer.settled_in(v, name) if is_late else ends[1 + n]
            for n, (v, is_late) in enumerate(zip(again, late, strict=True))
        ]
        _check_shapes(name, outer, starts, results)
        computation = outer.ended(f"{name}.update", results)
        return self._while(writer, name, computation, operands, turns, here, len(operands))

    def _name(self, writer: Writer, position: int) -> str:
        return writer.made[position].name

    def _while(
        self, writer: Writer, name: str, body: Computation, operands: Sequence[int], count: int,
        here: Context, results: int,
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
        return Made(tuple(writer.part(whole, 1 + n) for n in range(results)))

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


def repeat_count(x: Instruction, config: CallConfig) -> int:
    """Return how often a RepeatLoop call runs; PoplarError E0540 where it does not say so."""
    count = config.counts.get("REPEAT_COUNT")
    if count is None:
        raise PoplarError(
            "E0540",
            f"call {x.name!r} is a RepeatLoop, and says nowhere how often it runs",
            hint='write {"callConfig":{"type":"RepeatLoop","repeatConfig":{"repeatCount":"N"}}}',
        )
    return count


def _parts(value: Value, name: str, given: Sequence[Value]) -> tuple[Value, ...]:
    """Return the values that go on: what the body does not return stays as it is."""
    if isinstance(value, Made) and len(value.parts) <= len(given):
        return (*value.parts, *given[len(value.parts) :])
    raise PoplarError(
        "E0549",
        f"what {name!r} runs does not return a tuple of the {len(given)} values that go on",
        hint="return as many values as there are parameters, as a tuple",
    )


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
