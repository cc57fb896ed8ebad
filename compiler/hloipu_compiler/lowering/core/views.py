"""Tensors seen in other shapes, and exchanges that move several at once."""

from collections.abc import Sequence
from math import prod

from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.values import TileTensor
from hloipu_compiler.planners.placing import Placement, moved, split
from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.mapping import Box, Mapping, Sizes, whole_box

Boxes = Sequence[tuple[Sizes, Box, Sizes]]
"""For each piece: the shape that the source is seen in, where it is put, the shift."""


def seen_as(
    builder: Builder,
    leaves: Sequence[TileTensor],
    shape: Sizes,
    boxes: Boxes | None = None,
    mapping: Mapping | None = None,
) -> list[TileTensor]:
    """Return values of one new shape, put together from pieces of each leaf by one exchange.

    Without `boxes` the elements stay in row-major order; without a mapping, in default ones.
    """
    if boxes is None:
        boxes = ((shape, whole_box(shape), (0,) * len(shape)),)
    transfers: list[s.Transfer] = []
    definitions: list[s.Definition] = []
    tensors: list[TileTensor] = []
    for leaf in leaves:
        place = mapping or builder.default_mapping(leaf.element_type, shape)
        variable = builder.variable(leaf.element_type, shape, place)
        value = builder.value(leaf.element_type, shape)
        transfers += [builder.transfer(leaf, variable, *piece) for piece in boxes]
        pieces = tuple(s.Piece(leaf.value, *piece) for piece in boxes)
        definitions.append(s.Definition(variable, value, None, pieces))
        tensors.append(TileTensor(value, variable, leaf.element_type, shape))
    builder.exchange(transfers, definitions)
    return tensors


def spread_out(
    codelet: Codelet, operands: Sequence[Tensor], results: Sequence[Tensor], parts: int
) -> Placement:
    """Return a placement of a codelet on up to `parts` tiles, the first labels split first."""
    indexing = codelet.indexing(operands, results)
    ones = (1,) * len(indexing.sizes)
    return split(indexing.sizes, ones, ones, parts)


def mapping_in(placement: Placement, codelet: Codelet, operands: Sequence[Tensor]) -> Mapping:
    """Return where a placement wants the codelet's first operand."""
    indices = codelet.indexing(operands, operands).operands[0]
    return Mapping(placement.tiles, placement.spans(indices, operands[0].shape))


def compute_spread(
    builder: Builder,
    codelet: Codelet,
    operands: Sequence[TileTensor],
    results: Sequence[tuple[str, Sizes]],
) -> list[TileTensor]:
    """Compute on as many tiles as there are rows, where rows are few; else where they lie.

    For codelets that compute much on each row: the default placement weighs bytes alone.
    """
    given = [tensor.tensor for tensor in operands]
    result_tensors = [Tensor(*x) for x in results]
    placement = None
    if prod(codelet.indexing(given, result_tensors).sizes) < 2 * builder.tile_count:
        placement = spread_out(codelet, given, result_tensors, builder.tile_count)
        count = placement.tiles.count
        if 2 * count <= builder.tile_count:
            # Many small computations are not all to lie on the first tiles.
            placement = moved(placement, builder.first_tile(count), builder.tile_count)
    return builder.compute(codelet, operands, results, placement=placement)
