"""Lowering of ops that move elements: broadcasts, reshapes, transposes, slices, pads."""

from collections.abc import Sequence
from math import prod

import numpy as np

from hloipu_compiler.errors import CodegenError
from hloipu_compiler.hlo.literals.values import ElidedConstantError
from hloipu_compiler.interpret.planning.constants import constant_leaves
from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.context import LoweringContext, lowers
from hloipu_compiler.lowering.core.values import Scalar, Spread, TileTensor, Token, Value
from hloipu_compiler.planners.layout_propagation import reshaped_in_place
from hloipu_compiler.planners.op_grids import MovableOp, met_by
from hloipu_compiler.planners.placing import moved
from hloipu_compiler.planners.redistribution import redistribution
from hloipu_runtime.codelets.core.constants import text_node, text_of
from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.codelets.ops.move import Reverse, StridedSlice, Transpose
from hloipu_runtime.costs.exchange_form import copy_charge
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.mapping import Mapping, Sizes, whole_box


@lowers("constant")
def _constant(context: LoweringContext) -> Sequence[Value]:
    kinds = [kind for kind, _ in context.results]
    if kinds == ["token"]:
        return [Token()]
    try:
        arrays = constant_leaves(context.instruction)
    except ElidedConstantError:
        context.builder.elided.append(context.instruction.name)
        return [
            context.builder.constant(
                np.broadcast_to(np.zeros((), storage_dtype(kind)), shape), kind
            )
            for kind, shape in context.results
        ]
    return [
        context.builder.constant(array, kind) if array.shape else Scalar(kind, text_of(array, kind))
        for array, kind in zip(arrays, kinds, strict=True)
    ]


@lowers("copy", "opt-barrier", "domain", "add-dependency")
def _forwarded(context: LoweringContext) -> Sequence[Value]:
    return context.operands[0]


@lowers("iota")
def _iota(context: LoweringContext) -> Sequence[Value]:
    from hloipu_runtime.codelets.ops.generate import Iota

    codelet = Iota(context.attributes.integer("iota_dimension"), context.shape.element_type.name)
    return context.builder.compute(codelet, [], context.results)


@lowers("broadcast")
def _broadcast(context: LoweringContext) -> Sequence[Value]:
    dimensions = context.attributes.integers("dimensions")
    shape = context.shape.dimensions
    match context.leaf(0):
        case Scalar() | TileTensor() as source:
            return [Spread(source, dimensions, shape)]
        case Spread() as spread:
            return [Spread(spread.source, tuple(dimensions[d] for d in spread.dimensions), shape)]
        case _:
            raise CodegenError("E0470", f"{context.instruction.name}: a token cannot be broadcast")


@lowers("reshape", "bitcast", "dynamic-reshape")
def _reshape(context: LoweringContext) -> Sequence[Value]:
    shape = context.shape.dimensions
    leaf = context.leaf(0)
    if isinstance(leaf, Spread) and isinstance(leaf.source, Scalar):
        return [Spread(leaf.source, (), shape)]
    if isinstance(leaf, Scalar):
        return [Spread(leaf, (), shape)]
    if isinstance(leaf, Spread) and leaf.source.shape == shape and is_window(leaf):
        return [leaf.source]
    source = context.tile_tensor(0)
    if source.shape == shape:
        return [source]
    if _is_put_as_it_lies(context) and (places := kept_dimensions(shape, source.shape)) is not None:
        return [Spread(source, places, shape)]
    return [reshaped_value(context.builder, source, shape)]


def kept_dimensions(shape: Sizes, short: Sizes) -> tuple[int, ...] | None:
    """Return which dimensions of a shape a shorter one has, the others of one element; or None."""
    kept: list[int] = []
    for d, size in enumerate(shape):
        if len(kept) < len(short) and short[len(kept)] == size:
            kept.append(d)
        elif size != 1:
            return None
    return tuple(kept) if len(kept) == len(short) < len(shape) else None


