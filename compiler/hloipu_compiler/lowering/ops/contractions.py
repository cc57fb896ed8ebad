"""Lowering of dot products."""

from collections.abc import Iterator, Sequence
from collections.abc import Mapping as ByNumber
from dataclasses import replace
from typing import NamedTuple

from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.context import LoweringContext, lowers
from hloipu_compiler.lowering.core.scalars import zero_text
from hloipu_compiler.lowering.core.values import Scalar, TileTensor, Value
from hloipu_compiler.planners.combining import combining
from hloipu_compiler.planners.dot_grids import COLUMNS, DEPTH, DotWork
from hloipu_compiler.planners.dot_placement import (
    PlacedDot,
    dot_codelet,
    dot_placement,
    planned_dot,
)
from hloipu_compiler.planners.op_grids import MovableOp, candidates, cheapest
from hloipu_compiler.planners.placing import Placement, gathered
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.dense.dot import Dot
from hloipu_runtime.codelets.ops.reduce import Reduce
from hloipu_runtime.kernels.contractions.contraction import free_dims
from hloipu_runtime.program.mapping import Mapping, Sizes, Tiles


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
    result = Tensor(*context.results[0])
    work = DotWork(builder.machine, codelet, lhs.tensor, rhs.tensor, result, builder.tuning_here)
    placed = dot_placement(work)
    builder.explains(lambda: planned_dot(builder.origin, work, placed.plan))
    grid = placed.placement.tiles
    first = builder.layout.first_tiles.get(
        (context.computation.name, context.instruction.name, 0), 0
    )
    first = max(0, min(first, builder.tile_count - grid.count))
    placed = placed._replace(
        placement=Placement(Tiles(grid.extents, grid.strides, first), placed.placement.labels)
    )
    given = _DotOnGrid(context, placed, codelet, (lhs, rhs), result)
    if placed.plan.slices == 1:
        return _once(given, lhs, rhs, result)
    return _added_up(given) if placed.plan.sliced == DEPTH else _in_slices(given)


class _DotOnGrid(NamedTuple):
    """A dot product on its grid, and its operands."""

    context: LoweringContext
    placed: PlacedDot
    codelet: Dot
    operands: tuple[TileTensor, TileTensor]
    result: Tensor


def _once(given: _DotOnGrid, lhs: TileTensor, rhs: TileTensor, result: Tensor) -> TileTensor:
    context, placed = given.context, given.placed
    kind, shape = result.element_type, result.shape
    kind_and_shape = (placed.codelet.element_type, shape)
    if placed.codelet.part:
        kind_and_shape = (placed.codelet.element_type, (placed.result.shape[0], *shape))
    (product,) = context.builder.compute(
        placed.codelet, [lhs, rhs], [kind_and_shape], placement=placed.placement
    )
    return combined(context, product, kind, shape) if placed.codelet.part else product


