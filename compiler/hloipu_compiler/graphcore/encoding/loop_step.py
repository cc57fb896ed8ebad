"""Writes a loop that accumulates micro-batches, or takes batches of a queue, as one plain step.

What cannot be a step (carried values that are no parameters, updates that do something with a
gradient of zero) stays a loop, written out in HLO's own: it runs all the same, on one IPU.

In a loop with ops on several devices each micro-batch goes from device to device, there and back
again: that is the sequential schedule. Devices are stages in the order in which the forward pass
comes to them; where it comes back to one, ops stay on their devices, and micro-batches have no
stages.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hloipu_compiler.graphcore.encoding.core import errors
from hloipu_compiler.graphcore.encoding.core.call_config import LOOP
from hloipu_compiler.graphcore.encoding.core.devices import devices_of
from hloipu_compiler.graphcore.encoding.core.errors import PoplarError
from hloipu_compiler.graphcore.encoding.core.ops import Op
from hloipu_compiler.graphcore.encoding.core.sheet import marked
from hloipu_compiler.graphcore.encoding.core.stated import Stated
from hloipu_compiler.graphcore.encoding.core.survey import Survey, update_count
from hloipu_compiler.graphcore.encoding.core.traces import FORWARD_PHASE, Trace
from hloipu_compiler.graphcore.encoding.core.values import OUTSIDE, Context, Token, Value
from hloipu_compiler.graphcore.encoding.flat_step import Ending, FlatStep, check_size
from hloipu_compiler.graphcore.encoding.loops.loop_forms import (
    fed_body,
    loop_form,
    repeat_count,
    updates_of,
    while_count,
    window_in,
)
from hloipu_compiler.graphcore.encoding.window_writing import NoStep, WindowWriter
from hloipu_compiler.hlo.attributes.frontend_attributes import (
    frontend_attributes_text,
    read_frontend_attributes,
)
from hloipu_compiler.hlo.literals.values import literal_array
from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module, with_computation
from hloipu_compiler.ir.shapes import ArrayShape, array_shape

_ROUNDS = 8
"""Of finding what goes from micro-batch to micro-batch: each finds what depends on the last."""


@dataclass(frozen=True, slots=True)
class _Goes:
    """A value of the loop that counts its iterations, and is no parameter."""

    slot: int
    """Where it is read."""


class _LoopWriter(WindowWriter):
    """Writes an entry with a loop of steps in it; `fed`: what each micro-batch changes.

    `body`: of a loop without accumulators, each iteration of which is a step.
    """

    def __init__(
        self, module: Module, micro_batches: int | None, fed: frozenset[int], body: str = ""
    ) -> None:
        super().__init__(module, micro_batches or 1)
        self.body = body
        self.requested_count = micro_batches
        self.stated_count = 0
        """Micro-batches of an update as its own computation says."""
        self.fed_numbers = fed
        self.counters: list[_Goes] = []
        self.varied: set[int] = set()
        """Numbers of the values that each micro-batch changes."""

    def called(self, op: Op) -> Value:
        name = op.instruction.attributes.called[0]
        if op.kind != LOOP or not self._is_of_steps(name):
            return super().called(op)
        return self._looped(op, name, repeat_count(op.instruction, op.config))

    def plain(self, op: Op) -> Value:
        body = op.instruction.attributes.text("body")
        if op.instruction.opcode != "while" or not self._is_of_steps(body):
            return super().plain(op)
        return self._looped(op, body, while_count(self.module, self.current, op.instruction))

    def _is_of_steps(self, body: str) -> bool:
        return body == self.body or self.loops.accumulates(body)

    def _looped(self, op: Op, callee: str, iterations: int) -> Value:
        form = loop_form(op.instruction, self.module.computation[callee])
        initial = form.values(self, op)
        arrays = [n for n, value in enumerate(initial) if not isinstance(value, Token)]
        positions = [self.settled(initial[n], op.instruction, op.context) for n in arrays]
        slots = self._begin(op.instruction, callee, positions, iterations)
        context = Context(device=self.inside(op).device)
        inside: list[Value] = [Token() for _ in initial]  # queues need no order among themselves
        for n, slot in zip(arrays, slots, strict=True):
            inside[n] = slot
        result = form.parts(self.computation(form.body, form.arguments(inside), context), inside)
        after = self._end(op.instruction, positions, slots, [result[n] for n in arrays])
        for n, value in zip(arrays, after, strict=True):
            inside[n] = value
        return form.result(inside)

    def taken_once(self, op: Op, number: int, value: int) -> int:
        if self.micro_batches > 1:
            raise NoStep(
                f"operand {number} of the update {op.name!r} is what the last micro-batch makes"
            )
        return super().taken_once(op, number, value)

    def _begin(
        self, instruction: Instruction, callee: str, positions: Sequence[int], iterations: int
    ) -> tuple[int, ...]:
        """Return the carried values where the body reads them."""
        if self.is_written:
            raise NoStep(f"{instruction.name!r} is a second loop that accumulates")
        self.is_written = True
        windows = window_in(self.module, self.module.computation[callee])
        self.micro_batches = self.requested_count or windows
        self.iterations = updates_of(instruction.name, iterations, self.micro_batches)
        self.written_count = self.stated_count
        slots = []
        for number, at in enumerate(positions):
            if self.made[at].parameter_number < 0:
                shape = self.made[at].shape
                at = self.add(f"{instruction.name}.{number}", "copy", shape, (at,))
            if number in self.fed_numbers:
                self.traces[at] = Trace(fed=True)
            slots.append(at)
        return tuple(slots)

    def _end(
        self, instruction: Instruction, positions: Sequence[int], slots: Sequence[int],
        result: Sequence[Value],
    ) -> list[Value]:  # fmt: skip
        """Return what the values are after the loop; keep which of them go on how."""
        parts = [self.settled(v, instruction, OUTSIDE) for v in result]
        self.inputs, self.outputs = [], []
        values: list[Value] = []
        for number, (old, slot, new) in enumerate(zip(positions, slots, parts, strict=True)):
            if self._unmoved(new, slot) == slot:
                new = slot
            late = self.trace((new,)).late
            if new != slot and not late:
                self.varied.add(number)
            if new == slot:
                self._note(old, old, values)
            elif not late and old != slot and (step := self._step(new, slot)) is not None:
                self.counters.append(_Goes(slot))
                self._note(old, old, [])
                values.append(self._counted_on(old, step))
            else:
                self._note(slot if old == slot else old, new, values)
        self.check_going_on(instruction, slots, parts)
        return values

    def _unmoved(self, at: int, slot: int) -> int:
        """Return what a value is a copy of, in its own shape and as late as in a slot."""
        while at != slot and (instruction := self.made[at]).opcode in (
            "copy",
            "reshape",
            "bitcast",
        ):
            if self.made[instruction.operands[0]].shape != instruction.shape:
                break
            at = instruction.operands[0]
        return at

    def _note(self, old: int, new: int, values: list[Value]) -> None:
        self.inputs.append(old)
        self.outputs.append(new)
        values.append(new)

    def _step(self, new: int, slot: int) -> int | None:
        """Return by what a value grows each iteration, if by a constant integer."""
        instruction = self.made[self._unmoved(new, slot)]
        if instruction.opcode != "add" or slot not in instruction.operands:
            return None
        increment = self.made[
            instruction.operands[0] if instruction.operands[1] == slot else instruction.operands[1]
        ]
        shape = increment.shape
        if (
            increment.opcode != "constant"
            or increment.literal is None
            or not isinstance(shape, ArrayShape)
        ):
            return None
        if not shape.is_scalar or shape.element_type.name[0] not in "su":
            return None
        value = literal_array(increment.literal, shape, increment.name)
        return int(getattr(value, "item", int)())

    def _counted_on(self, old: int, step: int) -> int:
        shape = array_shape(self.made[old].shape)
        kind = ArrayShape(shape.element_type)
        number = self.number("turns", kind, str(step * self.iterations * self.micro_batches))
        return self.add("counted", "add", shape, (old, number))


def loop_step(module: Module, survey: Survey, micro_batches: int | None) -> FlatStep:
    """Return the step of a module that accumulates in a loop.

    Raises NoStep where it is none, and PoplarError E0541, E0545 to E0547 as such.
    """
    check_size(module)
    fed: frozenset[int] = frozenset()
    for _ in range(_ROUNDS):
        writer = _LoopWriter(module, micro_batches, fed)
        writer.stated_count = update_count(module, survey.updates) or 0
        root = writer.entry(module.entry)
        if not writer.is_written:
            name = survey.update.call.name if survey.update is not None else module.name
            raise errors.LOOP(
                f"the update {name!r} is in no loop and no pipeline",
                hint="call it in the body of a RepeatLoop call or of a counted while",
                op=survey.update.call if survey.update is not None else None,
            )
        varied = fed | writer.varied
        if varied == fed:
            return _ended(module, survey, writer, root)
        fed = varied
    raise NoStep(
        f"what goes from micro-batch to micro-batch in {module.name!r} is too long a chain"
    )


def fed_step(module: Module, micro_batches: int) -> FlatStep | None:
    """Return the step of a module that reads queues in one loop of its entry; None: any other.

    An iteration is a micro-batch. A loop that is none of steps stays, and it is said why. Raises
    PoplarError E0546 where micro-batches do not divide the iterations.
    """
    body = fed_body(module)
    if not body:
        return None
    check_size(module)
    writer = _LoopWriter(module, micro_batches, frozenset(), body)
    try:
        root = writer.entry(module.entry)
        ending = Ending(module, writer, root, writer.iterations, is_encoded=False)
        ending.read = [goes.slot for goes in writer.counters]
        return ending.step(Stated(micro_batches, loop=writer.iterations, is_encoded=False))
    except PoplarError as error:
        if error.code == "E0546" and writer.is_written:
            raise
        return FlatStep(module, Stated(why=error.message, is_encoded=False))


def _ended(module: Module, survey: Survey, writer: _LoopWriter, root: Value) -> FlatStep:
    writer.trains = True
    ending = Ending(module, writer, root, writer.iterations)
    ending.read = [goes.slot for goes in writer.counters]
    stated = Stated(
        writer.micro_batches,
        offload=survey.update_state("OFFLOAD_WEIGHT_UPDATE_VARIABLES"),
        shard_optimizer=survey.update_state("PARTITION_OFFLOADED_WEIGHT_UPDATE_VARIABLES") == "on",
        loop=writer.iterations,
    )
    return in_stages(ending.step(stated))


_SEQUENTIAL = "sequential"
_KEY = "frontend_attributes"


def in_stages(step: FlatStep) -> FlatStep:
    """Return a step of several micro-batches with devices made stages.

    The same where it has one micro-batch, or no order of devices can be stages.
    """
    module, entry = step.module, step.module.entry
    if step.stated.micro_batches == 1:
        return step
    devices_by_op = [devices_of(instruction) for instruction in entry.instructions]
    used = {device for devices in devices_by_op for device in devices}
    stages = _stages(entry, devices_by_op) if len(used) > 1 else {}
    if stages is None:
        return step
    instructions = tuple(
        op._replace(attributes=_staged(op, devices, stages))
        for op, devices in zip(entry.instructions, devices_by_op, strict=True)
    )
    entry = replace(entry, instructions=instructions)
    stated = step.stated
    if stages:
        stated = replace(
            stated,
            stages=len(stages),
            schedule=_SEQUENTIAL,
            device_map=tuple((device,) for device in stages),
        )
    return FlatStep(_with_entry(module, entry, stated), stated)


def _stages(entry: Computation, devices_by_op: list[tuple[int, ...]]) -> dict[int, int] | None:
    """Return the stage of each device; None where the forward pass comes back to one."""
    stage_by_device: dict[int, int] = {}
    reached = [-1] * len(entry.instructions)
    """The last stage of what a value is made of."""
    for at, (instruction, devices) in enumerate(
        zip(entry.instructions, devices_by_op, strict=True)
    ):
        before = max((reached[i] for i in instruction.operands), default=-1)
        if len(devices) == 1 and (
            f'ipu_phase="{FORWARD_PHASE}"' in instruction.attributes.text("frontend_attributes")
        ):
            stage = stage_by_device.setdefault(devices[0], len(stage_by_device))
            if stage < before:
                return None
            before = stage
        reached[at] = before
    for devices in devices_by_op:
        for device in devices:
            stage_by_device.setdefault(device, len(stage_by_device))
    return stage_by_device


def _staged(
    instruction: Instruction, devices: tuple[int, ...], stages: Mapping[int, int]
) -> Attributes:
    is_placed = len(devices) == 1 and devices[0] in stages
    return marked(
        instruction.attributes, {"ipu_stage": str(stages[devices[0]])} if is_placed else {}
    )


def _with_entry(module: Module, entry: Computation, stated: Stated) -> Module:
    frontend_attributes = read_frontend_attributes(module.attributes.text(_KEY))
    words = frontend_attributes_text(frontend_attributes | stated.attributes())
    header = Attributes({**module.attributes, _KEY: words}, module.attributes.called)
    return replace(with_computation(module, entry), attributes=header)
