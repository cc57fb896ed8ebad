"""Layouts of the entry's interface: XLA validates these and no others.

Source: openxla/xla `xla/layout_util.cc` (ValidateLayoutForShape), probed with jaxlib 0.10.2.
"""

from itertools import pairwise
from typing import TYPE_CHECKING

from hloipu_compiler.hlo.syntax.text_fault import TextFault
from hloipu_compiler.ir.attributes import ProgramShape
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.ir.shapes import ArrayShape, BufferShape, Layout, Shape, leaves
from hloipu_compiler.verify.places import header_span, shape_span
from hloipu_compiler.verify.report import Report

if TYPE_CHECKING:
    from hloipu_compiler.hlo.attributes.layout_extension import LayoutExtension

Problem = tuple[str, str]
"""What is wrong and what was expected."""


def check_interface_layouts(module: Module, report: Report) -> None:
    """Report layouts of the entry's parameters and result that lay out no array."""
    said = module.attributes.get("entry_computation_layout")
    if isinstance(said, ProgramShape):
        for shape in (*said.parameters, said.result):
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
        found = f"the layout {Layout(layout.minor_to_major)} of {array.without_layout()}"
        return f"{found} is no order of dimensions", f"0 to {array.rank - 1}, each once"
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
    seen = set()
    for split in extension.splits:
        if not 0 <= split.dimension < array.rank or split.dimension in seen:
            return (
                f"the layout {layout} splits dimension {split.dimension}",
                f"dimensions 0 to {array.rank - 1}, each at most once",
            )
        seen.add(split.dimension)
        size = array.dimensions[layout.minor_to_major[array.rank - 1 - split.dimension]]
        bounds = (0, *split.indices, size)
        if any(a >= b for a, b in pairwise(bounds)):
            return f"the layout {layout} splits at {split.indices}", f"ascending, 1 to {size - 1}"
    return None
