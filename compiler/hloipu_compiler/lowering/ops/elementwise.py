"""Lowering of the elementwise ops; constants go into the expression, broadcasts into the labels."""

from collections.abc import Sequence

from hloipu_compiler.ir.ops import OPS, Trait
from hloipu_compiler.lowering.core.context import Site, lowers
from hloipu_compiler.lowering.core.expressions import node_parameters
from hloipu_compiler.lowering.core.values import Held, Leaf, Scalar, Spread
from hloipu_runtime.codelets.core.constants import text_node
from hloipu_runtime.codelets.core.expression_form import Expression, Node
from hloipu_runtime.codelets.ops.elementwise import Elementwise

_ELEMENTWISE = [
    name
    for name, op in OPS.items()
    if Trait.ELEMENTWISE in op.traits and Trait.LEGACY not in op.traits
]


@lowers(*_ELEMENTWISE)
def _elementwise(site: Site) -> Sequence[Leaf]:
    leaves = [site.leaf(n) for n in range(len(site.operands))]
    node = Node(
        site.instruction.opcode,
        (),
        site.shape.element_type.name,
        node_parameters(site.instruction),
    )
    return [apply(site, node, leaves, site.dying)]


def apply(site: Site, node: Node, leaves: Sequence[Leaf], dying: Sequence[bool]) -> Held:
    """Compute one node on leaves of the result's shape, or numbers, which are its arguments."""
    shape = site.shape.dimensions
    operands: list[Held] = []
    labels: list[tuple[int, ...]] = []
    dies: list[bool] = []
    constants: list[Scalar] = []
    places: list[tuple[bool, int]] = []
    for leaf, last in zip(leaves, dying, strict=True):
        source, dimensions = sourced(leaf, len(shape), site)
        if isinstance(source, Scalar):
            places.append((True, len(constants)))
            constants.append(source)
            continue
        known = [n for n, x in enumerate(operands) if x == source and labels[n] == dimensions]
        if known:
            places.append((False, known[0]))
            dies[known[0]] = dies[known[0]] and last
            continue
        places.append((False, len(operands)))
        operands.append(source)
        labels.append(dimensions)
        dies.append(last)
    count = len(operands)
    nodes = [text_node(x.text, x.element_type) for x in constants]
    arguments = tuple(n + count if constant else n for constant, n in places)
    nodes.append(node._replace(arguments=arguments))
    expression = Expression(
        tuple(x.element_type for x in operands), tuple(nodes), (count + len(nodes) - 1,)
    )
    codelet = Elementwise(expression, tuple(labels), len(shape))
    (result,) = site.builder.compute(codelet, operands, [(node.element_type, shape)], dying=dies)
    return result


def sourced(leaf: Leaf, rank: int, site: Site) -> tuple[Held | Scalar, tuple[int, ...]]:
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
    held = site.builder.held(leaf)
    return held, tuple(range(rank)) if held.shape else ()


@lowers("map")
def _map(site: Site) -> Sequence[Leaf]:
    """Compute a function of elements: one expression on all of them."""
    expression = site.expression(site.attributes.called[0])
    rank = len(site.shape.dimensions)
    operands: list[Held] = []
    labels: list[tuple[int, ...]] = []
    for number in range(len(site.operands)):
        source, dimensions = sourced(site.leaf(number), rank, site)
        operands.append(site.builder.held(source))
        labels.append(dimensions)
    codelet = Elementwise(expression, tuple(labels), rank)
    return site.builder.compute(codelet, operands, site.results, dying=site.dying)
