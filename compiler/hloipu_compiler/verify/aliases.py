"""The header's input_output_alias and buffer_donor: places that exist, each given away once.

Source: openxla/xla `xla/hlo/ir/hlo_input_output_alias_config.cc`, `hlo_buffer_donor_config.cc`.
"""

from hloipu_compiler.ir.attributes import Alias, Donor, ProgramShape
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.ir.shapes import Shape, TupleShape, subshape, with_default_layout
from hloipu_compiler.verify.places import header_span
from hloipu_compiler.verify.survey import Report

_ALIAS, _DONOR = "input_output_alias", "buffer_donor"
Index = tuple[int, ...]


def check_aliases(module: Module, report: Report) -> None:
    """Report aliases and donors that point nowhere or that give one buffer away twice."""
    aliases, donors = module.attributes.aliases(), module.attributes.donors()
    if not aliases and not donors:
        return
    program = _interface(module)
    donated: set[tuple[int, Index]] = set()
    outputs: set[Index] = set()
    for alias in aliases:
        if alias.output_index not in outputs:
            outputs.add(alias.output_index)  # of a repeated output XLA reads the first entry
            _check_alias(module, program, alias, donated, report)
    for donor in donors:
        _check_donor(module, program, donor, donated, report)


def _interface(module: Module) -> ProgramShape:
    stated = module.attributes.get("entry_computation_layout")
    program_shape = module.entry.program_shape
    if isinstance(stated, ProgramShape) and len(stated.parameters) == len(program_shape.parameters):
        return stated
    return program_shape


def _array_at(shape: Shape, index: Index) -> Shape | None:
    part = subshape(shape, index)
    return None if part is None or isinstance(part, TupleShape) else part


def _shown(index: Index) -> str:
    return "{" + ",".join(map(str, index)) + "}"


def _parameter_at(
    module: Module, program: ProgramShape, number: int, index: Index, key: str, report: Report
) -> Shape | None:
    if not 0 <= number < len(program.parameters):
        report.add(
            "E0327",
            f"{key} names parameter {number}",
            header_span(module, key),
            expected=f"one of the {len(program.parameters)} parameters of {module.entry.name}",
        )
        return None
    array = _array_at(program.parameters[number], index)
    if array is None:
        report.add(
            "E0327",
            f"{key} names {_shown(index)} of parameter {number}",
            header_span(module, key),
            expected=f"the index of an array in {program.parameters[number]}",
        )
    return array


def _check_alias(
    module: Module,
    program: ProgramShape,
    alias: Alias,
    donated: set[tuple[int, Index]],
    report: Report,
) -> None:
    result = _array_at(program.result, alias.output_index)
    if result is None:
        report.add(
            "E0327",
            f"{_ALIAS} names the output {_shown(alias.output_index)}",
            header_span(module, _ALIAS),
            expected=f"the index of an array in the result {program.result}",
        )
    parameter = _parameter_at(
        module, program, alias.parameter, alias.parameter_index, _ALIAS, report
    )
    if result is None or parameter is None:
        return
    place = (alias.parameter, alias.parameter_index)
    if place in donated:
        report.add(
            "E0328",
            f"parameter {alias.parameter} at {_shown(alias.parameter_index)} is aliased twice",
            header_span(module, _ALIAS),
            expected="one output for it",
        )
    donated.add(place)
    if alias.kind == "must-alias":
        a, b = with_default_layout(result), with_default_layout(parameter)
        if a != b:
            report.add(
                "E0329",
                f"the output {_shown(alias.output_index)} is {a}, the parameter that it must "
                f"alias is {b}",
                header_span(module, _ALIAS),
                expected="equal shapes and layouts",
                hint="use may-alias if sharing the memory is only a wish",
            )


def _check_donor(
    module: Module,
    program: ProgramShape,
    donor: Donor,
    donated: set[tuple[int, Index]],
    report: Report,
) -> None:
    number, index = donor.parameter, donor.parameter_index
    if _parameter_at(module, program, number, index, _DONOR, report) is None:
        return
    if (number, index) in donated:
        report.add(
            "E0328",
            f"parameter {number} at {_shown(index)} is aliased and also listed as a donor",
            header_span(module, _DONOR),
            expected=f"an entry in {_ALIAS} or in {_DONOR}",
        )
