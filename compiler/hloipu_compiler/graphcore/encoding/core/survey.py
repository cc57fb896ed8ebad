"""Finds a module's pipeline, loop and update, and refuses what cannot be read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hloipu_compiler.analysis.call_graph import callees_first
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


class Found(NamedTuple):
    """A call with the computation that it stands in."""

    computation: Computation
    call: Instruction
    config: CallConfig


@dataclass(frozen=True, slots=True)
class Survey:
    """What a module has of Graphcore's encoding."""

    pipeline: Found | None = None
    stages: tuple[Found, ...] = ()
    """Forward, backward and recomputing ones, as they stand."""
    updates: tuple[Found, ...] = ()
    """Of one pipeline or loop, done one after the other."""
    loops: tuple[Found, ...] = ()
    """Calls that repeat what they run."""
    windows: tuple[Instruction, ...] = ()
    """Accumulators of the older form, which need no update of their own."""
    others: bool = False
    """Whether there are custom calls of the encoding's besides."""
    is_marked: bool = False
    """Whether stages and updates are but marks on the calls of a plain entry."""

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing of it, or marks on calls alone."""
        structure = self.pipeline or self.loops or self.windows or self.others
        marks = self.stages or self.updates
        return not structure and (self.is_marked or not marks)

    @property
    def update(self) -> Found | None:
        """The update, or the first of several."""
        return self.updates[0] if self.updates else None

    def update_state(self, key: str) -> str:
        """Return what the updates say of their state: `on`, `off`, or nothing."""
        return self.updates[0].config.state(key) if self.updates else ""


def survey(module: Module) -> Survey:
    """Return what a module has of Graphcore's encoding.

    Raises PoplarError: E0540 for calls that cannot be read, E0542 for several pipelines or updates.
    """
    found: dict[str, list[Found]] = {}
    windows: list[Instruction] = []
    others = False
    for computation in callees_first(module, only_reachable=True):
        for x in computation.instructions:
            config = config_of(x)
            if config is not None:
                found.setdefault(config.type, []).append(Found(computation, x, config))
            target = target_of(x)
            others |= bool(target)
            if target in WINDOWED:
                windows.append(x)
    stages = [each for kind in STAGES for each in found.get(kind, ())]
    updates = _joined(found.get(UPDATE, []))
    places = {x.computation.name for x in (*stages, *updates)}
    return Survey(
        _only(found.get(PIPELINE, [])),
        tuple(stages),
        tuple(updates),
        tuple(found.get(LOOP, ())),
        tuple(windows),
        others,
        places <= {module.entry.name},
    )


def _only(found: list[Found]) -> Found | None:
    if len(found) > 1:
        raise PoplarError(
            "E0542",
            f"{found[1].call.name!r} is a second pipeline, beside {found[0].call.name!r}",
            hint="compile a module for each, or join them into one Pipeline call",
            op=found[1].call,
        )
    return found[0] if found else None


def _joined(found: list[Found]) -> list[Found]:
    """Return updates, which stand side by side and ask for the same; PoplarError E0542 if not."""
    for other in found[1:]:
        if other.computation.name != found[0].computation.name:
            why = "stands in another computation"
        elif other.config.choices != found[0].config.choices:
            why = "asks for other places of its state"
        else:
            continue
        raise PoplarError(
            "E0542",
            f"{other.call.name!r} is a second update of weights, beside {found[0].call.name!r}, "
            f"and {why}",
            hint="call both from the body of one loop or pipeline, with the same attributes, or "
            "join them into one ResourceUpdate call",
            op=other.call,
        )
    return found


def update_count(module: Module, updates: Sequence[Found]) -> int | None:
    """Return the micro-batches of updates, as their own computations say; None: they do not.

    Raises PoplarError E0541 where that is no constant, or they do not agree.
    """
    said: dict[int, Found] = {}
    for each in updates:
        count = _own_count(module, each)
        if count is not None:
            said.setdefault(count, each)
    if len(said) > 1:
        (one, first), (other, second) = list(said.items())[:2]
        raise disagree(first.call, one, second.call, other)
    return next(iter(said), None)


def _own_count(module: Module, update: Found) -> int | None:
    said = update.config.counts.get("NUM_BATCHES_TO_ACCUMULATE")
    callee = module.computation[update.call.attributes.called[0]]
    for x in callee.instructions:
        if target_of(x) == COUNT:
            found = _count_of(module, update, callee, x)
            if found is None:
                raise PoplarError(
                    "E0541",
                    f"{x.name!r} counts micro-batches by a value that is known only while running",
                    hint="make it a constant, or give --micro-batches K",
                    op=x,
                )
            if said not in (None, found):
                raise disagree(x, found, update.call, said or 0)
            said = found
    return said


def _count_of(module: Module, update: Found, callee: Computation, x: Instruction) -> int | None:
    if not x.operands:
        return integer_of(x, *_NUMBERS)
    source = callee.instructions[x.operands[0]]
    if source.parameter_number >= 0:
        operand = update.call.operands[source.parameter_number]
        return constant_number(module, update.computation, operand)
    return constant_number(module, callee, x.operands[0])


def disagree(one: Instruction, count: int, other: Instruction, another: int) -> PoplarError:
    """Return the error of two counts of micro-batches."""
    return PoplarError(
        "E0541",
        f"{one.name!r} says {count} micro-batches an update, and {other.name!r} says {another}",
        hint="print the module with one count",
        op=one,
    )


def constant_number(module: Module, computation: Computation, position: int) -> int | None:
    """Return an integer that a computation knows, through moves and calls; None: it does not."""
    for place, at in _sources(module, computation, position):
        x = place.instructions[at]
        if x.opcode == "constant" and x.literal is not None:
            value = literal_array(x.literal, x.shape, x.name)
            is_one = not isinstance(value, list) and value.size == 1
            return int(value.flat[0]) if is_one else None  # type: ignore[union-attr]
    return None


_THROUGH = frozenset({"copy", "reshape", "bitcast", "convert"})


def _sources(
    module: Module, computation: Computation, position: int
) -> Iterator[tuple[Computation, int]]:
    """Yield what a value is moved from, as long as it is only moved."""
    callers = {
        name: (c, x)
        for c in module.computations
        for x in c.instructions
        if x.opcode == "call"
        for name in x.attributes.called
    }
    seen = 0
    while seen < module.instruction_count:
        seen += 1
        yield computation, position
        x = computation.instructions[position]
        if x.opcode in _THROUGH:
            position = x.operands[0]
        elif x.parameter_number >= 0 and computation.name in callers:
            number = x.parameter_number
            computation, call = callers[computation.name]
            position = call.operands[number]
        else:
            return
