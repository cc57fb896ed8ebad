"""Forms of loops: how they carry values and how often they run; iterations of one update."""

from collections.abc import Sequence
from dataclasses import dataclass

from hloipu_compiler.analysis.trip_count import trip_count
from hloipu_compiler.graphcore.encoding.core import errors
from hloipu_compiler.graphcore.encoding.core.call_config import CallConfig
from hloipu_compiler.graphcore.encoding.core.ops import Op
from hloipu_compiler.graphcore.encoding.core.values import TupleValue, Value
from hloipu_compiler.graphcore.encoding.core.writing import Writer
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import TupleShape

MANY, TUPLE, ONE = "many", "tuple", "one"


@dataclass(frozen=True, slots=True)
class LoopForm:
    """A loop's body, and how values go into it and come out."""

    name: str
    """Of the loop."""
    body: Computation
    kind: str

    def opened(self, writer: Writer, op: Op) -> list[int]:
        """Return the positions of the carried values, before the first iteration."""
        return [writer.settled(v, op.instruction, op.context) for v in self.values(writer, op)]

    def values(self, writer: Writer, op: Op) -> list[Value]:
        """Return the carried values, before the first iteration."""
        if self.kind != TUPLE:
            return list(op.operands)
        state = op.operands[0]
        if not isinstance(state, TupleValue):
            at = writer.settled(state, op.instruction, op.context)
            shape = writer.made[at].shape
            count = len(shape.elements) if isinstance(shape, TupleShape) else 0
            state = TupleValue(tuple(writer.part(at, n) for n in range(count)))
        return list(state.parts)

    def arguments(self, values: Sequence[Value]) -> list[Value]:
        """Return what the body's parameters are."""
        return [TupleValue(tuple(values))] if self.kind == TUPLE else list(values)

    def parts(self, result: Value, inputs: Sequence[Value]) -> tuple[Value, ...]:
        """Return the carried values after an iteration; those not returned stay unchanged.

        Raises PoplarError E0549 for a body that returns something else.
        """
        if self.kind == ONE:
            return (result,)
        if isinstance(result, TupleValue) and len(result.parts) <= len(inputs):
            return (*result.parts, *inputs[len(result.parts) :])
        raise errors.CARRIED(
            f"what {self.name!r} runs does not return a tuple of the {len(inputs)} carried values",
            hint="return as many values as there are parameters, as a tuple",
        )

    def result(self, parts: Sequence[Value]) -> Value:
        """Return what the loop gives back."""
        return parts[0] if self.kind == ONE else TupleValue(tuple(parts))


def loop_form(instruction: Instruction, body: Computation) -> LoopForm:
    """Return how a call or a `while` repeats a computation."""
    root = body.instructions[body.root].shape
    kind = MANY
    if len(body.parameters) == 1:
        parameter_shape = body.instructions[body.parameters[0]].shape
        if isinstance(parameter_shape, TupleShape) and isinstance(root, TupleShape):
            kind = TUPLE if len(parameter_shape.elements) == len(root.elements) else MANY
        elif not isinstance(root, TupleShape):
            kind = ONE
    return LoopForm(instruction.name, body, kind)


def repeat_count(instruction: Instruction, config: CallConfig | None) -> int:
    """Return how often a RepeatLoop call runs; PoplarError E0540 where it does not say so."""
    count = config.counts.get("REPEAT_COUNT") if config is not None else None
    if count is None:
        raise errors.CALL_CONFIG(
            f"call {instruction.name!r} is a RepeatLoop, and says nowhere how often it runs",
            hint='write {"callConfig":{"type":"RepeatLoop","repeatConfig":{"repeatCount":"N"}}}',
            op=instruction,
        )
    return count


def while_count(module: Module, computation: Computation, instruction: Instruction) -> int:
    """Return how often a `while` runs in which something is accumulated.

    Raises PoplarError E0546 where nobody can tell.
    """
    iterations = trip_count(module, computation, instruction)
    if iterations is None:
        raise errors.LOOP(
            f"micro-batches are accumulated in the loop {instruction.name!r}, whose trip count is "
            "not known",
            hint="count its iterations by a constant",
            op=instruction,
        )
    return iterations


def updates_of(name: str, iterations: int, micro_batches: int) -> int:
    """Return the number of updates in a loop of some iterations.

    Raises PoplarError: E0541 where no count of micro-batches is known, which is 0 then, E0546
    where it does not divide the iterations.
    """
    if not micro_batches:
        raise errors.MICRO_BATCHES(
            f"nothing says how many micro-batches the update in the loop {name!r} has",
            hint="put a GradientAccumulationCount of a constant into the update",
        )
    if iterations % micro_batches:
        raise errors.LOOP(
            f"the loop {name!r} runs {iterations} times, which is not a multiple of its "
            f"{micro_batches} micro-batches an update",
            hint=f"let it run {-(-iterations // micro_batches) * micro_batches} times",
        )
    return iterations // micro_batches
