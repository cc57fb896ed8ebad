"""Results that are made slice by slice, where memory is scarce."""

from collections.abc import Sequence
from dataclasses import replace

from hloipu_compiler.layout.layout import cost_of_layout
from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.values import TileTensor
from hloipu_compiler.planners.op_grids import met_by
from hloipu_compiler.planners.placing import Placement, grid
from hloipu_compiler.planners.slicing import Slices, spread_for_slices, transfer_cycles
from hloipu_runtime.codelets.core.constants import number_node
from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.costs.exchange_price import CodePrice
from hloipu_runtime.machine.charges import over
from hloipu_runtime.program.mapping import Mapping, Sizes, whole, whole_box
from hloipu_runtime.program.program import Role, Variable
from hloipu_runtime.program.steps import Transfer


def spread(builder: Builder, source: TileTensor, slices: Slices) -> TileTensor:
    """Return a value that slices are to be taken from: as it lies, or spread anew if that pays."""
    source = builder.nearest(source, builder.ipu)
    lying = builder.variables[source.variable]
    if lying.ipu != builder.ipu:
        return source
    tensor = source.tensor
    place = spread_for_slices(builder.machine, tensor, lying.mapping, slices, builder.code_price)
    if place is None:
        return source
    return replace(source, variable=builder.copied([(source, place)])[0])


def slice_at(
    builder: Builder, source: TileTensor, dimension: int, low: int, shape: Sizes, mapping: Mapping
) -> TileTensor:
    """Bring the slice of a value that begins at `low` along a dimension, of sizes `shape`."""
    starts = resized((0,) * len(shape), dimension, low)
    piece = (source, source.shape, whole_box(shape), starts)
    return builder.assembled(source.element_type, shape, [piece], mapping=mapping)


def put_together(
    builder: Builder, parts: Sequence[TileTensor], dimension: int, result: Tensor
) -> TileTensor:
    """Put slices along a dimension together in one exchange, which spreads over all tiles.

    If each tile has slices whole along the dimension it has the result so, too: nothing moves.
    """
    pieces = []
    low = 0
    for part in parts:
        high = low + part.shape[dimension]
        box = tuple((low, high) if d == dimension else (0, n) for d, n in enumerate(result.shape))
        shift = tuple(-low if d == dimension else 0 for d in range(len(result.shape)))
        pieces.append((part, part.shape, box, shift))
        low = high
    mapping = _place(builder, parts[0], dimension, result)
    return builder.assembled(result.element_type, result.shape, pieces, mapping=mapping)


def _place(builder: Builder, first: TileTensor, dimension: int, result: Tensor) -> Mapping:
    """Return where slices, the first of which is given, are put together at the least cost."""
    lying = builder.variables[first.variable].mapping
    shape = result.shape
    if lying.is_partition and lying.spans[dimension].axis < 0 and not lying.replicated_axes:
        spans = (*lying.spans[:dimension], whole(shape[dimension]), *lying.spans[dimension + 1 :])
        return Mapping(lying.tiles, spans)
    step = first.shape[dimension]
    places = [builder.default_mapping(result.element_type, shape)]
    preferences = met_by(builder.preferences, shape)
    places += [
        demand.born
        for demand in preferences
        if demand.born.is_partition and not demand.born.replicated_axes
    ]
    places += _aligned(shape, dimension, step, builder.tile_count)
    code_price = builder.code_price

    def cycles(place: Mapping) -> int:
        size = place.spans[dimension].size
        # Some tile has parts of two slices, or all have parts of several.
        slices = over(size, step) + (1 if size % step and step % size else 0)
        each = _cycles(builder, first, result, place, code_price)
        return slices * each + cost_of_layout(
            builder.machine, result, place, preferences, None, 1, code_price
        )

    return min(dict.fromkeys(places), key=cycles)


def _cycles(
    builder: Builder, first: TileTensor, result: Tensor, place: Mapping, code_price: CodePrice
) -> int:
    """Return the cycles of bringing the first slice to its place, its code priced among them."""
    machine, source = builder.machine, builder.variables[first.variable]
    target = Variable("", result.element_type, result.shape, place, Role.TEMPORARY, 0, "")
    tiles, zeros = place.tiles, (0,) * len(result.shape)
    transfer = Transfer(
        0, 1, tiles, whole_box(tiles.extents), place.spans, whole_box(first.shape), zeros,
        first.shape, 0,
    )  # fmt: skip
    return transfer_cycles(machine, transfer, (source, target), code_price)


def _aligned(shape: Sizes, dimension: int, step: int, tiles: int) -> list[Mapping]:
    """Return blocks that each have elements of one slice, cut along the largest other dimension."""
    others = [d for d in range(len(shape)) if d != dimension]
    if not others:
        return []
    along = max(others, key=lambda d: shape[d])
    aligned = []
    slices = over(shape[dimension], step)
    for parts in range(1, tiles // slices + 1):
        if step % parts:
            continue
        counts = [(dimension, slices * parts, step // parts), (along, tiles // (slices * parts), 2)]
        aligned.append(grid(sorted(counts), shape).mapping(shape))
    return aligned


def written(
    builder: Builder,
    into: TileTensor | None,
    part: TileTensor,
    low: int,
    dimension: int,
    result: Tensor,
) -> TileTensor:
    """Write a slice, from `low` on along a dimension, into the result, which begins as zeros.

    If each tile has a slice whole along the dimension it has the result so, too: nothing moves.
    """
    into = into or _filled(builder, part, dimension, result)
    high = low + part.shape[dimension]
    box = tuple((low, high) if d == dimension else (0, n) for d, n in enumerate(result.shape))
    shift = tuple(-low if d == dimension else 0 for d in range(len(result.shape)))
    return builder.assembled(
        result.element_type, result.shape, [(part, part.shape, box, shift)], into
    )


def resized(sizes: Sizes, dimension: int, size: int) -> Sizes:
    """Return sizes with one of them changed."""
    return (*sizes[:dimension], size, *sizes[dimension + 1 :])


def _filled(builder: Builder, part: TileTensor, dimension: int, result: Tensor) -> TileTensor:
    """Return zeros of the result's shape, on the tiles of a slice if that can be."""
    kind = result.element_type
    codelet = Elementwise(Expression((), (number_node(0, kind),), (0,)), (), len(result.shape))
    lying = builder.variables[part.variable].mapping
    placement = None
    if lying.is_partition and lying.spans[dimension].axis < 0 and not lying.replicated_axes:
        labels = tuple((d, span) for d, span in enumerate(lying.spans) if span.axis >= 0)
        placement = Placement(lying.tiles, labels)
    return builder.compute(codelet, [], [(kind, result.shape)], placement=placement)[0]
