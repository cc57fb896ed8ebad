"""Names are unique; calls do not recurse, callees exist, threads agree, composites are complete.

Each fused computation has one owner, and no dead code in it.
"""

from collections.abc import Iterator
from typing import Protocol, TypeVar

from hloipu_compiler.analysis.call_graph import call_cycle, callees
from hloipu_compiler.errors import Note
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.source import Span
from hloipu_compiler.verify.places import attribute_span, computation_span, name_span
from hloipu_compiler.verify.survey import Place, Report, Survey


class Named(Protocol):
    """Anything with a name."""

    @property
    def name(self) -> str:
        """The name."""


T = TypeVar("T", bound=Named)


def check_names(module: Module, report: Report) -> None:
    """Report every repeated name.

    XLA renames the repeats of an instruction's name in other computations while reading, so its
    rule (unique in the whole module) never meets them; nor does ours.
    """
    if len({c.name for c in module.computations}) != len(module.computations):
        for first, again in _repeats(module.computations):
            _report(
                report,
                f"the computation {again.name} is defined twice",
                computation_span(module, again),
                computation_span(module, first),
            )
    for computation in module.computations:
        instructions = computation.instructions
        if len({instruction.name for instruction in instructions}) == len(instructions):
            continue
        for earlier, later in _repeats(instructions):
            _report(
                report,
                f"the instruction {later.name} is defined twice in {computation.name}",
                name_span(module, later),
                name_span(module, earlier),
            )


def _repeats(items: tuple[T, ...]) -> Iterator[tuple[T, T]]:
    first: dict[str, T] = {}
    for item in items:
        known = first.setdefault(item.name, item)
        if known is not item:
            yield known, item


def _report(report: Report, message: str, at: Span | None, before: Span | None) -> None:
    notes = [Note(before, "first defined here")] if before else []
    report.add("E0302", message, at, expected="a new name", notes=notes)


_SAME_THREAD = frozenset({"fusion", "while", "conditional"})
"""Callers that XLA holds to their callees' thread; calls and appliers it does not, by default."""


def check_calls(survey: Survey, report: Report) -> None:
    """Report call cycles, unknown callees, wrong threads and incomplete composite calls."""
    module = survey.module
    _check_acyclic(survey, report)
    for place in survey.callers:
        for name in dict.fromkeys(place.instruction.attributes.called):
            _check_callee(module, place, name, report)
    for place in survey.places("call"):
        if place.instruction.attributes.flag("is_composite"):
            _check_composite(module, place, report)


def callee_key(place: Place, name: str) -> str:
    """Return the attribute through which an instruction refers to a computation."""
    for key, value in place.instruction.attributes.items():
        if value == name or (isinstance(value, tuple) and name in value):
            return key
    return ""


def _check_acyclic(survey: Survey, report: Report) -> None:
    cycle = call_cycle(callees(survey.module))
    if not cycle:
        return
    caller, callee = cycle[-2], cycle[-1]
    path = " calls ".join(cycle if len(cycle) <= 6 else (*cycle[:5], "…", cycle[-1]))
    for place in survey.callers:
        called = place.instruction.attributes.called
        if place.computation.name == caller and callee in called:
            at = attribute_span(survey.module, place.instruction, callee_key(place, callee))
            report.add(
                "E0305",
                f"{callee} calls itself: {path}",
                at,
                expected="computations that do not reach themselves",
                hint="write the repetition as a while",
            )
            return


def _check_callee(module: Module, place: Place, name: str, report: Report) -> None:
    instruction = place.instruction
    callee = module.computation.get(name)
    at_key = callee_key(place, name)
    if callee is None:
        report.add(
            "E0306",
            f"{instruction.name} calls {name}, which does not exist",
            attribute_span(module, instruction, at_key),
            expected="the name of a computation",
        )
        return
    thread = place.computation.execution_thread
    if instruction.opcode in _SAME_THREAD and callee.execution_thread != thread:
        report.add(
            "E0307",
            f"{name} runs on the thread {callee.execution_thread!r}, its caller "
            f"{place.computation.name} on {thread!r}",
            attribute_span(module, instruction, at_key),
            expected="one execution_thread for both",
        )


def _check_composite(module: Module, place: Place, report: Report) -> None:
    instruction = place.instruction
    key = "frontend_attributes"
    from hloipu_compiler.verify.survey import frontend_value

    if not frontend_value(instruction, "composite.name"):
        report.add(
            "E0310",
            f"the composite call {instruction.name} has no composite.name",
            attribute_span(module, instruction, key),
            expected='frontend_attributes={composite.name="…"}',
        )
        return
    if frontend_value(instruction, "composite.attributes") == "":
        report.add(
            "E0310",
            f"composite.attributes of {instruction.name} is empty",
            attribute_span(module, instruction, key),
            expected="{} or a list of attributes",
        )
    version = frontend_value(instruction, "composite.version")
    if version is not None and not (version.strip().isascii() and version.strip().isdecimal()):
        report.add(
            "E0310",
            f"composite.version of {instruction.name} is {version[:40]!r}",
            attribute_span(module, instruction, key),
            expected="an integer from 0",
        )


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
