"""Gradients of micro-batches combined on the tiles, in a type of their own; then over replicas.

With n micro-batches before it, of K, a gradient g is taken in as

    sum            total + g
    mean           total + g / K
    running mean   total * n / (n + 1) + g / (n + 1)

A gradient is scaled in its own type and converted to the accumulator's then, as in Graphcore's
plugin (graphcore/tensorflow: tensorflow/python/ipu/gradient_accumulation.py).
"""

from collections.abc import Sequence

from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.values import TileTensor
from hloipu_compiler.lowering.ops.collectives import met
from hloipu_compiler.plan.pipelining import MEAN
from hloipu_compiler.planners.placing import followed
from hloipu_runtime.codelets.core.constants import number_node
from hloipu_runtime.codelets.core.expression_form import Expression, Node
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.program.collective import ALL_REDUCE, CollectiveForm
from hloipu_runtime.program.mapping import Sizes

COUNT_TYPE = "f32"


def emptied(
    builder: Builder, ipu: int, element_type: str, shape: Sizes, name: str
) -> tuple[TileTensor, TileTensor]:
    """Write the zeros of an accumulator; return it before the micro-batches and in each of them."""
    builder.ipu = ipu
    builder.origin = name
    filled = Elementwise(Expression((), (number_node(0, element_type),), (0,)), (), len(shape))
    (storage,) = builder.compute(filled, [], [(element_type, shape)])
    return storage, builder.loop_value(storage)


def accumulated(
    builder: Builder, total: TileTensor, gradient: TileTensor, reduction: str, micro_batches: int
) -> TileTensor:
    """Write how a micro-batch's gradient is taken into a sum or a mean."""
    builder.origin = builder.variables[gradient.variable].origin or builder.origin
    nodes = _Nodes(2)
    taken = 1
    if reduction == MEAN and micro_batches > 1:
        kind = gradient.element_type
        share = nodes.number(kind, 1 / micro_batches)
        taken = nodes.add("multiply", (1, share), gradient.element_type)
    taken = nodes.converted(taken, gradient.element_type, total.element_type)
    nodes.add("add", (0, taken), total.element_type)
    return _computed(builder, nodes, (total, gradient))


def averaged(
    builder: Builder, total: TileTensor, gradient: TileTensor, count: TileTensor
) -> TileTensor:
    """Write how a micro-batch's gradient is taken into a running mean of `count` before it."""
    builder.origin = builder.variables[gradient.variable].origin or builder.origin
    nodes = _Nodes(3)
    own, kind = gradient.element_type, total.element_type
    after = nodes.add("add", (2, nodes.number(COUNT_TYPE, 1)), COUNT_TYPE)
    old_share = nodes.add("divide", (2, after), COUNT_TYPE)
    new_share = nodes.add("divide", (nodes.number(COUNT_TYPE, 1), after), COUNT_TYPE)
    scaled = nodes.add("multiply", (1, nodes.converted(new_share, COUNT_TYPE, own)), own)
    kept = nodes.add("multiply", (0, nodes.converted(old_share, COUNT_TYPE, kind)), kind)
    nodes.add("add", (kept, nodes.converted(scaled, own, kind)), kind)
    return _computed(builder, nodes, (total, gradient, count))


def counted(builder: Builder, count: TileTensor) -> TileTensor:
    """Write that one more micro-batch is through."""
    nodes = _Nodes(1)
    nodes.add("add", (0, nodes.number(COUNT_TYPE, 1)), COUNT_TYPE)
    return _computed(builder, nodes, (count,))


def finished_type(builder: Builder, total: TileTensor, element_type: str) -> TileTensor:
    """Write the conversion of a full accumulator to the gradient's own type, if it has another."""
    if total.element_type == element_type:
        return total
    nodes = _Nodes(1)
    nodes.converted(0, total.element_type, element_type)
    return _computed(builder, nodes, (total,))


class _Nodes:
    """The nodes of an expression of so many operands."""

    def __init__(self, operands: int) -> None:
        self.operands = operands
        self.made: list[Node] = []

    def add(self, op: str, arguments: tuple[int, ...], element_type: str) -> int:
        self.made.append(Node(op, arguments, element_type))
        return self.operands + len(self.made) - 1

    def number(self, element_type: str, number: float) -> int:
        self.made.append(number_node(number, element_type))
        return self.operands + len(self.made) - 1

    def converted(self, number: int, old: str, new: str) -> int:
        return number if old == new else self.add("convert", (number,), new)


def _computed(builder: Builder, nodes: _Nodes, operands: tuple[TileTensor, ...]) -> TileTensor:
    """Write an elementwise op into the first operand, with numbers repeated where need be.

    It computes where that lies: a total made elsewhere waits for the end of the stage to go back.
    """
    first, kind = operands[0], nodes.made[-1].element_type
    expression = Expression(
        tuple(x.element_type for x in operands),
        tuple(nodes.made),
        (nodes.operands + len(nodes.made) - 1,),
    )
    labels = tuple(tuple(range(len(x.shape))) for x in operands)
    codelet = Elementwise(expression, labels, len(first.shape))
    last_uses = (kind == first.element_type, *(False for _ in operands[1:]))
    result = (kind, first.shape)
    tensors = [x.tensor for x in operands]
    indexing = codelet.indexing(tensors, [Tensor(*result)])
    home = followed(indexing, indexing.operands[0], builder.variables[first.variable].mapping)
    return builder.compute(codelet, operands, [result], last_uses=last_uses, placement=home)[0]


def mean_over_replicas(
    builder: Builder, replicas: int, partitions: int, gradients: Sequence[TileTensor]
) -> list[TileTensor]:
    """Write the means of gradients over all replicas, before the update; each stays on its IPU.

    Each partition's are apart.

    One all-reduce for all of one element type: a ring's phases each take a meeting, however much
    they move. Graphcore's optimizers divide by the number of replicas, whatever micro-batches are
    combined by (graphcore/tensorflow:
    tensorflow/python/ipu/optimizers/cross_replica_optimizer.py).
    """
    alike = tuple(tuple(range(p, replicas * partitions, partitions)) for p in range(partitions))
    form = CollectiveForm(ALL_REDUCE, alike, monoid="add")
    mean_by_number: dict[int, TileTensor] = {}
    for kind in dict.fromkeys(x.element_type for x in gradients):
        places = [n for n, x in enumerate(gradients) if x.element_type == kind]
        mine = [gradients[n] for n in places]
        builder.origin = "gradients"
        kinds = [(x.element_type, x.shape) for x in mine]
        summed = met(builder, form, mine, kinds, [True] * len(mine))
        for n, total in zip(places, summed, strict=True):
            mean_by_number[n] = _divided(builder, total, replicas)
    return [mean_by_number[n] for n in range(len(gradients))]


def _divided(builder: Builder, total: TileTensor, replicas: int) -> TileTensor:
    kind = total.element_type
    builder.ipu = builder.variables[total.variable].ipu
    share = number_node(1 / replicas, kind)
    part = Expression((kind,), (share, Node("multiply", (0, 1), kind)), (2,))
    axes = tuple(range(len(total.shape)))
    codelet = Elementwise(part, (axes,), len(axes))
    return builder.compute(codelet, [total], [(kind, total.shape)], last_uses=[True])[0]
