"""Accumulators: gradients of micro-batches added up on the tiles, in a type of their own."""

from hloipu_compiler.codegen.builder import Builder
from hloipu_compiler.codegen.leaves import Held
from hloipu_compiler.plan.pipelining import MEAN, RUNNING_MEAN
from hloipu_runtime.codelets.elementwise import Elementwise
from hloipu_runtime.codelets.expression import Expression, Node
from hloipu_runtime.program.mapping import Sizes


def emptied(
    builder: Builder, ipu: int, element_type: str, shape: Sizes, name: tuple[str, int]
) -> tuple[Held, Held]:
    """Write the zeros of an accumulator; return it before the micro-batches and in each of them."""
    builder.ipu = ipu
    builder.origin = f"accumulator.{name[0]}.{name[1]}"
    zero = Node("constant", (), element_type, (("value", "0"),))
    filled = Elementwise(Expression((), (zero,), (0,)), (), len(shape))
    (home,) = builder.compute(filled, [], [(element_type, shape)])
    return home, builder.turn_value(home)


def accumulated(
    builder: Builder, total: Held, gradient: Held, reduction: str, micro_batches: int
) -> Held:
    """Write the addition of a micro-batch's gradient, in the accumulator's own type.

    SUM adds it, MEAN its part of `micro_batches`.
    """
    kind = total.element_type
    nodes: list[Node] = []
    number = 1
    scaled = reduction in (MEAN, RUNNING_MEAN) and micro_batches > 1
    if scaled:
        # Multiplied before it is converted, as the accumulator may be the narrower type.
        share = (1 / micro_batches).hex()
        nodes.append(Node("constant", (), gradient.element_type, (("value", share),)))
        nodes.append(Node("multiply", (1, 2), gradient.element_type))
        number = 3
    if gradient.element_type != kind:
        nodes.append(Node("convert", (number,), kind))
        number = 1 + len(nodes)
    nodes.append(Node("add", (0, number), kind))
    expression = Expression((kind, gradient.element_type), tuple(nodes), (1 + len(nodes),))
    axes = tuple(range(len(total.shape)))
    codelet = Elementwise(expression, (axes, axes), len(axes))
    made = builder.compute(
        codelet, [total, gradient], [(kind, total.shape)], dying=(True, False)
    )
    return made[0]


def finished_type(builder: Builder, total: Held, element_type: str) -> Held:
    """Write the conversion of a full accumulator to the gradient's own type, if it has another."""
    if total.element_type == element_type:
        return total
    node = Node("convert", (0,), element_type)
    axes = tuple(range(len(total.shape)))
    codelet = Elementwise(Expression((total.element_type,), (node,), (1,)), (axes,), len(axes))
    return builder.compute(codelet, [total], [(element_type, total.shape)])[0]
