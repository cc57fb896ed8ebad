"""Lowering of elementwise ops, constants and broadcasts folded in, and of bits and sizes."""

from collections.abc import Sequence

from hloipu_compiler.errors import CodegenError
from hloipu_compiler.ir.ops import OPS, Trait
from hloipu_compiler.lowering.core.context import LoweringContext, lowers
from hloipu_compiler.lowering.core.expressions import node_parameters
from hloipu_compiler.lowering.core.values import Scalar, Spread, TileTensor, Value
from hloipu_runtime.codelets.core.constants import text_node
from hloipu_runtime.codelets.core.expression_form import Expression, Node
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.codelets.ops.move import BitcastConvert

_ELEMENTWISE = [
    name
    for name, op in OPS.items()
    if Trait.ELEMENTWISE in op.traits and Trait.LEGACY not in op.traits
]


@lowers(*_ELEMENTWISE)
def _elementwise(context: LoweringContext) -> Sequence[Value]:
    leaves = [context.leaf(n) for n in range(len(context.operands))]
    node = Node(
        context.instruction.opcode,
        (),
        context.shape.element_type.name,
        node_parameters(context.instruction),
    )
    return [apply(context, node, leaves, context.last_uses)]


def apply(
    context: LoweringContext, node: Node, leaves: Sequence[Value], last_uses: Sequence[bool]
) -> TileTensor:
    """Compute one node on leaves of the result's shape, or numbers, which are its arguments."""
    shape = context.shape.dimensions
    operands: list[TileTensor] = []
    labels: list[tuple[int, ...]] = []
    dies: list[bool] = []
    constants: list[Scalar] = []
    places: list[tuple[bool, int]] = []
    for leaf, last in zip(leaves, last_uses, strict=True):
        source, dimensions = sourced(leaf, len(shape), context)
        if isinstance(source, Scalar):
            places.append((True, len(constants)))
            constants.append(source)
            continue
        known = [
            n for n, tensor in enumerate(operands) if tensor == source and labels[n] == dimensions
        ]
        if known:
            places.append((False, known[0]))
            dies[known[0]] = dies[known[0]] and last
            continue
        places.append((False, len(operands)))
        operands.append(source)
        labels.append(dimensions)
        dies.append(last)
    count = len(operands)
    nodes = [text_node(scalar.text, scalar.element_type) for scalar in constants]
    arguments = tuple(n + count if constant else n for constant, n in places)
    nodes.append(node._replace(arguments=arguments))
    expression = Expression(
        tuple(tensor.element_type for tensor in operands), tuple(nodes), (count + len(nodes) - 1,)
    )
    codelet = Elementwise(expression, tuple(labels), len(shape))
    (result,) = context.builder.compute(
        codelet, operands, [(node.element_type, shape)], last_uses=dies
    )
    return result


def sourced(
    leaf: Value, rank: int, context: LoweringContext
) -> tuple[TileTensor | Scalar, tuple[int, ...]]:
    """Return what a leaf is read from, and which dimension of it each of the source's follows."""
    if isinstance(leaf, Spread):
        source = leaf.source
        # A dimension of one element may be spread to many: it follows none.
        if isinstance(source, Scalar) or all(
            n == leaf.shape[d] for n, d in zip(source.shape, leaf.dimensions, strict=True)
        ):
            return source, leaf.dimensions
    if isinstance(leaf, Scalar):
        return leaf, ()
    tensor = context.builder.tile_tensor(leaf)
    return tensor, tuple(range(rank)) if tensor.shape else ()


@lowers("map")
def _map(context: LoweringContext) -> Sequence[Value]:
    """Compute a function of elements: one expression on all of them."""
    expression = context.expression(context.attributes.called[0])
    rank = len(context.shape.dimensions)
    operands: list[TileTensor] = []
    labels: list[tuple[int, ...]] = []
    for number in range(len(context.operands)):
        source, dimensions = sourced(context.leaf(number), rank, context)
        operands.append(context.builder.tile_tensor(source))
        labels.append(dimensions)
    codelet = Elementwise(expression, tuple(labels), rank)
    return context.builder.compute(codelet, operands, context.results, last_uses=context.last_uses)


@lowers("bitcast-convert")
def _bitcast_convert(context: LoweringContext) -> Sequence[Value]:
    source, target = context.operand_shape(0), context.shape
    kinds = source.element_type.name, target.element_type.name
    if source.dimensions == target.dimensions and source.rank:
        node = Node("bitcast-convert", (), kinds[1])
        return [apply(context, node, [context.leaf(0)], context.last_uses)]
    return context.builder.compute(
        BitcastConvert(*kinds), [context.tile_tensor(0)], context.results
    )


@lowers("get-dimension-size")
def _get_dimension_size(context: LoweringContext) -> Sequence[Value]:
    """Sizes are static here: the run-time size is the size."""
    (dimension,) = context.attributes.integers("dimensions")
    return [Scalar("s32", str(context.operand_shape(0).dimensions[dimension]))]


@lowers("set-dimension-size")
def _set_dimension_size(context: LoweringContext) -> Sequence[Value]:
    """Keep the value where the size set is the whole size; a shorter one is a dynamic shape."""
    (dimension,) = context.attributes.integers("dimensions")
    whole, size, name = (
        context.shape.dimensions[dimension],
        context.leaf(1),
        context.instruction.name,
    )
    if isinstance(size, Scalar) and size.text == str(whole):
        return context.operands[0]
    size_text = size.text if isinstance(size, Scalar) else "a size that is known at run time only"
    raise CodegenError(
        "E0401",
        f"{name!r} sets a dimension of {whole} to {size_text}",
        hint="pad to the bound and mask instead: shapes are static here",
    )
