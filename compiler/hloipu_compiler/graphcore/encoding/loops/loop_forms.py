"""Forms of loops: Graphcore ops in them, how they carry values, how often they run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hloipu_compiler.analysis.call_graph import callees_first
from hloipu_compiler.analysis.trip_count import trip_count
from hloipu_compiler.graphcore.encoding.core import errors
from hloipu_compiler.graphcore.encoding.core.call_config import (
    CALL,
    FUNCTION,
    LOOP,
    MULTI_CONV,
    STAGES,
    UPDATE,
    CallConfig,
    config_of,
)
from hloipu_compiler.graphcore.encoding.core.custom_ops import WINDOWED, target_of
from hloipu_compiler.graphcore.encoding.core.ops import Op
from hloipu_compiler.graphcore.encoding.core.values import TupleValue, Value
from hloipu_compiler.graphcore.encoding.core.writing import Writer
from hloipu_compiler.graphcore.encoding.loops.windows import window_of
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import TupleShape


class Facts(NamedTuple):
    """Graphcore ops of one computation."""

    updates: bool
    """An update, itself or by plain calls."""
    accumulates: bool
    """That, or an accumulator of the older form."""
    is_plain: bool
    """None of Graphcore's ops, in all that it calls."""


_NOTHING = Facts(False, False, True)


def facts_of(module: Module) -> Mapping[str, Facts]:
    """Return what each computation has."""
    facts_by_computation: dict[str, Facts] = {}
    for computation in callees_first(module):
        updates = accumulates = False
        plain = True
        for instruction in computation.instructions:
            config = config_of(instruction)
            target = target_of(instruction)
            plain = plain and not target and config is None
            updates = updates or (config is not None and config.type == UPDATE)
            accumulates = accumulates or target in WINDOWED
            for name in instruction.attributes.called:
                callee = facts_by_computation.get(name, _NOTHING)
                plain = plain and callee.is_plain
                if runs_along(instruction):
                    updates = updates or callee.updates
                    accumulates = accumulates or callee.accumulates
        facts_by_computation[computation.name] = Facts(updates, updates or accumulates, plain)
    return facts_by_computation


def fed_body(module: Module) -> str:
    """Return what the one loop of the entry that reads queues repeats; else nothing."""
    reads: set[str] = set()

    def is_fed(instruction: Instruction) -> bool:
        return instruction.opcode == "infeed" or not reads.isdisjoint(instruction.attributes.called)

    for computation in callees_first(module):
        if any(map(is_fed, computation.instructions)):
            reads.add(computation.name)
    fed = [instruction for instruction in module.entry.instructions if is_fed(instruction)]
    if len(fed) != 1:
        return ""
    config = config_of(fed[0])
    if config is not None and config.type == LOOP:
        return fed[0].attributes.called[0]
    return fed[0].attributes.text("body") if fed[0].opcode == "while" else ""


def runs_along(instruction: Instruction) -> bool:
    """Whether an op is a call that is but a part of what is around it."""
    if instruction.opcode != "call":
        return False
    config = config_of(instruction)
    return config is None or config.type in (CALL, FUNCTION, MULTI_CONV) or config.type in STAGES


def window_in(module: Module, computation: Computation) -> int:
    """Return after how many iterations older accumulators give their sums out; 0: there are none.

    Raises PoplarError E0541 where they do not agree.
    """
    accumulator_by_window: dict[int, str] = {}
    waiting = [computation]
    while waiting:
        for instruction in waiting.pop().instructions:
            if target_of(instruction) in WINDOWED:
                accumulator_by_window.setdefault(window_of(instruction), instruction.name)
            elif runs_along(instruction):
                waiting.extend(module.computation[name] for name in instruction.attributes.called)
    if len(accumulator_by_window) > 1:
        (window, first), (other, second) = list(accumulator_by_window.items())[:2]
        raise errors.MICRO_BATCHES(
            f"{first!r} accumulates {window} micro-batches and {second!r} {other}, in one loop",
            hint="give all accumulators of a loop one num_mini_batches",
        )
    return next(iter(accumulator_by_window), 0)


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
