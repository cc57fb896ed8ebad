"""Parameters: numbered 0 to n-1, and as the header's entry_computation_layout says."""

from hloipu_compiler.errors import Note
from hloipu_compiler.ir.attributes import ProgramShape
from hloipu_compiler.ir.graph import Computation, Module
from hloipu_compiler.ir.shapes import compatible, without_layouts
from hloipu_compiler.verify.places import header_span, operand_span, shape_span
from hloipu_compiler.verify.report import Report
from hloipu_compiler.verify.survey import Place, Survey


def check_parameters(survey: Survey, report: Report) -> None:
    """Report parameter numbers that repeat or leave a gap, and a header that disagrees."""
    by_computation: dict[int, list[Place]] = {}
    for place in survey.places("parameter"):
        by_computation.setdefault(id(place.computation), []).append(place)
    for places in by_computation.values():
        _check_numbers(survey.module, places, report)
    _check_entry_layout(survey.module, report)


def _check_numbers(module: Module, places: list[Place], report: Report) -> None:
    count = len(places)
    first: dict[int, Place] = {}
    for place in places:
        instruction = place.instruction
        number = instruction.parameter_number
        known = first.setdefault(number, place)
        if known is not place:
            before = operand_span(module, known.instruction, 0)
            report.add(
                "E0303",
                f"{place.computation.name} has two parameters number {number}",
                operand_span(module, instruction, 0),
                expected=f"numbers 0 to {count - 1}, each once",
                notes=[Note(before, "the other one")] if before else (),
            )
        elif not 0 <= number < count:
            report.add(
                "E0303",
                f"parameter number {number} in {place.computation.name}, which has {count} "
                f"parameter{'s' if count > 1 else ''}",
                operand_span(module, instruction, 0),
                expected=f"numbers 0 to {count - 1}, each once",
            )


def _check_entry_layout(module: Module, report: Report) -> None:
    said = module.attributes.get("entry_computation_layout")
    if not isinstance(said, ProgramShape):
        return
    entry = module.entry
    root = entry.instructions[entry.root]
    if not compatible(root.shape, said.result):
        span = shape_span(module, root)
        report.add(
            "E0304",
            f"entry_computation_layout gives the result {without_layouts(said.result)}",
            header_span(module, "entry_computation_layout"),
            expected=f"{without_layouts(root.shape)}, the shape of the root {root.name}",
            notes=[Note(span, "the root")] if span else (),
        )
    parameters = entry.parameters
    if len(parameters) != len(said.parameters):
        report.add(
            "E0304",
            f"entry_computation_layout lists {len(said.parameters)} parameters",
            header_span(module, "entry_computation_layout"),
            expected=f"{len(parameters)}, as {entry.name} has",
        )
        return
    _check_entry_parameters(module, entry, said, report)


def _check_entry_parameters(
    module: Module, entry: Computation, said: ProgramShape, report: Report
) -> None:
    for number, (position, shape) in enumerate(zip(entry.parameters, said.parameters, strict=True)):
        parameter = entry.instructions[position]
        if compatible(parameter.shape, shape):
            continue
        span = shape_span(module, parameter)
        report.add(
            "E0304",
            f"entry_computation_layout gives parameter {number} as {without_layouts(shape)}",
            header_span(module, "entry_computation_layout"),
            expected=f"{without_layouts(parameter.shape)}, the shape of {parameter.name}",
            notes=[Note(span, "the parameter")] if span else (),
        )
