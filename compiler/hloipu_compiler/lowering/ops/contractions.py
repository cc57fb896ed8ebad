"""Lowering of dot products."""

from collections.abc import Sequence

from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.context import LoweringContext, lowers
from hloipu_compiler.lowering.core.scalars import zero_text
from hloipu_compiler.lowering.core.values import Scalar, TileTensor, Value
from hloipu_compiler.planners.dot_placement import (
    PlacedDot,
    dot_codelet,
    dot_placement,
    planned_dot,
)
from hloipu_compiler.planners.op_grids import MovableOp, candidates, cheapest
from hloipu_compiler.planners.placing import Placement, gathered
from hloipu_runtime.codelets.core.codelet import Tensor
from hloipu_runtime.codelets.dense.dot import Dot
from hloipu_runtime.codelets.ops.reduce import Reduce
from hloipu_runtime.kernels.contractions.contraction import free_dims
from hloipu_runtime.program.mapping import Mapping, Sizes, Tiles, whole_box


@lowers("dot")
def _dot(context: LoweringContext) -> Sequence[Value]:
    context.builder.begin_product()
    return [
        dot(
            context,
            dot_codelet(context.instruction),
            context.tile_tensor(0),
            context.tile_tensor(1),
        )
    ]


def dot(context: LoweringContext, codelet: Dot, lhs: TileTensor, rhs: TileTensor) -> TileTensor:
    """Compute a dot product on the cheapest grid found; in slices where memory is scarce."""
    builder = context.builder
    left, right = (Tensor(x.element_type, x.shape) for x in (lhs, rhs))
    result = Tensor(*context.results[0])
    tuning = builder.tuning_here
    placed = dot_placement(builder.machine, tuning, codelet, left, right, result)
    builder.explains(
        lambda: planned_dot(
            builder.origin,
            builder.machine,
            tuning,
            codelet,
            (left, right),
            result,
            placed.plan,
        )
    )
    grid = placed.placement.tiles
    first = builder.layout.first_tiles.get(
        (context.computation.name, context.instruction.name, 0), 0
    )
    first = max(0, min(first, builder.tile_count - grid.count))
    placed = placed._replace(
        placement=Placement(Tiles(grid.extents, grid.strides, first), placed.placement.labels)
    )
    if placed.plan.slices == 1:
        return _once(context, placed, lhs, rhs, result)
    return _in_slices(context, placed, codelet, (lhs, rhs), result)


def _once(
    context: LoweringContext, placed: PlacedDot, lhs: TileTensor, rhs: TileTensor, result: Tensor
) -> TileTensor:
    kind, shape = result.element_type, result.shape
    made = (placed.codelet.element_type, shape)
    if placed.codelet.part:
        made = (placed.codelet.element_type, (placed.result.shape[0], *shape))
    (found,) = context.builder.compute(
        placed.codelet, [lhs, rhs], [made], placement=placed.placement
    )
    return combined(context, found, kind, shape) if placed.codelet.part else found


def _in_slices(
    context: LoweringContext,
    placed: PlacedDot,
    codelet: Dot,
    operands: tuple[TileTensor, TileTensor],
    result: Tensor,
) -> TileTensor:
    """Compute slices of rows or columns one after the other, and put them together."""
    builder = context.builder
    number = 1 if placed.plan.slices_columns else 0
    whole = operands[number]
    batch, contracting = (
        (codelet.rhs_batch, codelet.rhs_contracting)
        if number
        else (codelet.lhs_batch, codelet.lhs_contracting)
    )
    dimension = free_dims(len(whole.shape), batch, contracting)[0]
    at = len(batch)
    if number:
        left = operands[0].shape
        at = len(left) - len(codelet.lhs_contracting)
    size = whole.shape[dimension]
    step = -(-size // placed.plan.slices)
    parts: list[TileTensor] = []
    from hloipu_compiler.lowering.ops.slices import put_together, resized, spread
    from hloipu_compiler.planners.slicing import Slices

    for low in range(0, size, step):
        high = min(size, low + step)
        shape = resized(whole.shape, dimension, high - low)
        starts = resized((0,) * len(shape), dimension, low)
        slice_result = Tensor(result.element_type, resized(result.shape, at, high - low))
        tensors = [Tensor(x.element_type, x.shape) for x in operands]
        tensors[number] = Tensor(whole.element_type, shape)
        indices = placed.codelet.indexing(tensors, [_pieces(placed, slice_result)]).operands[number]
        mapping = Mapping(placed.placement.tiles, placed.placement.spans(indices, shape))
        if low == 0:
            whole = spread(builder, whole, Slices(dimension, step, mapping))
        piece = (whole, whole.shape, whole_box(shape), starts)
        slice_ = builder.assembled(whole.element_type, shape, [piece], mapping=mapping)
        other = operands[1 - number]
        pair = (other, slice_) if number else (slice_, other)
        parts.append(_once(context, placed, *pair, slice_result))
    return put_together(builder, parts, at, result)


def _pieces(placed: PlacedDot, made: Tensor) -> Tensor:
    """Return what the codelet makes of a slice."""
    if not placed.codelet.part:
        return made
    return Tensor(placed.result.element_type, (placed.result.shape[0], *made.shape))


def combined(
    context: LoweringContext,
    partials: TileTensor,
    kind: str,
    shape: tuple[int, ...],
    *,
    of_convolution: bool = False,
) -> TileTensor:
    """Add partial sums along their leading dimensions."""
    zero = context.builder.scalar(Scalar(partials.element_type, zero_text(partials.element_type)))
    leading = tuple(range(len(partials.shape) - len(shape)))
    add = Reduce(leading, "add", None, (kind,), of_convolution=of_convolution)
    placement = _adding_place(context.builder, add, partials, kind, shape)
    return context.builder.compute(add, [partials, zero], [(kind, shape)], placement=placement)[0]


def _adding_place(
    builder: Builder, add: Reduce, partials: TileTensor, kind: str, shape: Sizes
) -> Placement | None:
    """Return where to add pieces: on the tiles that have them, or where the sum is wished."""
    lying = builder.variables[partials.variable].mapping
    near = gathered(lying, shape)
    if near is None or not builder.preferences:
        return near
    tensors = [Tensor(partials.element_type, partials.shape), Tensor(partials.element_type, ())]
    result = Tensor(kind, shape)
    indexing = add.indexing(tensors, [result])
    preferred = candidates(indexing, (), builder.preferences, -(-near.tiles.count // 2), ())
    if not preferred:
        return near
    op = MovableOp(
        add,
        ((tensors[0], lying),),
        (result,),
        tuple(builder.preferences),
        builder.iterations,
        builder.code_price,
        tuple(tensors[1:]),
    )
    return cheapest(builder.machine, op, [near, *preferred])
