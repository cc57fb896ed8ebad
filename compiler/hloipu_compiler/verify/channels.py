"""Send and recv: the done repeats the channel; host transfers on one channel are the same.

Source: openxla/xla `xla/service/hlo_verifier.cc` (VerifyChannels).
"""

from hloipu_compiler.errors import Note
from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.verify.asynchronous import async_computations
from hloipu_compiler.verify.places import attribute_span, opcode_span
from hloipu_compiler.verify.survey import Place, Report, Survey

_DONE = {"send": "send-done", "recv": "recv-done"}


def check_channels(survey: Survey, report: Report) -> None:
    """Report dones whose channel differs from their start's, and unlike host transfers."""
    wrapped = async_computations(survey)
    reference: dict[int, Place] = {}
    for place in survey.places("send", "recv"):
        channel = place.instruction.attributes.get("channel_id")
        if not isinstance(channel, int):
            continue
        if place.instruction.attributes.flag("is_host_transfer"):
            first = reference.setdefault(channel, place)
            if first is not place and not _same_transfer(first, place):
                _report_unlike(survey.module, first, place, channel, report)
        if place.position != place.computation.root or place.computation.name not in wrapped:
            _check_done(survey.module, place, report)


def _check_done(module: Module, place: Place, report: Report) -> None:
    computation, start = place.computation, place.instruction
    users = computation.users[place.position]
    if len(users) != 1:
        return  # `verify.asynchronous` reports it
    done = computation.instructions[users[0]]
    if done.opcode != _DONE[start.opcode]:
        return
    for key in ("channel_id", "is_host_transfer"):
        if _value(start, key) != _value(done, key):
            at = attribute_span(module, start, key)
            report.add(
                "E0321",
                f"{done.name} has {_stated(done, key)}, {start.name} has {_stated(start, key)}",
                attribute_span(module, done, key),
                expected=f"the same {key} on both",
                notes=[Note(at, "the start")] if at else (),
            )


def _value(instruction: Instruction, key: str) -> object:
    return instruction.attributes.get(key, False if key == "is_host_transfer" else None)


def _stated(instruction: Instruction, key: str) -> str:
    value = _value(instruction, key)
    return f"no {key}" if value is None else f"{key}={str(value).lower()}"


def _same_transfer(a: Place, b: Place) -> bool:
    return (
        a.instruction.opcode == b.instruction.opcode
        and a.instruction.shape == b.instruction.shape
        and a.operand_shapes == b.operand_shapes
    )


def _report_unlike(
    module: Module, first: Place, place: Place, channel: int, report: Report
) -> None:
    at = opcode_span(module, first.instruction)
    report.add(
        "E0322",
        f"{place.instruction.name} is another host transfer on channel {channel} than "
        f"{first.instruction.name}",
        attribute_span(module, place.instruction, "channel_id"),
        expected="host transfers of one channel with the same opcode and shapes",
        notes=[Note(at, "the other one")] if at else (),
    )
