"""Lowering of dynamic slice and gather, of dynamic update and scatter.

No exchange depends on data: every tile has the updates, or its part of their width, and writes
what falls into its range. What reads a place that data decides either has all of the dimension
on each tile, or each tile offers what it has of it and the offers are put together.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING

from hloipu_compiler.ir.shapes import array_shape
from hloipu_compiler.lowering.core.alternatives import cheapest
from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.context import LoweringContext, lowers
from hloipu_compiler.lowering.core.scalars import zero_text
from hloipu_compiler.lowering.core.values import Scalar, Spread, TileTensor, Value
from hloipu_compiler.lowering.ops.movement import is_window, kept_dimensions, reshaped_value
from hloipu_compiler.lowering.ops.reductions import reduce
from hloipu_compiler.planners.indexed_grids import (
    Option,
    best_of,
    planned_options,
)
from hloipu_compiler.planners.placing import Placement, moved
from hloipu_compiler.planners.reading_plans import gather_codelet, readings
from hloipu_compiler.planners.stages import PlacedOperand, Work
from hloipu_compiler.planners.writing_plans import windows_cut, with_windows, writings
from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.codelets.core.constants import text_node, value_of
from hloipu_runtime.codelets.core.expression_form import Expression, Node, monoid_of
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.indexed.or_bits import OrBits
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.codelets.ops.move import Copy, StridedSlice
from hloipu_runtime.codelets.ops.reduce import Reduce
from hloipu_runtime.machine.charges import over
from hloipu_runtime.program.mapping import Mapping, Sizes

if TYPE_CHECKING:
    from hloipu_runtime.codelets.indexed.scatter import Scatter

_MOST_SHARES = 256
"""Of the updates of a scatter: few enough to try powers of two."""


@lowers("dynamic-update-slice")
def _dynamic_update_slice(context: LoweringContext) -> Sequence[Value]:
    window, dropped = _window(context)
    operands = [context.leaf(0), window, *starts_of(context, 2)]
    from hloipu_runtime.codelets.indexed.dynamic_slice import DynamicUpdateSlice

    written = partial(_written, context, DynamicUpdateSlice(dropped), operands, 1)
    starts = _constant_starts(context)
    if starts is None:
        return written()
    return cheapest(context.builder, [written, partial(_put, context, starts)])


def _window(context: LoweringContext) -> tuple[TileTensor, Sizes]:
    """Return what is put, and the dimensions of one element that it lacks."""
    leaf = context.leaf(1)
    if isinstance(leaf, Spread) and isinstance(leaf.source, TileTensor) and is_window(leaf):
        kept = leaf.dimensions
        return leaf.source, tuple(d for d in range(len(leaf.shape)) if d not in kept)
    return context.tile_tensor(1), ()


def _constant_starts(context: LoweringContext) -> Sizes | None:
    """Return where an update is put if that is known, so that it lies inside."""
    whole, window = context.operand_shape(0).dimensions, context.operand_shape(1).dimensions
    leaves = [context.leaf(n) for n in range(2, len(context.operands))]
    starts = [int(value_of(x.text, x.element_type)) for x in leaves if isinstance(x, Scalar)]
    if len(starts) != len(whole) or not prod(window):
        return None
    return tuple(max(0, min(at, n - w)) for at, n, w in zip(starts, whole, window, strict=True))


def _put(context: LoweringContext, starts: Sizes) -> Sequence[Value] | None:
    """Exchange an update to a place that is known, with no copy of it on every tile."""
    leaf, (window, _) = context.leaf(0), _window(context)
    shape = context.operand_shape(1).dimensions
    base = _base(context, leaf, None)
    if base.variable == window.variable:
        return None
    box = tuple((at, at + n) for at, n in zip(starts, shape, strict=True))
    shift = tuple(-at for at in starts)
    piece = (window, shape, box, shift)
    return [context.builder.assembled(leaf.element_type, leaf.shape, [piece], base)]


@lowers("scatter")
def _scatter(context: LoweringContext) -> Sequence[Value]:
    read = context.attributes.integers
    count = len(context.operands) // 2
    body = context.expression(context.attributes.text("to_apply"))
    monoid = monoid_of(body) or "" if count == 1 else ""
    if count == 1 and body.results == (1,):
        monoid = "assign"
    from hloipu_runtime.codelets.indexed.scatter import Scatter
    from hloipu_runtime.kernels.scatter import ScatterDimensions

    codelet = Scatter(
        ScatterDimensions(
            read("update_window_dims"),
            read("inserted_window_dims"),
            read("scatter_dims_to_operand_dims"),
            context.attributes.integer("index_vector_dim"),
            read("input_batching_dims"),
            read("scatter_indices_batching_dims"),
        ),
        monoid,
        None if monoid else body,
        tuple(kind for kind, _ in context.results),
        context.attributes.flag("unique_indices"),
        context.results[0][1],
    )
    operands = [
        *(context.leaf(n) for n in range(count)),
        *(context.tile_tensor(n) for n in range(count, len(context.operands))),
    ]
    whole = partial(_written, context, codelet, operands, count)
    shares = [partial(_in_shares, context, codelet, n) for n in _shares(codelet, operands)]
    return cheapest(context.builder, [whole, *shares]) if shares else whole()


def _shares(codelet: "Scatter", operands: Sequence[Value]) -> list[int]:
    """Return into how many shares the updates of a sum may be cut, each with a table of its own.

    Few rows with many updates each, as of a table of segments: every tile of such a row's columns
    looks at all updates. All tables together have no more rows than there are updates.
    """
    dims, (table, indices, updates) = codelet.dims, [x.shape for x in operands[:3]]
    batch = len(updates) - len(dims.update_window_dims)
    if (
        codelet.monoid != "add"
        or dims.input_batching_dims
        or dims.index_vector_dim < len(indices) - 1
        or dims.update_window_dims != tuple(range(batch, len(updates)))
        or not prod(updates)
    ):
        return []
    windows = prod(updates[:batch])
    rows = prod(table[d] for d in dims.scatter_dims_to_operand_dims)
    most = min(windows // max(1, rows), _MOST_SHARES)
    return [n for n in range(2, most + 1) if windows % n == 0 and n.bit_count() == 1]


def _in_shares(context: LoweringContext, codelet: "Scatter", shares: int) -> list[TileTensor]:
    """Scatter each share of the updates into zeros of its own, and add these to the operand."""
    from hloipu_runtime.kernels.scatter import ScatterDimensions

    builder, dims = context.builder, codelet.dims
    kind, shape = context.results[0]
    base, indices, updates = context.leaf(0), context.tile_tensor(1), context.tile_tensor(2)
    each = prod(updates.shape[: -len(dims.update_window_dims) or None]) // shares
    vector = indices.shape[-1:] if dims.index_vector_dim < len(indices.shape) else (1,)
    windows = tuple(updates.shape[d] for d in dims.update_window_dims)
    places = reshaped_value(builder, indices, (shares, each, *vector))
    terms = reshaped_value(builder, updates, (shares, each, *windows))
    in_shares = replace(
        codelet,
        dims=ScatterDimensions(
            tuple(range(2, 2 + len(windows))),
            tuple(d + 1 for d in dims.inserted_window_dims),
            tuple(d + 1 for d in dims.scatter_dims_to_operand_dims),
            2,
            (0,),
            (0,),
        ),
        whole=(shares, *shape),
    )
    zero = Scalar(kind, zero_text(kind))
    tables = Spread(zero, (), (shares, *shape))
    (sums,) = _written(context, in_shares, [tables, places, terms], 1)
    (total,) = reduce(context, Reduce((0,), "add", None, (kind,)), [sums, builder.scalar(zero)])
    filled = base.source if isinstance(base, Spread) else None
    if isinstance(filled, Scalar) and not value_of(filled.text, kind):
        return [total]
    axes = tuple(range(len(shape)))
    node = Node("add", (0, 1), kind)
    both = Elementwise(Expression((kind, kind), (node,), (2,)), (axes, axes), len(axes))
    return builder.compute(both, [builder.tile_tensor(base), total], [(kind, shape)])


def _written(
    context: LoweringContext, codelet: Codelet, operands: Sequence[Value], count: int
) -> list[TileTensor]:
    """Write into the first of `count` operands, or a copy of it; the others are copied."""
    builder = context.builder
    results = [Tensor(x.element_type, x.shape) for x in operands[:count]]
    shapes = [(tensor.element_type, tensor.shape) for tensor in results]
    if not results[0].elements:
        return builder.compute(codelet, [builder.tile_tensor(x) for x in operands], shapes)
    given = tuple(lying(builder, x) for x in operands)
    work = Work(builder.machine, codelet, given, tuple(results), builder.code_price)
    chosen = _chosen(context, work, writings(work, count))
    placement = settled(builder, chosen)
    data = [_base(context, operands[0], placement)]
    data += [builder.tile_tensor(x) for x in operands[1:count]]
    windows = [builder.tile_tensor(x) for x in operands[count:]]
    last_uses = [True] + [False] * (len(operands) - 1)
    for some in _slices(context, work, placement, windows, chosen.slices):
        data = builder.compute(
            codelet, [*data, *some], shapes, last_uses=last_uses, placement=placement
        )
    return data


def _slices(
    context: LoweringContext,
    work: Work,
    placement: Placement,
    windows: Sequence[TileTensor],
    slices: int,
) -> Iterator[list[TileTensor]]:
    """Yield indices and updates of so many slices of the windows, in their order."""
    cut = windows_cut(work) if slices > 1 else ()
    if not cut:
        yield list(windows)
        return
    from hloipu_compiler.lowering.ops.slices import resized, slice_at, spread
    from hloipu_compiler.planners.slicing import Slices

    builder, count = context.builder, len(work.results)
    size = windows[0].shape[cut[0]]
    step = over(size, slices)
    wholes = list(windows)
    for low in range(0, size, step):
        shapes = [
            resized(x.shape, d, min(size, low + step) - low)
            for x, d in zip(windows, cut, strict=True)
        ]
        part = with_windows(work, shapes)
        some = []
        for n, (shape, d) in enumerate(zip(shapes, cut, strict=True)):
            spans = placement.spans(part.indexing.operands[count + n], shape)
            mapping = Mapping(placement.tiles, spans)
            if low == 0:
                wholes[n] = spread(builder, wholes[n], Slices(d, step, mapping))
            some.append(slice_at(builder, wholes[n], d, low, shape, mapping))
        yield some


def _chosen(context: LoweringContext, work: Work, options: Sequence[Option]) -> Option:
    """Return the best of some options, which are told to users."""
    chosen, origin = best_of(work.machine, options), context.builder.origin
    context.builder.explains(
        lambda: planned_options(work, origin, context.instruction.opcode, chosen, options)
    )
    return chosen


def _base(context: LoweringContext, leaf: Value, placement: Placement | None) -> TileTensor:
    """Return a value of the leaf's that may be overwritten, on the grid's tiles or where it is."""
    builder, shape = context.builder, leaf.shape
    if isinstance(leaf, Spread) and isinstance(leaf.source, Scalar):
        kind = leaf.element_type
        node = text_node(leaf.source.text, kind)
        filled = Elementwise(Expression((), (node,), (0,)), (), len(shape))
        return builder.compute(filled, [], [(kind, shape)], placement=placement)[0]
    base = builder.tile_tensor(leaf)
    result = [(base.element_type, base.shape)]
    tensor = base.tensor
    if placement is not None:
        indices = Copy().indexing([tensor], [tensor]).results[0]
        mapping = Mapping(placement.tiles, placement.spans(indices, shape))
        if builder.variables[base.variable].mapping != mapping:
            from hloipu_compiler.lowering.core.views import seen_as

            return seen_as(builder, [base], shape, mapping=mapping)[0]
    if context.last_uses[0] and base.variable in builder.scope.owned:
        return base
    return builder.compute(Copy(), [base], result, placement=placement)[0]


def lying(builder: Builder, leaf: Value) -> PlacedOperand:
    """Return where a leaf lies; constant numbers are written where they are used."""
    tensor = Tensor(leaf.element_type, leaf.shape)
    if isinstance(leaf, TileTensor):
        return PlacedOperand(tensor, builder.variables[leaf.variable].mapping)
    if isinstance(leaf, Spread) and isinstance(leaf.source, TileTensor):
        return PlacedOperand(tensor, builder.default_mapping(leaf.element_type, leaf.shape))
    return PlacedOperand(tensor, None)


def settled(builder: Builder, option: Option) -> Placement:
    """Return the chosen grid; small ones do not all begin on tile 0."""
    count = option.placement.tiles.count
    if option.stays or 2 * count > builder.tile_count:
        return option.placement
    return moved(option.placement, builder.first_tile(count), builder.tile_count)


def starts_of(context: LoweringContext, first: int) -> list[TileTensor]:
    """Return the scalars that say where, from operand `first` on.

    Dumps before 2019 print them as one vector.
    """
    numbers = range(first, len(context.operands))
    if len(numbers) != 1 or not context.operand_shape(first).dimensions:
        return [context.tile_tensor(n) for n in numbers]
    builder, vector = context.builder, context.tile_tensor(first)
    kind = vector.element_type
    singles = [
        builder.compute(StridedSlice((k,), (1,)), [vector], [(kind, (1,))])[0]
        for k in range(vector.shape[0])
    ]
    from hloipu_compiler.lowering.core.views import seen_as

    return seen_as(builder, singles, ()) if singles else []


@lowers("dynamic-slice")
def _dynamic_slice(context: LoweringContext) -> Sequence[Value]:
    shape = context.shape.dimensions
    source = context.leaf(0)
    if isinstance(source, Spread) and isinstance(source.source, Scalar):
        return [Spread(source.source, (), shape)]
    tensor = context.tile_tensor(0)
    if tensor.shape == shape:
        return [tensor]
    moving = [d for d, n in enumerate(shape) if n != tensor.shape[d]]
    operands = [tensor, *starts_of(context, 1)]
    from hloipu_runtime.codelets.indexed.dynamic_slice import DynamicSlice

    kept = _kept(context)
    if kept is None:
        return [_read(context, DynamicSlice(), moving, operands, shape)]
    dropped = tuple(d for d in range(len(shape)) if d not in kept)
    short = tuple(shape[d] for d in kept)
    return [Spread(_read(context, DynamicSlice(dropped), moving, operands, short), kept, shape)]


def _kept(context: LoweringContext) -> tuple[int, ...] | None:
    """Return the dimensions of a slice that are left by all who read it; None: not the same."""
    computation = context.computation
    readers = [
        computation.instructions[n]
        for n in computation.users[computation.position[context.instruction.name]]
    ]
    if not readers or any(op.opcode not in ("reshape", "bitcast") for op in readers):
        return None
    left = {array_shape(op.shape).dimensions for op in readers}
    return kept_dimensions(context.shape.dimensions, left.pop()) if len(left) == 1 else None


@lowers("gather")
def _gather(context: LoweringContext) -> Sequence[Value]:
    source = context.leaf(0)
    if isinstance(source, Spread) and isinstance(source.source, Scalar):
        return [Spread(source.source, (), context.shape.dimensions)]
    codelet, moving = gather_codelet(context.instruction, source.shape)
    operands = [context.tile_tensor(0), context.tile_tensor(1)]
    return [_read(context, codelet, moving, operands, context.shape.dimensions)]


def _read(
    context: LoweringContext,
    direct: Codelet,
    moving: Sequence[int],
    operands: Sequence[TileTensor],
    shape: Sizes,
) -> TileTensor:
    """Read in one step, or in candidates that a second step puts together: what takes less."""
    builder, kind = context.builder, context.shape.element_type.name
    if not prod(shape):
        return builder.compute(direct, operands, [(kind, shape)])[0]
    given = tuple(lying(builder, tensor) for tensor in operands)
    work = Work(builder.machine, direct, given, (Tensor(kind, shape),), builder.code_price)
    chosen = _chosen(context, work, readings(work, tuple(moving)))
    candidates = builder.compute(
        chosen.codelet,
        operands,
        [(kind, chosen.results[0].shape)],
        placement=settled(builder, chosen),
    )
    if chosen.codelet == direct:
        return candidates[0]
    return builder.compute(OrBits(), candidates, [(kind, shape)])[0]
