"""Turns a loop's step with ops on several devices into stages.

Each micro-batch goes from device to device, there and back again, as sharded loops do: that is the
sequential schedule. Devices are stages in the order in which the forward pass comes to them; where
it comes back to one, ops stay on their devices, and micro-batches have no stages.
"""

from collections.abc import Mapping
from dataclasses import replace

from hloipu_compiler.graphcore.encoding.core.devices import devices_of
from hloipu_compiler.graphcore.encoding.core.sheet import marked
from hloipu_compiler.graphcore.encoding.core.stated import Stated
from hloipu_compiler.graphcore.encoding.core.traces import FORWARD_PHASE
from hloipu_compiler.graphcore.encoding.flat_step import FlatStep
from hloipu_compiler.hlo.attributes.frontend_attributes import (
    frontend_attributes_text,
    read_frontend_attributes,
)
from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module, with_computation

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
