"""Where demands come from: grids of products, and dimensions that are indexed."""

from collections.abc import Sequence
from math import prod

from hloipu_compiler.codegen.birthplaces import spread_over_copies
from hloipu_compiler.codegen.contractions import PlacedDot, dot_codelet, dot_placement
from hloipu_compiler.codegen.layout import Demand
from hloipu_compiler.codegen.placing import MINIMUM_BYTES, gathered, split
from hloipu_compiler.codegen.site import array_shape
from hloipu_compiler.codegen.tuning import Tuning
from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_runtime.codelets.codelet import Tensor
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.mapping import Mapping, Sizes, Tiles, whole


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
    computation: Computation, x: Instruction, placed: PlacedDot, first: int
) -> list[Demand]:
    """Return what a dot product wishes for each of its operands; nothing without elements."""
    operands = [tensor_of(computation.instructions[i]) for i in x.operands]
    if not all(x.elements for x in (*operands, placed.result)):
        return []
    tiles = beginning(placed, first)
    indexing = placed.codelet.indexing(operands, [placed.result])
    found = []
    for tensor, indices in zip(operands, indexing.operands, strict=True):
        need = Mapping(tiles, placed.placement.spans(indices, tensor.shape))
        born = spread_over_copies(need, tensor.shape, tensor.element_type)
        found.append(Demand(born, need, 1, x.name))
    return found


def made_by_dot(
    computation: Computation, x: Instruction, placed: PlacedDot, first: int
) -> Mapping | None:
    """Return where a product comes to lie, its pieces added."""
    if placed.plan.slices > 1:
        return None
    operands = [tensor_of(computation.instructions[i]) for i in x.operands]
    indexing = placed.codelet.indexing(operands, [placed.result])
    spans = placed.placement.spans(indexing.results[0], placed.result.shape)
    made = Mapping(beginning(placed, first), spans)
    if not placed.codelet.part:
        return made
    shape = tensor_of(x).shape
    found = gathered(made, shape)
    if found is None:
        return None
    along = dict(found.labels)
    return Mapping(found.tiles, tuple(along.get(d, whole(n)) for d, n in enumerate(shape)))


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


def moving_dimensions(shape: Sizes, part: Sizes) -> list[int]:
    """Return the dimensions that a dynamic slice or update has less of."""
    return [d for d, (size, other) in enumerate(zip(shape, part, strict=True)) if size != other]
