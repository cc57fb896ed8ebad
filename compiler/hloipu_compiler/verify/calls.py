"""Who calls whom: no recursion, callees exist, threads agree, composite calls are complete."""

from hloipu_compiler.analysis.call_graph import call_cycle, callees
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.verify.places import attribute_span
from hloipu_compiler.verify.report import Report
from hloipu_compiler.verify.survey import Place, Survey

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
    from hloipu_compiler.verify.frontend import frontend_value

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
