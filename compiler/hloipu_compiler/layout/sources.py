"""Demands of dot products and of ops that index."""

from collections.abc import Sequence
from math import prod

from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.ir.shapes import array_shape
from hloipu_compiler.planners.dot_placement import PlacedDot, dot_codelet, dot_placement
from hloipu_compiler.planners.op_grids import Demand
from hloipu_compiler.planners.placing import MINIMUM_BYTES, gathered, split
from hloipu_compiler.planners.redistribution import redistribution
from hloipu_compiler.planners.spreading import spread_over_copies, worth_sharing
from hloipu_compiler.planners.tuning import Tuning
from hloipu_runtime.codelets.core.codelet import Tensor
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.descriptors import is_complete
from hloipu_runtime.program.mapping import Mapping, Span, Tiles, whole


def tensor_of(x: Instruction) -> Tensor:
    """Return type and sizes of an instruction that makes one array."""
    shape = array_shape(x.shape)
    return Tensor(shape.element_type.name, shape.dimensions)


def placed_dot(
    machine: Machine, tuning: Tuning, computation: Computation, x: Instruction
) -> PlacedDot:
    """Return the grid of a dot product, from tile 0 on."""
    lhs, rhs = (tensor_of(computation.instructions[i]) for i in x.operands)
    return dot_placement(machine, tuning, dot_codelet(x), lhs, rhs, tensor_of(x))


def beginning(placed: PlacedDot, first: int) -> Tiles:
    """Return a product's grid from another tile on."""
    grid = placed.placement.tiles
    return Tiles(grid.extents, grid.strides, first)


def demands_of_dot(
    machine: Machine, computation: Computation, x: Instruction, placed: PlacedDot, first: int
) -> list[Demand]:
    """Return the demand of a dot product on each of its operands; nothing without elements."""
    operands = [tensor_of(computation.instructions[i]) for i in x.operands]
    if not all(x.elements for x in (*operands, placed.result)):
        return []
    tiles = beginning(placed, first)
    indexing = placed.codelet.indexing(operands, [placed.result])
    demands = []
    for tensor, indices in zip(operands, indexing.operands, strict=True):
        need = Mapping(tiles, placed.placement.spans(indices, tensor.shape))
        demands.append(Demand(_born(machine, tensor, need), need, 1, x.name))
    return demands


def _born(machine: Machine, tensor: Tensor, need: Mapping) -> Mapping:
    """Return where an operand best lies that tiles need so: there, if each part is needed once.

    Else tiles that need the same part share it out.
    """
    shared = spread_over_copies(need, tensor.shape, tensor.element_type)
    if not is_complete(need, tensor.shape):
        # What one of several slices reads.
        return shared
    if not need.replicated_axes:
        return need
    near = _on_the_same_tiles(tensor, need)
    if near is None:
        return shared
    kind, shape = tensor.element_type, tensor.shape
    return min((shared, near), key=lambda x: redistribution(machine, kind, shape, x, need).price)


def _on_the_same_tiles(tensor: Tensor, need: Mapping) -> Mapping | None:
    """Return the mapping in which each tile has a piece of the part that it needs."""
    spans = list(need.spans)
    blocks = [min(span.size, size) for span, size in zip(spans, tensor.shape, strict=True)]
    copies = prod(need.tiles.extents[axis] for axis in need.replicated_axes)
    if copies > worth_sharing(blocks, tensor.element_type):
        return None
    for axis in need.replicated_axes:
        copies = need.tiles.extents[axis]
        free = [d for d, span in enumerate(spans) if span.axis < 0 and span.size >= copies]
        if not free:
            return None
        size = spans[free[0]].size
        block = -(-size // copies)
        if -(-size // block) != copies:
            return None
        spans[free[0]] = Span(axis, block, 0, block)
    return Mapping(need.tiles, tuple(spans))


def made_by_dot(
    computation: Computation, x: Instruction, placed: PlacedDot, first: int
) -> Mapping | None:
    """Return where a product comes to lie, its pieces added."""
    if placed.plan.slices > 1:
        return None
    operands = [tensor_of(computation.instructions[i]) for i in x.operands]
    indexing = placed.codelet.indexing(operands, [placed.result])
    spans = placed.placement.spans(indexing.results[0], placed.result.shape)
    mapping = Mapping(beginning(placed, first), spans)
    if not placed.codelet.part:
        return mapping
    shape = tensor_of(x).shape
    reduced = gathered(mapping, shape)
    if reduced is None:
        return None
    along = dict(reduced.labels)
    return Mapping(reduced.tiles, tuple(along.get(d, whole(n)) for d, n in enumerate(shape)))


def all_but(tensor: Tensor, moving: Sequence[int], tiles: int) -> Mapping | None:
    """Return blocks of all dimensions but some, which are whole on each tile; None without any."""
    shape = tensor.shape
    weights = tuple(0 if d in moving else 1 for d in range(len(shape)))
    others = prod(size for size, weight in zip(shape, weights, strict=True) if weight)
    bits = ELEMENT_TYPES[tensor.element_type].bits
    parts = min(tiles, others, max(1, prod(shape) * bits // (8 * MINIMUM_BYTES)))
    if parts < 2:
        return None
    placement = split(shape, weights, (1,) * len(shape), parts, 0)
    along = dict(placement.labels)
    return Mapping(placement.tiles, tuple(along.get(d, whole(n)) for d, n in enumerate(shape)))