def is_window(leaf: Spread) -> bool:
    """Whether a leaf is a tensor with dimensions of one element more, and repeats nothing."""
    return isinstance(leaf.source, TileTensor) and prod(leaf.source.shape) == prod(leaf.shape)


def _is_put_as_it_lies(context: LoweringContext) -> bool:
    """Whether a result is only put into larger ones, which needs no copy in its shape."""
    at = context.computation.position[context.instruction.name]
    readers = [context.computation.instructions[n] for n in context.computation.users[at]]
    return all(
        op.opcode == "dynamic-update-slice" and op.operands[0] != at and op.operands[1] == at
        for op in readers
    )


@lowers("transpose")
def _transpose(context: LoweringContext) -> Sequence[Value]:
    permutation = context.attributes.integers("dimensions")
    leaf = context.leaf(0)
    if isinstance(leaf, Spread):
        back = {d: n for n, d in enumerate(permutation)}
        return [
            Spread(leaf.source, tuple(back[d] for d in leaf.dimensions), context.shape.dimensions)
        ]
    return [_transposed(context, context.tile_tensor(0), permutation)]


def _transposed(
    context: LoweringContext, source: TileTensor, permutation: tuple[int, ...]
) -> TileTensor:
    """Transpose on the cheapest grid."""
    builder, results = context.builder, context.results
    if not prod(source.shape):
        return builder.compute(Transpose(permutation), [source], results)[0]
    tensor = source.tensor
    lying = builder.variables[source.variable].mapping
    from hloipu_compiler.planners.transposing import (
        planned_transpose,
        preferred_first,
        transpositions,
    )

    stages = transpositions(builder.machine, tensor, permutation, lying, builder.code_price)
    if builder.preferences:
        op = MovableOp(
            Transpose(permutation),
            ((tensor, lying),),
            tuple(Tensor(*result) for result in results),
            tuple(builder.preferences),
            builder.iterations,
            builder.code_price,
        )
        stages = preferred_first(builder.machine, stages, op)
    builder.explains(lambda: planned_transpose(builder.origin, tensor, stages))
    placement = stages[0].placement
    if placement.tiles != lying.tiles and 2 * placement.tiles.count <= builder.tile_count:
        first = builder.first_tile(placement.tiles.count)
        placement = moved(placement, first, builder.tile_count)
    return builder.compute(Transpose(permutation), [source], results, placement=placement)[0]


@lowers("reverse")
def _reverse(context: LoweringContext) -> Sequence[Value]:
    dimensions = context.attributes.integers("dimensions")
    return context.builder.compute(Reverse(dimensions), [context.tile_tensor(0)], context.results)


@lowers("slice")
def _slice(context: LoweringContext) -> Sequence[Value]:
    ranges = context.attributes.slice_ranges()
    starts, strides = tuple(r.start for r in ranges), tuple(r.stride for r in ranges)
    shape = context.shape.dimensions
    leaf = context.leaf(0)
    if isinstance(leaf, Spread) and isinstance(leaf.source, Scalar):
        return [Spread(leaf.source, (), shape)]
    source = context.tile_tensor(0)
    if all(step == 1 or n < 2 for step, n in zip(strides, shape, strict=True)):
        piece = (source, source.shape, whole_box(shape), starts)
        return [context.builder.assembled(source.element_type, shape, [piece])]
    return context.builder.compute(StridedSlice(starts, strides), [source], context.results)


@lowers("concatenate")
def _concatenate(context: LoweringContext) -> Sequence[Value]:
    (dimension,) = context.attributes.integers("dimensions")
    shape = context.shape.dimensions
    pieces = []
    first = 0
    for number in range(len(context.operands)):
        leaf = context.tile_tensor(number)
        size = leaf.shape[dimension]
        if prod(leaf.shape):
            box = tuple(
                (first, first + size) if d == dimension else (0, n) for d, n in enumerate(shape)
            )
            shift = tuple(-first if d == dimension else 0 for d in range(len(shape)))
            pieces.append((leaf, leaf.shape, box, shift))
        first += size
    return [context.builder.assembled(context.shape.element_type.name, shape, pieces)]


