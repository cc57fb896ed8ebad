"""Loading programs on one device, to stay there beside each other."""

from collections.abc import Mapping
from typing import Any

from hloipu_runtime.arguments import ArgumentError, shown
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.errors import UsageError
from hloipu_runtime.session.device import Device, SharedLoad
from hloipu_runtime.session.session import Session
from hloipu_runtime.session.shared import own_arrays


def loaded_beside(
    device: Device, program: Any, names: Mapping[str, str], options: Mapping[str, Any]
) -> Session:
    """Return a session of a program that stays on a device beside others; see `Device.load`."""
    compiled = program if isinstance(program, CompiledProgram) else _inner(program)
    if compiled.program.partitions > 1:
        raise UsageError(
            "E2047",
            f"{compiled.program.name!r} has {compiled.program.partitions} partitions, each with "
            "parts of its own: it shares no arrays",
            hint="have it take turns: program.session(device=device)",
        )
    own = own_arrays(compiled.program, compiled.parameter_names, names)
    load = SharedLoad(device, compiled, own)
    session: Session = program.session(**options, device=load)
    return session


def numbers_there(load: SharedLoad) -> frozenset[int]:
    """Return the numbers of the parameters that are on the device already."""
    there = load.device.space.arrays
    return frozenset(x.number for x in load.own if x.name in there)


def _inner(program: Any) -> CompiledProgram:
    inner = getattr(program, "program", None)
    if isinstance(inner, CompiledProgram):
        return inner
    raise ArgumentError("Device.load", "program", "a compiled program", shown(program))
