"""Check the streams of a file's ports and queues."""

from collections.abc import Iterator

from hloipu_runtime.program.program import Port, Program
from hloipu_runtime.program_io.file.refusal import Refuse
from hloipu_runtime.program_io.file.span_checks import check_tensor


def streams(program: Program, *, to_device: bool) -> Iterator[Port]:
    """Yield the ports of all streams of one direction."""
    yield from program.parameters if to_device else program.results
    for queue in program.queues:
        if queue.to_device == to_device:
            yield from queue.streams


def check_ports(program: Program, refuse: Refuse) -> None:
    """Refuse streams of one name, and results that take over what they do not fit."""
    for to_device, kind in ((True, "parameter"), (False, "result")):
        ports = list(streams(program, to_device=to_device))
        if len({port.stream for port in ports}) != len(ports):
            refuse(f"the {kind}s", "two have one stream")
        for number, port in enumerate(ports):
            place = f"{kind} {number}"
            check_tensor(port.element_type, port.shape, place, refuse)
            if port.alias != -1:
                _check_alias(port, program, kind, place, refuse)


def _check_alias(port: Port, program: Program, kind: str, place: str, refuse: Refuse) -> None:
    if kind == "parameter" or not 0 <= port.alias < len(program.parameters):
        refuse(place, f"there is no parameter {port.alias} to take over")
    source = program.parameters[port.alias]
    if (source.element_type, source.shape) != (port.element_type, port.shape):
        refuse(place, f"it differs from parameter {port.alias} in type or shape")
