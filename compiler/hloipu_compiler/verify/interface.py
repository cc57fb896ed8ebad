"""The entry's interface: parameters numbered 0 to n-1, as the header says, layouts, aliases.

Places that `input_output_alias` and `buffer_donor` name exist, and each is given away once.
Source: openxla/xla `xla/hlo/ir/hlo_input_output_alias_config.cc`, `hlo_buffer_donor_config.cc`.
"""

from itertools import pairwise
from typing import TYPE_CHECKING

from hloipu_compiler.errors import Note
from hloipu_compiler.hlo.syntax.text_fault import TextFault
from hloipu_compiler.inference.site import braced
from hloipu_compiler.ir.attributes import ProgramShape
from hloipu_compiler.ir.graph import Computation, Module
from hloipu_compiler.ir.shapes import (
    ArrayShape,
    BufferShape,
    Layout,
    Shape,
    compatible,
    leaves,
    without_layouts,
)
from hloipu_compiler.verify.places import header_span, operand_span, shape_span
from hloipu_compiler.verify.survey import Place, Report, Survey

if TYPE_CHECKING:
    from hloipu_compiler.hlo.attributes.layout_extension import LayoutExtension
from hloipu_compiler.ir.attributes import Alias, Donor
from hloipu_compiler.ir.shapes import TupleShape, subshape, with_default_layout


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
    stated = module.attributes.get("entry_computation_layout")
    if not isinstance(stated, ProgramShape):
        return
    entry = module.entry
    root = entry.instructions[entry.root]
    if not compatible(root.shape, stated.result):
        span = shape_span(module, root)
        report.add(
            "E0304",
            f"entry_computation_layout gives the result {without_layouts(stated.result)}",
            header_span(module, "entry_computation_layout"),
            expected=f"{without_layouts(root.shape)}, the shape of the root {root.name}",
            notes=[Note(span, "the root")] if span else (),
        )
    parameters = entry.parameters
    if len(parameters) != len(stated.parameters):
        report.add(
            "E0304",
            f"entry_computation_layout lists {len(stated.parameters)} parameters",
            header_span(module, "entry_computation_layout"),
            expected=f"{len(parameters)}, as {entry.name} has",
        )
        return
    _check_entry_parameters(module, entry, stated, report)


def _check_entry_parameters(
    module: Module, entry: Computation, stated: ProgramShape, report: Report
) -> None:
    for number, (position, shape) in enumerate(
        zip(entry.parameters, stated.parameters, strict=True)
    ):
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


Problem = tuple[str, str]
"""What is wrong and what was expected."""


def check_interface_layouts(module: Module, report: Report) -> None:
    """Report layouts of the entry's parameters and result that lay out no array.

    XLA validates these and no others. Source: openxla/xla `xla/layout_util.cc`
    (ValidateLayoutForShape), probed with jaxlib 0.10.2.
    """
    stated = module.attributes.get("entry_computation_layout")
    if isinstance(stated, ProgramShape):
        for shape in (*stated.parameters, stated.result):
            problem = layout_problem(shape)
            if problem:
                at = header_span(module, "entry_computation_layout")
                report.add("E0338", problem[0], at, expected=problem[1])
        return
    entry = module.entry
    for position in dict.fromkeys((*entry.parameters, entry.root)):
        instruction = entry.instructions[position]
        problem = layout_problem(instruction.shape)
        if problem:
            at = shape_span(module, instruction)
            report.add("E0338", f"{instruction.name}: {problem[0]}", at, expected=problem[1])


def layout_problem(shape: Shape) -> Problem | None:
    """Return what is wrong with the first wrong layout in a shape, or None."""
    for _, leaf in leaves(shape):
        array = leaf.contents if isinstance(leaf, BufferShape) else leaf
        if array.layout is not None:
            problem = _array_problem(array, array.layout)
            if problem:
                return problem
    return None


def _array_problem(array: ArrayShape, layout: Layout) -> Problem | None:
    if set(layout.minor_to_major) != set(range(array.rank)):
        subject = f"the layout {Layout(layout.minor_to_major)} of {array.without_layout()}"
        return f"{subject} is not an order of dimensions", f"0 to {array.rank - 1}, each once"
    if not layout.extension:
        return None
    try:
        from hloipu_compiler.hlo.attributes.layout_extension import read_layout_extension

        extension = read_layout_extension(layout.extension)
    except TextFault:
        return None  # the parser reports it
    return _extension_problem(array, layout, extension)


def _extension_problem(
    array: ArrayShape, layout: Layout, extension: "LayoutExtension"
) -> Problem | None:
    if extension.index_type or extension.pointer_type:
        return f"the layout {layout} has index or pointer types", "a dense layout"
    from hloipu_compiler.hlo.attributes.layout_extension import COMBINED

    if any(size < 1 and size != COMBINED for tile in extension.tiles for size in tile):
        return f"the layout {layout} has an empty tile", "tile sizes from 1, or *"
    if extension.element_bits < 0 or extension.tail_padding_elements < 1:
        return f"the layout {layout} has a size below its least", "E(…) from 0 and L(…) from 1"
    split_dimensions = set()
    for split in extension.splits:
        if not 0 <= split.dimension < array.rank or split.dimension in split_dimensions:
            return (
                f"the layout {layout} splits dimension {split.dimension}",
                f"dimensions 0 to {array.rank - 1}, each at most once",
            )
        split_dimensions.add(split.dimension)
        size = array.dimensions[layout.minor_to_major[array.rank - 1 - split.dimension]]
        bounds = (0, *split.indices, size)
        if any(a >= b for a, b in pairwise(bounds)):
            return f"the layout {layout} splits at {split.indices}", f"ascending, 1 to {size - 1}"
    return None


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
            f"{key} names {braced(index)} of parameter {number}",
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
            f"{_ALIAS} names the output {braced(alias.output_index)}",
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
            f"parameter {alias.parameter} at {braced(alias.parameter_index)} is aliased twice",
            header_span(module, _ALIAS),
            expected="one output for it",
        )
    donated.add(place)
    if alias.kind == "must-alias":
        a, b = with_default_layout(result), with_default_layout(parameter)
        if a != b:
            report.add(
                "E0329",
                f"the output {braced(alias.output_index)} is {a}, the parameter that it must "
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
            f"parameter {number} at {braced(index)} is aliased and also listed as a donor",
            header_span(module, _DONOR),
            expected=f"an entry in {_ALIAS} or in {_DONOR}",
        )
