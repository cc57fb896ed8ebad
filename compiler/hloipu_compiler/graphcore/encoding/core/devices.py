"""Device of an op, from `sharding={maximal device=N}`."""

import re

from hloipu_compiler.ir.graph import Instruction

_DEVICE = re.compile(r"maximal\s+device=(-?[0-9]{1,6})")
EVERY = -1
"""All devices at once: a stage of several that run side by side."""


def devices_of(instruction: Instruction) -> tuple[int, ...]:
    """Return the different devices that an op's sharding names, ascending."""
    return tuple(
        sorted({int(device) for device in _DEVICE.findall(instruction.attributes.text("sharding"))})
    )
