"""Records of layout decisions for users: who decided, and what it saves."""

from collections.abc import Iterator

from hloipu_compiler.ir.graph import Module
from hloipu_compiler.ir.shapes import ArrayShape, leaves_of
from hloipu_compiler.layout.layout import InitialLayout, Layout, cost_of_layout
from hloipu_compiler.planners.placing import mapping_of
from hloipu_compiler.planners.planned import PlacedValue
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.element_types import ELEMENT_TYPES, shape_text
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.mapping import Mapping


def placed_values(module: Module, layout: Layout, machine: Machine) -> Iterator[PlacedValue]:
    """Yield a record for each parameter of the entry, and each array of a loop, with a home."""
    number = 0
    for position in module.entry.parameters:
        instruction = module.entry.instructions[position]
        for shape in leaves_of(instruction.shape):
            if shape.element_type.name == "token":
                continue
            initial_layout = layout.parameters.get(number)
            if initial_layout is not None:
                yield _placed(
                    machine,
                    instruction.name,
                    shape,
                    initial_layout,
                    "placed where its users read it",
                )
            number += 1
    for (computation, name, leaf), initial_layout in layout.initial_layouts.items():
        shapes = leaves_of(module.computation[computation][name].shape)
        reason = "stays there from iteration to iteration"
        yield _placed(machine, f"{name}[{leaf}]", shapes[leaf], initial_layout, reason)


def _placed(
    machine: Machine, name: str, shape: ArrayShape, initial_layout: InitialLayout, reason: str
) -> PlacedValue:
    tensor = Tensor(shape.element_type.name, shape.dimensions)
    bits = ELEMENT_TYPES[tensor.element_type].bits
    default = mapping_of(tensor.shape, bits, machine.chip.tiles_per_ipu)
    before, after = (
        cost_of_layout(
            machine,
            tensor,
            mapping,
            initial_layout.demands,
            initial_layout.next_mapping,
            initial_layout.iterations,
        )
        for mapping in (default, initial_layout.mapping)
    )
    words = mapping_words(initial_layout.mapping)
    text = shape_text(tensor.element_type, tensor.shape)
    return PlacedValue(name, text, words, initial_layout.user, reason, max(0, before - after))


def mapping_words(mapping: Mapping) -> str:
    """Return how many parts each dimension is in, and from which tile on."""
    parts = [
        f"dimension {d} in {mapping.tiles.extents[span.axis]}"
        for d, span in enumerate(mapping.spans)
        if span.axis >= 0
    ]
    tiles = mapping.tiles
    where = f"tile {tiles.first}" if tiles.count == 1 else f"tiles {tiles.first} to {tiles.last}"
    return f"{', '.join(parts) or 'whole'} on {where}"
