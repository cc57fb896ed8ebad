"""Order beside data: control predecessors, and starts, updates and dones as chains.

Source: openxla/xla `xla/service/hlo_verifier.cc` (VerifyAsynchronousInstructionPairs,
CheckAsyncOp*). Since July 2026 an update may bind further operands, hence shape *prefixes*.
Control predecessors are of the same computation, free of cycles, in the order of a schedule.
"""

from hloipu_compiler.errors import Note
from hloipu_compiler.ir.graph import Computation, Instruction, Module, control_predecessors
from hloipu_compiler.verify.places import attribute_span, name_span, opcode_span, operand_span
from hloipu_compiler.verify.survey import Place, Report, Survey, frontend_value

USERS = {
    "async-start": ("async-update", "async-done"),
    "async-update": ("async-update", "async-done"),
    "all-reduce-start": ("all-reduce-done",),
    "all-gather-start": ("all-gather-done",),
    "collective-permute-start": ("collective-permute-done",),
    "copy-start": ("copy-done",),
    "send": ("send-done", "tuple"),
    "recv": ("recv-done", "tuple"),
}
"""For each operation in flight, what its single user may be."""

OPERANDS = {
    "async-update": ("async-start", "async-update"),
    "async-done": ("async-start", "async-update"),
    "all-reduce-done": ("all-reduce-start",),
    "all-gather-done": ("all-gather-start",),
    "collective-permute-done": ("collective-permute-start",),
    "copy-done": ("copy-start",),
    "send-done": ("send", "get-tuple-element"),
    "recv-done": ("recv", "get-tuple-element"),
}
"""For each end of a chain, what its first operand may be."""

_TRANSFER_PARTS = frozenset({"send", "recv", "bitcast", "parameter", "tuple"})
_BARRIER_PARTS = frozenset({"parameter", "get-tuple-element"})


def check_asynchronous(survey: Survey, report: Report) -> None:
    """Report starts and dones that are not one chain, and async computations that may not be."""
    module = survey.module
    wrapped = async_computations(survey)
    for opcode, users in USERS.items():
        for place in survey.places(opcode):
            if opcode in ("send", "recv") and (
                place.position == place.computation.root and place.computation.name in wrapped
            ):
                continue
            _check_user(module, place, users, report)
    for opcode, operands in OPERANDS.items():
        for place in survey.places(opcode):
            _check_operand(module, place, operands, report)
    _check_computations(survey, report)


def async_computations(survey: Survey) -> frozenset[str]:
    """Return the names of the computations that an async-start wraps."""
    return frozenset(
        name
        for place in survey.places("async-start")
        for name in place.instruction.attributes.called
    )


def _check_user(module: Module, place: Place, allowed: tuple[str, ...], report: Report) -> None:
    computation, instruction = place.computation, place.instruction
    users = [
        computation.instructions[i]
        for i in computation.users[place.position]
        if not _is_control_only(computation.instructions[i])
    ]
    wanted = " or ".join(allowed)
    if len(users) != 1:
        count = len(users) or "no"
        report.add(
            "E0320",
            f"{instruction.name} has {count} users",
            name_span(module, instruction),
            expected=f"exactly one user, {wanted}",
            notes=_user_notes(module, users),
        )
    elif users[0].opcode not in allowed:
        report.add(
            "E0320",
            f"{users[0].name} uses {instruction.name}, which is still in flight",
            opcode_span(module, users[0]),
            expected=f"{wanted} as the only user",
        )


def _user_notes(module: Module, users: list[Instruction]) -> list[Note]:
    spans = [opcode_span(module, user) for user in users[:3]]
    return [Note(span, "a user") for span in spans if span]


def _is_control_only(instruction: Instruction) -> bool:
    if instruction.opcode != "custom-call":
        return False
    return instruction.attributes.text("custom_call_target").strip("\"'") == "control_dep"


def _check_operand(module: Module, place: Place, allowed: tuple[str, ...], report: Report) -> None:
    instruction = place.instruction
    wanted = " or ".join(allowed)
    operands = place.operand_instructions
    if not operands or (len(operands) != 1 and instruction.opcode != "async-update"):
        report.add(
            "E0320",
            f"{instruction.name} has {len(operands)} operands",
            opcode_span(module, instruction),
            expected=f"one operand, {wanted}",
        )
    elif operands[0].opcode not in allowed:
        report.add(
            "E0320",
            f"{instruction.name} ends {operands[0].name}, which is {operands[0].opcode}",
            operand_span(module, instruction, 0),
            expected=wanted,
        )
    if instruction.opcode == "async-update":
        _check_flight(module, place, operands, report)