@lowers("pad")
def _pad(context: LoweringContext) -> Sequence[Value]:
    padding = tuple((p.low, p.high, p.interior) for p in context.attributes.padding())
    source, shape = context.tile_tensor(0), context.shape.dimensions
    if any(interior and n > 1 for (_, _, interior), n in zip(padding, source.shape, strict=True)):
        from hloipu_runtime.codelets.ops.join import Pad

        return context.builder.compute(
            Pad(padding), [source, context.tile_tensor(1)], context.results
        )
    kind = source.element_type
    same = Expression((kind,), (), (0,))
    fill = context.leaf(1)
    if isinstance(fill, Scalar):
        node = text_node(fill.text, kind)
        codelet = Elementwise(Expression((), (node,), (0,)), (), len(shape))
        (base,) = context.builder.compute(codelet, [], context.results)
    else:
        codelet = Elementwise(same, ((),), len(shape))
        (base,) = context.builder.compute(codelet, [context.tile_tensor(1)], context.results)
    box = tuple(
        (max(low, 0), max(max(low, 0), min(low + n, total)))
        for (low, _, _), n, total in zip(padding, source.shape, shape, strict=True)
    )
    if any(low >= high for low, high in box):
        return [base]
    shift = tuple(-low for low, _, _ in padding)
    return [context.builder.assembled(kind, shape, [(source, source.shape, box, shift)], base)]


def reshaped_value(builder: Builder, source: TileTensor, shape: Sizes) -> TileTensor:
    """Return a value in another shape: a copy on each tile if that is cheapest, or an exchange."""
    lying = builder.variables[source.variable].mapping
    staying = reshaped_in_place(lying, source.shape, shape)
    mapping = _cheapest(builder, source, shape, staying)
    if mapping is None:
        mapping = builder.default_mapping(source.element_type, shape)
    variable = builder.variable(source.element_type, shape, mapping)
    value = builder.value(source.element_type, shape)
    box, zeros = whole_box(shape), (0,) * len(shape)
    transfer = builder.transfer(source, variable, shape, box, zeros)
    definition = s.Definition(variable, value, None, (s.Piece(source.value, shape, box, zeros),))
    if mapping == staying:
        # Nothing crosses tiles, so that none waits for another.
        builder.emit(s.Exchange((transfer,), (definition,), builder.origin))
    else:
        builder.exchange([transfer], [definition])
    return TileTensor(value, variable, source.element_type, shape)


def _cheapest(
    builder: Builder, source: TileTensor, shape: Sizes, staying: Mapping | None
) -> Mapping | None:
    """Return where the reshaped value costs least, its way to those who wish it included."""
    preferences = met_by(builder.preferences, shape)
    wished = [
        demand.place(shape) if len(preferences) == 1 else demand.born for demand in preferences
    ]
    if staying is None:
        # What exchanges into each of them costs is alike: the first comes most often.
        return wished[0] if wished else None
    if not preferences:
        return staying
    costs = {staying: _copy_cycles(builder, source, staying)}
    for mapping in wished:
        costs.setdefault(mapping, _cycles(builder, source, shape, staying, mapping))
    for mapping in costs:
        costs[mapping] += sum(
            _cycles(builder, source, shape, mapping, demand.need) for demand in preferences
        )
    return min(costs, key=costs.__getitem__)


def _copy_cycles(builder: Builder, source: TileTensor, mapping: Mapping) -> int:
    size = prod(mapping.block) * ELEMENT_TYPES[source.element_type].bits // 8
    return copy_charge(builder.machine, size, 1).cycles


def _cycles(
    builder: Builder, source: TileTensor, shape: Sizes, lying: Mapping, wanted: Mapping
) -> int:
    return redistribution(
        builder.machine, source.element_type, shape, lying, wanted, builder.code_price
    ).price
