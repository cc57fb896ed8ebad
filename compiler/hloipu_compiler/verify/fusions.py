"""Fusions: one owner for each fused computation, and no dead code in it."""

from hloipu_compiler.errors import Note
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.verify.places import attribute_span, computation_span, name_span
from hloipu_compiler.verify.survey import Place, Report, Survey

_ALWAYS_EFFECTS = frozenset(
    "send send-done recv recv-done rng rng-get-and-update-state infeed outfeed all-reduce-start "
    "all-reduce-done all-gather-start all-gather-done collective-broadcast "
    "collective-permute-start collective-permute-done".split()
)


def check_fusions(survey: Survey, report: Report) -> None:
    """Report shared fused computations, a fused entry, and dead code in fused computations."""
    module = survey.module
    owner: dict[str, Place] = {}
    for place in survey.places("fusion"):
        name = place.instruction.attributes.text("calls")
        computation = module.computation.get(name)
        if computation is None:
            continue  # `verify.calls` reports it
        first = owner.setdefault(name, place)
        if first is not place:
            _report_shared(module, first, place, name, report)
        else:
            _check_body(module, computation, report)
    if module.entry.name in owner:
        place = owner[module.entry.name]
        report.add(
            "E0308",
            f"the entry computation {module.entry.name} is fused by {place.instruction.name}",
            attribute_span(module, place.instruction, "calls"),
            expected="a computation of its own for the fusion",
        )


def _report_shared(module: Module, first: Place, again: Place, name: str, report: Report) -> None:
    before = attribute_span(module, first.instruction, "calls")
    report.add(
        "E0308",
        f"{again.instruction.name} calls {name}, which belongs to the fusion "
        f"{first.instruction.name}",
        attribute_span(module, again.instruction, "calls"),
        expected="a fused computation that nothing else fuses",
        hint=f"give it a copy of {name} under another name",
        notes=[Note(before, "its owner")] if before else (),
    )


def _check_body(module: Module, computation: Computation, report: Report) -> None:
    used = bytearray(len(computation.instructions))
    for instruction in computation.instructions:
        for operand in instruction.operands:
            used[operand] = 1
    root = computation.root
    if used[root]:
        report.add(
            "E0309",
            f"the root {computation.instructions[root].name} of the fused computation "
            f"{computation.name} has users",
            name_span(module, computation.instructions[root]),
            expected="a root that nothing in the computation uses",
        )
    at = used.find(0)
    while at >= 0:
        if at != root:
            instruction = computation.instructions[at]
            if not has_effect(module, instruction):
                _report_dead(module, computation, instruction, report)
        at = used.find(0, at + 1)


def _report_dead(
    module: Module, computation: Computation, instruction: Instruction, report: Report
) -> None:
    at = name_span(module, instruction) or computation_span(module, computation)
    report.add(
        "E0309",
        f"nothing uses {instruction.name} in the fused computation {computation.name}",
        at,
        expected="a user for every instruction but the root",
        hint="remove it" if instruction.opcode != "parameter" else "remove it and the operand",
    )


def has_effect(module: Module, instruction: Instruction) -> bool:
    """Whether XLA keeps an unused instruction (`HloInstruction::HasSideEffectNoRecurse`)."""
    opcode, attributes = instruction.opcode, instruction.attributes
    if opcode in _ALWAYS_EFFECTS:
        return True
    if opcode == "custom-call":
        return attributes.flag("custom_call_has_side_effect")
    if opcode in ("all-to-all", "all-reduce", "reduce-scatter"):
        if attributes.flag("constrain_layout"):
            return True
    elif opcode != "all-gather":
        return False
    return "channel_id" in attributes and module.attributes.integer("num_partitions", 1) == 1
