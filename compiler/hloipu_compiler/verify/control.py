"""Control predecessors: of the same computation, free of cycles, in the order of a schedule."""

from hloipu_compiler.ir.graph import Computation, Module, control_predecessors
from hloipu_compiler.verify.places import attribute_span
from hloipu_compiler.verify.survey import Place, Report, Survey

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
