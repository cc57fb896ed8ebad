"""Finds a module's pipeline, loop and update, and refuses what cannot be read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hloipu_compiler.analysis.call_graph import callees_first
from hloipu_compiler.graphcore.encoding.core import errors
from hloipu_compiler.graphcore.encoding.core.call_config import (
    LOOP,
    PIPELINE,
    STAGES,
    UPDATE,
    CallConfig,
    config_of,
)
from hloipu_compiler.graphcore.encoding.core.custom_ops import (
    COUNT,
    WINDOWED,
    integer_of,
    target_of,
)
from hloipu_compiler.graphcore.encoding.core.errors import PoplarError
from hloipu_compiler.hlo.literals.values import literal_array
from hloipu_compiler.ir.graph import Computation, Instruction, Module

_NUMBERS = ("num_mini_batches", "count")


class ConfiguredCall(NamedTuple):
    """A call with the computation that it stands in."""

    computation: Computation
    call: Instruction
    config: CallConfig


@dataclass(frozen=True, slots=True)
class Survey:
    """Ops of Graphcore's encoding in a module."""

    pipeline: ConfiguredCall | None = None
    stages: tuple[ConfiguredCall, ...] = ()
    """Forward, backward and recomputing ones, as they stand."""
    updates: tuple[ConfiguredCall, ...] = ()
    """Of one pipeline or loop, done one after the other."""
    loops: tuple[ConfiguredCall, ...] = ()
    """Calls that repeat what they run."""
    windows: tuple[Instruction, ...] = ()
    """Accumulators of the older form, which need no update of their own."""
    has_other_calls: bool = False
    """Whether there are custom calls of the encoding's besides."""
    is_marked: bool = False
    """Whether stages and updates are but marks on the calls of a plain entry."""

    @property
    def is_plain(self) -> bool:
        """Whether the module has no op of the encoding, or marks on calls alone."""
        structure = self.pipeline or self.loops or self.windows or self.has_other_calls
        marks = self.stages or self.updates
        return not structure and (self.is_marked or not marks)

    @property
    def update(self) -> ConfiguredCall | None:
        """The update, or the first of several."""
        return self.updates[0] if self.updates else None

    def update_state(self, key: str) -> str:
        """Return what the updates say of their state: `on`, `off`, or nothing."""
        return self.updates[0].config.state(key) if self.updates else ""


def survey(module: Module) -> Survey:
    """Return what a module has of Graphcore's encoding.

    Raises PoplarError: E0540 for calls that cannot be read, E0542 for several pipelines or updates.
    """
    calls_by_type: dict[str, list[ConfiguredCall]] = {}
    windows: list[Instruction] = []
    has_other_calls = False
    for computation in callees_first(module, only_reachable=True):
        for call in computation.instructions:
            config = config_of(call)
            if config is not None:
                calls_by_type.setdefault(config.type, []).append(
                    ConfiguredCall(computation, call, config)
                )
            target = target_of(call)
            has_other_calls |= bool(target)
            if target in WINDOWED:
                windows.append(call)
    stages = [configured_call for kind in STAGES for configured_call in calls_by_type.get(kind, ())]
    updates = _joined(calls_by_type.get(UPDATE, []))
    places = {call.computation.name for call in (*stages, *updates)}
    return Survey(
        _only(calls_by_type.get(PIPELINE, [])),
        tuple(stages),
        tuple(updates),
        tuple(calls_by_type.get(LOOP, ())),
        tuple(windows),
        has_other_calls,
        places <= {module.entry.name},
    )


def _only(pipelines: list[ConfiguredCall]) -> ConfiguredCall | None:
    if len(pipelines) > 1:
        raise errors.SECOND(
            f"{pipelines[1].call.name!r} is a second pipeline, beside {pipelines[0].call.name!r}",
            hint="compile a module for each, or join them into one Pipeline call",
            op=pipelines[1].call,
        )
    return pipelines[0] if pipelines else None