def _in_slices(given: _DotOnGrid) -> TileTensor:
    """Compute slices of rows or columns one after the other, and put them together."""
    context, placed, codelet, operands, result = given
    number = 1 if placed.plan.sliced == COLUMNS else 0
    batch, contracting = (
        (codelet.rhs_batch, codelet.rhs_contracting)
        if number
        else (codelet.lhs_batch, codelet.lhs_contracting)
    )
    dimension = free_dims(len(operands[number].shape), batch, contracting)[0]
    at = len(batch)
    if number:
        at = len(operands[0].shape) - len(codelet.lhs_contracting)
    parts: list[TileTensor] = []
    from hloipu_compiler.lowering.ops.slices import put_together, resized

    size = operands[number].shape[dimension]
    for low, pair in _slices_of(given, {number: dimension}, at):
        high = min(size, low + -(-size // placed.plan.slices))
        slice_result = Tensor(result.element_type, resized(result.shape, at, high - low))
        parts.append(_once(given, *pair, slice_result))
    return put_together(context.builder, parts, at, result)


def _added_up(given: _DotOnGrid) -> TileTensor:
    context, placed, codelet, _, result = given
    from hloipu_runtime.codelets.dense.dot import AddedDot

    builder, n = context.builder, placed.plan.sliced_depth
    dimensions = {0: codelet.lhs_contracting[n], 1: codelet.rhs_contracting[n]}
    kind = placed.codelet.element_type
    kind_and_shape = (kind, placed.result.shape)
    sums: list[TileTensor] = []
    for _, pair in _slices_of(given, dimensions):
        sums = builder.compute(
            AddedDot(placed.codelet) if sums else placed.codelet,
            [*pair, *sums],
            [kind_and_shape],
            last_uses=(False, False, True) if sums else (),
            placement=placed.placement,
        )
    return combined(context, sums[0], *result) if placed.codelet.part else sums[0]


def _slices_of(
    given: _DotOnGrid, dimensions: ByNumber[int, int], at: int = -1
) -> Iterator[tuple[int, tuple[TileTensor, TileTensor]]]:
    """Yield where slices begin, and both operands, brought to the tiles as far as they are cut.

    `dimensions`: of the operands that are cut, by their numbers. `at`: the dimension of the result
    that is cut with them; -1: none.
    """
    context, placed, _, operands, result = given
    from hloipu_compiler.lowering.ops.slices import resized, slice_at, spread
    from hloipu_compiler.planners.slicing import Slices

    builder = context.builder
    whole = list(operands)
    size = next(operands[number].shape[d] for number, d in dimensions.items())
    step = -(-size // placed.plan.slices)
    for low in range(0, size, step):
        high = min(size, low + step)
        shapes = [
            resized(tensor.shape, dimensions[number], high - low)
            if number in dimensions
            else tensor.shape
            for number, tensor in enumerate(operands)
        ]
        tensors = [
            Tensor(tensor.element_type, y) for tensor, y in zip(operands, shapes, strict=True)
        ]
        piece_result = placed.result
        if at >= 0:
            piece_result = _pieces(
                placed, Tensor(result.element_type, resized(result.shape, at, high - low))
            )
        indexing = placed.codelet.indexing(tensors, [piece_result])
        pair = list(operands)
        for number, dimension in dimensions.items():
            shape = shapes[number]
            spans = placed.placement.spans(indexing.operands[number], shape)
            mapping = Mapping(placed.placement.tiles, spans)
            if low == 0:
                whole[number] = spread(builder, whole[number], Slices(dimension, step, mapping))
            pair[number] = slice_at(builder, whole[number], dimension, low, shape, mapping)
        yield low, (pair[0], pair[1])


def _pieces(placed: PlacedDot, slice_result: Tensor) -> Tensor:
    if not placed.codelet.part:
        return slice_result
    return Tensor(placed.result.element_type, (placed.result.shape[0], *slice_result.shape))


def combined(
    context: LoweringContext,
    partials: TileTensor,
    kind: str,
    shape: tuple[int, ...],
    *,
    of_convolution: bool = False,
) -> TileTensor:
    """Add partial sums along their leading dimensions, in the stages that cost least."""
    builder = context.builder
    zero = builder.scalar(Scalar(partials.element_type, zero_text(partials.element_type)))
    leading = tuple(range(len(partials.shape) - len(shape)))
    add = Reduce(leading, "add", None, (kind,), of_convolution=of_convolution)
    lying = builder.variables[partials.variable].mapping
    planned = combining(builder.machine, add, partials.tensor, lying, builder.code_price)
    for stage in planned.stages[:-1] if planned else ():
        made = stage.results
        (partials,) = builder.compute(stage.codelet, [partials], made, placement=stage.placement)
    leading = tuple(range(len(partials.shape) - len(shape)))
    add = replace(add, dimensions=leading)
    placement = _adding_place(builder, add, partials, kind, shape)
    return builder.compute(add, [partials, zero], [(kind, shape)], placement=placement)[0]


def _adding_place(
    builder: Builder, add: Reduce, partials: TileTensor, kind: str, shape: Sizes
) -> Placement | None:
    """Return where to add pieces: on the tiles that have them, or where the sum is wished."""
    lying = builder.variables[partials.variable].mapping
    near = gathered(lying, shape)
    if near is None or not builder.preferences:
        return near
    tensors = [partials.tensor, Tensor(partials.element_type, ())]
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