def _check_flight(
    module: Module, place: Place, operands: tuple[Instruction, ...], report: Report
) -> None:
    for number, operand in enumerate(operands[1:], 1):
        if operand.opcode in ("async-start", "async-update"):
            report.add(
                "E0320",
                f"{operand.name}, which is in flight, is operand {number} of "
                f"{place.instruction.name}",
                operand_span(module, place.instruction, number),
                expected="an operation in flight as the first operand only",
            )


def _check_computations(survey: Survey, report: Report) -> None:
    module = survey.module
    owner: dict[str, Place] = {}
    for place in survey.places("async-start"):
        instruction = place.instruction
        for name in instruction.attributes.called:
            computation = module.computation.get(name)
            if computation is None:
                continue  # `verify.calls` reports it
            first = owner.setdefault(name, place)
            if first is not place:
                before = opcode_span(module, first.instruction)
                report.add(
                    "E0323",
                    f"{name} is started by {first.instruction.name} and by {instruction.name}",
                    attribute_span(module, instruction, "calls"),
                    expected="a computation of its own for each async-start",
                    notes=[Note(before, "the other start")] if before else (),
                )
                continue
            if not _may_be_wrapped(place, computation):
                report.add(
                    "E0323",
                    f"{name} holds more than parameters and one operation",
                    attribute_span(module, instruction, "calls"),
                    expected="one operation in the computation of an async-start",
                )


def _may_be_wrapped(place: Place, computation: Computation) -> bool:
    """Whether XLA lets an async-start wrap a computation; other threads may run anything."""
    if computation.execution_thread != "main":
        return True
    root = computation.root
    instructions = computation.instructions
    if all(instruction.opcode in _TRANSFER_PARTS for instruction in instructions):
        return True
    if all(op.opcode in _BARRIER_PARTS or i == root for i, op in enumerate(instructions)):
        return True  # includes parameters and one operation
    return frontend_value(place.instruction, "_collectives_group") is not None


_KEY = "control-predecessors"


def check_control(survey: Survey, report: Report) -> None:
    """Report control predecessors that are unknown, late in a schedule, or on a cycle."""
    module = survey.module
    scheduled = module.attributes.flag("is_scheduled")
    late: dict[int, list[Place]] = {}
    for place in survey.controlled:
        position = place.computation.position
        for name in control_predecessors(place.instruction):
            before = position.get(name)
            if before is None:
                report.add(
                    "E0311",
                    f"{place.instruction.name} waits for {name}, which is not in "
                    f"{place.computation.name}",
                    attribute_span(module, place.instruction, _KEY),
                    expected="names of instructions of the same computation",
                )
            elif before >= place.position:
                if scheduled and before != place.position:
                    report.add(
                        "E0331",
                        f"{place.instruction.name} is scheduled before {name}, which it waits for",
                        attribute_span(module, place.instruction, _KEY),
                        expected="predecessors that stand earlier, since is_scheduled=true",
                    )
                else:
                    late.setdefault(id(place.computation), []).append(place)
    for places in late.values():
        _check_acyclic(module, places, report)


def _check_acyclic(module: Module, places: list[Place], report: Report) -> None:
    """Report the places whose backward control edge closes a cycle.

    Data edges only go forward, so a cycle exists exactly when Kahn's algorithm leaves something.
    """
    computation = places[0].computation
    left = _never_ready(computation)
    for place in places:
        if left[place.position]:
            report.add(
                "E0312",
                f"{place.instruction.name} waits for an instruction that waits for it",
                attribute_span(module, place.instruction, _KEY),
                expected="control and data dependencies without a cycle",
            )
            return


def _never_ready(computation: Computation) -> bytearray:
    instructions = computation.instructions
    waiting = [0] * len(instructions)
    successors: dict[int, list[int]] = {}
    for at, instruction in enumerate(instructions):
        waiting[at] = len(instruction.operands)
        for operand in instruction.operands:
            successors.setdefault(operand, []).append(at)
        if _KEY in instruction.attributes:
            for name in control_predecessors(instruction):
                before = computation.position.get(name)
                if before is not None:
                    waiting[at] += 1
                    successors.setdefault(before, []).append(at)
    ready = [at for at, count in enumerate(waiting) if count == 0]
    left = bytearray(b"\1") * len(instructions)
    while ready:
        at = ready.pop()
        left[at] = 0
        for after in successors.get(at, ()):
            waiting[after] -= 1
            if waiting[after] == 0:
                ready.append(after)
    return left