def _joined(updates: list[ConfiguredCall]) -> list[ConfiguredCall]:
    """Return updates, which stand side by side and ask for the same; PoplarError E0542 if not."""
    for update in updates[1:]:
        if update.computation.name != updates[0].computation.name:
            why = "stands in another computation"
        elif update.config.choices != updates[0].config.choices:
            why = "asks for other places of its state"
        else:
            continue
        raise errors.SECOND(
            f"{update.call.name!r} is a second update of weights, beside {updates[0].call.name!r}, "
            f"and {why}",
            hint="call both from the body of one loop or pipeline, with the same attributes, or "
            "join them into one ResourceUpdate call",
            op=update.call,
        )
    return updates


def update_count(module: Module, updates: Sequence[ConfiguredCall]) -> int | None:
    """Return the micro-batches of updates, as their own computations say; None: they do not.

    Raises PoplarError E0541 where that is no constant, or they do not agree.
    """
    update_by_count: dict[int, ConfiguredCall] = {}
    for update in updates:
        count = _own_count(module, update)
        if count is not None:
            update_by_count.setdefault(count, update)
    if len(update_by_count) > 1:
        (first_count, first), (second_count, second) = list(update_by_count.items())[:2]
        raise disagree(first.call, first_count, second.call, second_count)
    return next(iter(update_by_count), None)


def _own_count(module: Module, update: ConfiguredCall) -> int | None:
    stated_count = update.config.counts.get("NUM_BATCHES_TO_ACCUMULATE")
    callee = module.computation[update.call.attributes.called[0]]
    for instruction in callee.instructions:
        if target_of(instruction) == COUNT:
            count = _count_of(module, update, callee, instruction)
            if count is None:
                raise errors.MICRO_BATCHES(
                    f"{instruction.name!r} counts micro-batches by a value that is known only "
                    "while running",
                    hint="make it a constant, or give --micro-batches K",
                    op=instruction,
                )
            if stated_count not in (None, count):
                raise disagree(instruction, count, update.call, stated_count or 0)
            stated_count = count
    return stated_count


def _count_of(
    module: Module, update: ConfiguredCall, callee: Computation, instruction: Instruction
) -> int | None:
    if not instruction.operands:
        return integer_of(instruction, *_NUMBERS)
    source = callee.instructions[instruction.operands[0]]
    if source.parameter_number >= 0:
        operand = update.call.operands[source.parameter_number]
        return constant_number(module, update.computation, operand)
    return constant_number(module, callee, instruction.operands[0])


def disagree(first: Instruction, count: int, second: Instruction, another: int) -> PoplarError:
    """Return the error of two counts of micro-batches."""
    return errors.MICRO_BATCHES(
        f"{first.name!r} says {count} micro-batches an update, and {second.name!r} says {another}",
        hint="print the module with one count",
        op=first,
    )


def constant_number(module: Module, computation: Computation, position: int) -> int | None:
    """Return an integer that a computation knows, through moves and calls; None: it does not."""
    for place, at in _sources(module, computation, position):
        instruction = place.instructions[at]
        if instruction.opcode == "constant" and instruction.literal is not None:
            value = literal_array(instruction.literal, instruction.shape, instruction.name)
            is_one = not isinstance(value, list) and value.size == 1
            return int(value.flat[0]) if is_one else None  # type: ignore[union-attr]
    return None


_THROUGH = frozenset({"copy", "reshape", "bitcast", "convert"})


def _sources(
    module: Module, computation: Computation, position: int
) -> Iterator[tuple[Computation, int]]:
    """Yield the values that a value is moved from."""
    callers = {
        name: (c, op)
        for c in module.computations
        for op in c.instructions
        if op.opcode == "call"
        for name in op.attributes.called
    }
    followed = 0
    while followed < module.instruction_count:
        followed += 1
        yield computation, position
        instruction = computation.instructions[position]
        if instruction.opcode in _THROUGH:
            position = instruction.operands[0]
        elif instruction.parameter_number >= 0 and computation.name in callers:
            number = instruction.parameter_number
            computation, call = callers[computation.name]
            position = call.operands[number]
        else:
            return
