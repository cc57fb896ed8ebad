"""What fusions that reduce wish for their operands: to lie so that rows are whole on a tile."""

from collections.abc import Iterator
from typing import NamedTuple

from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.layout.rows import reduction_preference
from hloipu_compiler.layout.sources import tensor_of
from hloipu_compiler.planners.op_grids import Demand
from hloipu_compiler.planners.placing import mapping_of
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.model import Machine


class _Reduced(NamedTuple):
    space: tuple[int, ...]
    dimensions: tuple[int, ...]


def region_demands(
    machine: Machine, module: Module, computation: Computation, x: Instruction
) -> Iterator[tuple[int, Demand]]:
    """Yield positions of a fusion's operands, with the demand on each.

    Without it each of its reductions has partial results to bring together. Where rows are so
    few that most tiles would have none, the elementwise ops among them would rather be spread.
    """
    reductions = list(_reductions(module, module.computation[x.attributes.called[0]]))
    if not reductions:
        return
    space, dimensions = reductions[0]
    for position in dict.fromkeys(x.operands):
        source = computation.instructions[position]
        if not isinstance(source.shape, ArrayShape) or source.shape.dimensions != space:
            continue
        tensor = tensor_of(source)
        preference = reduction_preference(machine, tensor, dimensions) if 0 not in space else None
        bits = ELEMENT_TYPES[tensor.element_type].bits
        usual = mapping_of(space, bits, machine.chip.tiles_per_ipu)
        if preference is not None and 2 * preference[0].tiles.count >= usual.tiles.count:
            yield (
                position,
                Demand(preference[0], preference[0], 1, x.name, len(reductions) * preference[1]),
            )


def _reductions(module: Module, computation: Computation) -> Iterator[_Reduced]:
    """Yield what is reduced in a fusion, and in fusions within it."""
    for x in computation.instructions:
        if x.opcode == "fusion":
            yield from _reductions(module, module.computation[x.attributes.called[0]])
        elif x.opcode == "reduce":
            source = computation.instructions[x.operands[0]].shape
            if isinstance(source, ArrayShape):
                yield _Reduced(source.dimensions, x.attributes.integers("dimensions"))
