"""What the device keeps through its loop, and what it makes of the arrays of all iterations.

Outfeeds are summed, of results the last array is kept. A sum begins at zero before the loop, takes
in each iteration's array, and is handed over once, after the last iteration; a mean is divided by
the number of iterations then. Floats narrower than f32 add up in f32, a mean of integers as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.values import TileTensor
from hloipu_compiler.plan.wrapping import FeedBinding
from hloipu_runtime.codelets.core.constants import number_node
from hloipu_runtime.codelets.core.expression_form import Expression, Node
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.program.mapping import Sizes
from hloipu_runtime.program.steps import Carried, ValueId

LAST = "last"
"""Reduction of a result: its array of the last iteration."""


@dataclass(frozen=True)
class Kept:
    """One array of state: where it lies, and what it holds as a step begins."""

    name: str
    storage: TileTensor
    """With the value at the start of a run."""
    in_loop: TileTensor
    """With the value at the start of a step."""
    parameter: int
    result: int


@dataclass(frozen=True)
class Sum:
    """One array that is added up or kept: where it lies before the loop, and in each iteration."""

    outfeed: FeedBinding
    place: int
    """Number of the result."""
    storage: TileTensor
    in_loop: TileTensor


def carried_on(
    builder: Builder, arrays: Sequence[Kept | Sum], following: Sequence[ValueId]
) -> tuple[tuple[Carried, ...], list[ValueId]]:
    """Return what goes on to the next iteration, given its values then, and those at the end."""
    final = [builder.value(x.storage.element_type, x.storage.shape) for x in arrays]
    carried = tuple(
        Carried(x.storage.variable, x.storage.value, x.in_loop.value, after, last)
        for x, after, last in zip(arrays, following, final, strict=True)
    )
    return carried, final


def sum_type(element_type: str, reduction: str) -> str:
    """Return the type in which arrays of a type are added up."""
    known = ELEMENT_TYPES[element_type]
    if reduction == LAST:
        return element_type
    narrow_float = not known.is_integer and known.bits < 32
    return "f32" if narrow_float or (known.is_integer and reduction == "mean") else element_type


def begun(
    builder: Builder, outfeed: FeedBinding, place: int, element_type: str, shape: Sizes
) -> Sum:
    """Write the zeros that a sum begins with, before the loop."""
    kind = sum_type(element_type, outfeed.reduction)
    filled = Elementwise(Expression((), (number_node(0, kind),), (0,)), (), len(shape))
    (storage,) = builder.compute(filled, [], [(kind, shape)])
    return Sum(outfeed, place, storage, builder.loop_value(storage))


def added(builder: Builder, item: Sum, leaf: TileTensor) -> TileTensor:
    """Write an iteration's addition, or return the array that takes the place of the last one."""
    kind = item.storage.element_type
    if item.outfeed.reduction == LAST:
        return leaf
    if leaf.element_type == kind:
        nodes: tuple[Node, ...] = (Node("add", (0, 1), kind),)
    else:
        nodes = (Node("convert", (1,), kind), Node("add", (0, 2), kind))
    return _computed(builder, nodes, (item.in_loop, leaf), (True, False))


def finished(builder: Builder, item: Sum, total: TileTensor, iterations: int) -> TileTensor:
    """Write what is left to do after the loop."""
    if item.outfeed.reduction != "mean":
        return total
    kind = total.element_type
    count = number_node(iterations, kind)
    return _computed(builder, (count, Node("divide", (0, 1), kind)), (total,), (True,))


def _computed(
    builder: Builder,
    nodes: tuple[Node, ...],
    operands: tuple[TileTensor, ...],
    last_uses: tuple[bool, ...],
) -> TileTensor:
    shape, kind = operands[0].shape, nodes[-1].element_type
    kinds = tuple(tensor.element_type for tensor in operands)
    expression = Expression(kinds, nodes, (len(operands) + len(nodes) - 1,))
    labels = (tuple(range(len(shape))),) * len(operands)
    codelet = Elementwise(expression, labels, len(shape))
    return builder.compute(codelet, operands, [(kind, shape)], last_uses=last_uses)[0]
