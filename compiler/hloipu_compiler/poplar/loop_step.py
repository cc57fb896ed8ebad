"""A loop in which micro-batches are accumulated, written as one plain step.

What cannot be a step (values that go on and are no parameters, updates that do something with a
gradient of zero) stays a loop, written out in HLO's own: it runs all the same, on one IPU.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hloipu_compiler.hlo.literal_values import literal_array
from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.poplar.accumulators import Accumulator, Addend
from hloipu_compiler.poplar.call_config import LOOP, CallConfig
from hloipu_compiler.poplar.custom_ops import (
    ACCUMULATE,
    ACCUMULATE_REDUCE,
    MOMENTUM_REDUCE,
)
from hloipu_compiler.poplar.errors import PoplarError
from hloipu_compiler.poplar.facts import window_in
from hloipu_compiler.poplar.flat_step import Ending, FlatStep, check_size
from hloipu_compiler.poplar.flat_writing import FlatWriter
from hloipu_compiler.poplar.loop_counts import repeat_count, updates_of, while_count
from hloipu_compiler.poplar.loop_forms import loop_form
from hloipu_compiler.poplar.scales import ONE
from hloipu_compiler.poplar.stated import Stated
from hloipu_compiler.poplar.survey import Survey, update_count
from hloipu_compiler.poplar.traces import UPDATE_PHASE, Trace
from hloipu_compiler.poplar.unchanged import sources
from hloipu_compiler.poplar.values import OUTSIDE, Context, Made, Value
from hloipu_compiler.poplar.windows import accumulated_shape, averaged, reduced

_ROUNDS = 8
"""Of finding what goes from micro-batch to micro-batch: each finds what depends on the last."""
_LATE = Context(UPDATE_PHASE)


class NoStep(PoplarError):
    """Why a loop cannot be a step, and stays a loop."""

    def __init__(self, why: str) -> None:
        super().__init__("E0549", why)


@dataclass(frozen=True, slots=True)
class _Goes:
    """A value of the loop that counts its turns, and is no parameter."""

    slot: int
    """Where it is read."""


class _LoopWriter(FlatWriter):
    """Writes an entry with an accumulating loop in it; `fed`: what each micro-batch changes."""

    def __init__(self, module: Module, micro_batches: int | None, fed: frozenset[int]) -> None:
        super().__init__(module, micro_batches or 1, 0, 1)
        self.given = micro_batches
        self.said = 0
        """Micro-batches of an update as its own computation says."""
        self.fed_numbers = fed
        self.counters: list[_Goes] = []
        self.varied: set[int] = set()
        """Numbers of the values that each micro-batch changes."""
        self.is_written = False
        self.silent: list[int] = []
        """What accumulators of the older form give out: zeros but after the last micro-batch."""
        self.remembered: dict[int, tuple[int, int]] = {}
        """Accumulators with momentum -> what they were before, and the one op that may read it."""

    def called(
        self,
        x: Instruction,
        config: CallConfig | None,
        operands: list[Value],
        here: Context,
    ) -> Value:
        name = x.attributes.called[0]
        if config is None or config.type != LOOP or not self.loops.accumulates(name):
            return super().called(x, config, operands, here)
        return self._looped(x, name, operands, repeat_count(x, config), here)

    def plain(self, x: Instruction, operands: list[Value], here: Context) -> Value:
        body = x.attributes.text("body")
        if x.opcode != "while" or not self.loops.accumulates(body):
            return self._checked(x, super().plain(x, operands, here))
        turns = while_count(self.module, self.current, x)
        return self._looped(x, body, operands, turns, here)

    def _looped(
        self,
        x: Instruction,
        callee: str,
        operands: list[Value],
        turns: int,
        here: Context,
    ) -> Value:
        """Write one turn of a loop in which micro-batches are accumulated."""
        form = loop_form(x, self.module.computation[callee])
        positions = form.opened(self, x, operands, here)
        slots = self._begin(x, callee, positions, turns)
        result = self.computation(form.body, form.arguments(slots), OUTSIDE)
        return form.result(self._end(x, positions, slots, form.parts(result, slots)))

    def _begin(
        self, x: Instruction, callee: str, positions: Sequence[int], turns: int
    ) -> tuple[int, ...]:
        """Return the values that go on, where the body reads them."""
        if self.is_written:
            raise NoStep(f"{x.name!r} is a second loop that accumulates")
        self.is_written = True
        windows = window_in(self.module, self.module.computation[callee])
        self.micro_batches = self.given or windows
        self.turns = updates_of(x.name, turns, self.micro_batches)
        self.written_count = self.said
        slots = []
        for number, at in enumerate(positions):
            if self.made[at].parameter_number < 0:
                shape = self.made[at].shape
                at = self.add(f"{x.name}.{number}", "copy", shape, (at,))
            if number in self.fed_numbers:
                self.traces[at] = Trace(fed=True)
            slots.append(at)
        return tuple(slots)

    def _end(
        self, x: Instruction, positions: Sequence[int], slots: Sequence[int],
        result: Sequence[Value],
    ) -> list[Value]:  # fmt: skip
        """Return what the values are after the loop; keep which of them go on how."""
        parts = [self.settled(v, x, OUTSIDE) for v in result]
        self.inputs, self.outputs = [], []
        made: list[Value] = []
        for number, (old, slot, new) in enumerate(zip(positions, slots, parts, strict=True)):
            late = self.trace((new,)).late
            if new != slot and not late:
                self.varied.add(number)
            if new == slot:
                self._note(old, old, made)
            elif not late and old != slot and (step := self._step(new, slot)) is not None:
                self.counters.append(_Goes(slot))
                self._note(old, old, [])
                made.append(self._counted_on(old, step))
            else:
                self._note(slot if old == slot else old, new, made)
        self._check_remembered(dict(zip(slots, parts, strict=True)))
        if self.silent:
            same = sources(self.made, set(self.silent))
            for number, (slot, new) in enumerate(zip(slots, parts, strict=True)):
                late = self.trace((new,)).late and new not in self.remembered
                if late and same[slot] != same[new]:
                    raise NoStep(
                        f"value {number} of the loop {x.name!r} changes in every turn, and not "
                        "only where a sum is given out"
                    )
        return made

    def _check_remembered(self, following: Mapping[int, int]) -> None:
        """Raise where anything else reads an accumulator that each micro-batch adds to."""
        readers = dict(self.remembered.values())
        if not readers:
            return
        if any(following.get(old) != new for new, (old, _) in self.remembered.items()):
            raise NoStep("an accumulator with momentum does not go on from turn to turn")
        for at, x in enumerate(self.made):
            if any(i in readers and readers[i] != at for i in x.operands):
                raise NoStep(f"{x.name!r} reads an accumulator while it is being filled")

    def _note(self, old: int, new: int, made: list[Value]) -> None:
        self.inputs.append(old)
        self.outputs.append(new)
        made.append(new)

    def _step(self, new: int, slot: int) -> int | None:
        """Return by what a value grows each turn, if by a constant integer."""
        x = self.made[new]
        if x.opcode != "add" or slot not in x.operands:
            return None
        other = self.made[x.operands[0] if x.operands[1] == slot else x.operands[1]]
        shape = other.shape
        if other.opcode != "constant" or other.literal is None or not isinstance(shape, ArrayShape):
            return None
        if not shape.is_scalar or shape.element_type.name[0] not in "su":
            return None
        value = literal_array(other.literal, shape, other.name)
        return int(getattr(value, "item", int)())

    def _counted_on(self, old: int, step: int) -> int:
        """Write what a counter is after the loop."""
        shape = self.made[old].shape
        if not isinstance(shape, ArrayShape):
            raise TypeError(f"{self.made[old].name} is no number")
        kind = ArrayShape(shape.element_type)
        number = self.number("turns", kind, str(step * self.turns * self.micro_batches))
        return self.add("counted", "add", shape, (old, number))

    # -- accumulators of the older form ---------------------------------------------------------

    def windowed(self, x: Instruction, target: str, operands: list[Value], here: Context) -> Value:
        if not self.is_written:
            return super().windowed(x, target, operands, here)
        values = [self.settled(v, x, here) for v in operands]
        if target in (ACCUMULATE, ACCUMULATE_REDUCE):
            made: list[Value] = [self._given_out(x, at, target) for at in values]
            return made[0] if len(made) == 1 else Made(tuple(made))
        half = len(values) // 2
        momentum = values[-1]
        sums, given = [], []
        for old, value in zip(values[:half], values[half : 2 * half], strict=True):
            total = self._with_momentum(x, old, self._total_of(x, value), momentum, target)
            sums.append(total)
            given.append(self._silent(x, total))
        return Made((*sums, *given))

    def _total_of(self, x: Instruction, value: int) -> int:
        shape = accumulated_shape(self, x, value)
        accumulator = Accumulator(x.name, shape, [Addend(x.name, value, value, ONE, ONE)], True)
        self.accumulators.append(accumulator)
        total = self.total(x, accumulator)
        self.traces[total] = Trace(late=True)
        return total

    def _given_out(self, x: Instruction, value: int, target: str) -> int:
        total = self._total_of(x, value)
        shape = self.made[total].shape
        if target == ACCUMULATE_REDUCE and isinstance(shape, ArrayShape):
            reducer = self.loops.reducer(shape.element_type)
            total = reduced(self, x.name, total, shape, reducer, _LATE)
            self.traces[total] = Trace(late=True)
        return self._silent(x, total)

    def _silent(self, x: Instruction, total: int) -> int:
        at = self.add(x.name, "copy", self.made[total].shape, (total,), _LATE)
        self.traces[at] = Trace(late=True)
        self.silent.append(at)
        return at

    def _with_momentum(
        self, x: Instruction, old: int, total: int, momentum: int, target: str
    ) -> int:
        shape = accumulated_shape(self, x, old, total)
        before = len(self.made)
        factor = self.spread(f"{x.name}.factor", shape, self.one_number(x, momentum), _LATE)
        less = self.add(f"{x.name}.less", "multiply", shape, (old, factor), _LATE)
        found = self.add(f"{x.name}.sum", "add", shape, (less, total), _LATE)
        if target == MOMENTUM_REDUCE:
            reducer = self.loops.reducer(shape.element_type)
            found = averaged(self, x.name, found, shape, reducer, _LATE)
        for at in range(before, len(self.made)):
            self.traces[at] = Trace(late=True)
        self.remembered[found] = (old, less)
        return found

    def placed(self, operands: Sequence[int], here: Context) -> Context:
        if here.phase:
            return here
        return _LATE if self.trace(operands).late else here

    def _checked(self, x: Instruction, found: Value) -> Value:
        """Raise where an op reads both what is accumulated and what micro-batches change."""
        if self.silent and isinstance(found, int):
            traces = [self.trace((i,)) for i in self.made[found].operands]
            if any(t.late for t in traces) and any(t.fed and not t.late for t in traces):
                raise NoStep(
                    f"{x.name!r} reads an accumulated gradient, and what each micro-batch changes"
                )
        return found


def loop_step(module: Module, found: Survey, micro_batches: int | None) -> FlatStep:
    """Return the step of a module that accumulates in a loop.

    Raises NoStep where it is none, and PoplarError E0541, E0545 to E0547 as such.
    """
    check_size(module)
    fed: frozenset[int] = frozenset()
    for _ in range(_ROUNDS):
        writer = _LoopWriter(module, micro_batches, fed)
        if found.update is not None:
            writer.said = update_count(module, found.update) or 0
        root = writer.entry(module.entry)
        if not writer.is_written:
            name = found.update.call.name if found.update is not None else module.name
            raise PoplarError(
                "E0546",
                f"the update {name!r} is in no loop and no pipeline",
                hint="call it in the body of a RepeatLoop call or of a counted while",
            )
        varied = fed | writer.varied
        if varied == fed:
            return _ended(module, found, writer, root)
        fed = varied
    raise NoStep(
        f"what goes from micro-batch to micro-batch in {module.name!r} is too long a chain"
    )


def _ended(module: Module, found: Survey, writer: _LoopWriter, root: Value) -> FlatStep:
    writer.trains = True
    ending = Ending(module, writer, root, writer.turns)
    ending.read = [goes.slot for goes in writer.counters]
    update = found.update.config if found.update is not None else None
    stated = Stated(
        writer.micro_batches,
        offload=update.state("OFFLOAD_WEIGHT_UPDATE_VARIABLES") if update is not None else "",
        shard_optimizer=update is not None
        and update.state("PARTITION_OFFLOADED_WEIGHT_UPDATE_VARIABLES") == "on",
        loop=writer.turns,
    )
    return ending.step(stated)
