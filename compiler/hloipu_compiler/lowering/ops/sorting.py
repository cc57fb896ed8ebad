"""Lowering of sort: by keys where the comparator allows it, else by the comparator."""

from collections.abc import Sequence
from dataclasses import replace

from hloipu_compiler.interpret.planning.comparators import (
    ComparatorKey,
    comparator_keys,
    counts_along,
)
from hloipu_compiler.ir.shapes import array_shape
from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.context import LoweringContext, lowers
from hloipu_compiler.lowering.core.expressions import expression_of
from hloipu_compiler.lowering.core.values import TileTensor, Value
from hloipu_compiler.lowering.core.views import compute_spread
from hloipu_compiler.lowering.ops.sorting_over_tiles import choose_parts, sort_over_tiles
from hloipu_runtime.codelets.core.expression_form import Expression, Node
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.codelets.ops.sort import Sort
from hloipu_runtime.kernels.sorting import SortKey


@lowers("sort")
def _sort(context: LoweringContext) -> Sequence[Value]:
    given = context.attributes.integers("dimensions")
    operands = [context.tile_tensor(n) for n in range(len(context.operands))]
    dimension = given[0] if given else len(operands[0].shape) - 1
    if operands[0].shape[dimension] < 2 or 0 in operands[0].shape:
        return operands
    name = context.attributes.text("to_apply")
    if not name:  # dumps before 2019: ascending by the first operand
        return sorted_on_tiles(
            context.builder, Sort(dimension, (SortKey(0, False, "ieee"),)), operands
        )
    keys = comparator_keys(context.module, name)
    if keys is None:
        sort = Sort(dimension, comparator=context.expression(name))
        return sorted_on_tiles(
            context.builder, sort, operands, counting=_counting(context, dimension)
        )
    derived = list(operands)
    sort_keys = []
    for key in keys:
        operand = key.operand
        if key.value is not None:
            operand = len(derived)
            derived.append(_derived(context, key, operands[key.operand]))
        sort_keys.append(SortKey(operand, key.descending, key.order))
    return sorted_on_tiles(
        context.builder,
        Sort(dimension, tuple(sort_keys)),
        derived,
        len(operands),
        _counting(context, dimension),
    )


def _counting(context: LoweringContext, dimension: int) -> int:
    """Return an s32 operand that counts along the dimension, as argsort has one, or -1."""
    for number, position in enumerate(context.instruction.operands):
        element_type = array_shape(context.computation.instructions[position].shape).element_type
        is_s32 = number > 0 and element_type.name == "s32"
        if is_s32 and counts_along(context.computation, position, dimension):
            return number
    return -1


def _derived(context: LoweringContext, key: ComparatorKey, operand: TileTensor) -> TileTensor:
    """Compute a key's value for every element."""
    comparator = context.module.computation[context.attributes.text("to_apply")]
    assert key.value is not None
    cut = replace(comparator, root=key.value, name=f"{comparator.name}@{key.value}")
    module = replace(context.module, computations=(*context.module.computations, cut))
    expression = _of_one_operand(expression_of(module, cut.name), 2 * key.operand)
    rank = len(operand.shape)
    codelet = Elementwise(expression, (tuple(range(rank)),), rank)
    return context.builder.compute(
        codelet, [operand], [(expression.result_types[0], operand.shape)]
    )[0]


def _of_one_operand(expression: Expression, kept: int) -> Expression:
    count = len(expression.operand_types)
    needed = set(expression.results)
    for number in range(count + len(expression.nodes) - 1, count - 1, -1):
        if number in needed:
            needed.update(expression.nodes[number - count].arguments)
    numbers = {kept: 0}
    nodes: list[Node] = []
    for number, node in enumerate(expression.nodes, count):
        if number in needed:
            numbers[number] = 1 + len(nodes)
            nodes.append(
                node._replace(arguments=tuple(numbers[number] for number in node.arguments))
            )
    return Expression(
        (expression.operand_types[kept],),
        tuple(nodes),
        tuple(numbers[number] for number in expression.results),
    )


def sorted_on_tiles(
    builder: Builder,
    sort: Sort,
    operands: Sequence[TileTensor],
    wanted: int = -1,
    counting: int = -1,
) -> list[TileTensor]:
    """Sort on tiles or over tiles, whichever takes fewer cycles; return the first operands."""
    wanted = len(operands) if wanted < 0 else wanted
    cut = choose_parts(builder, sort, operands)
    if cut.parts > 1:
        return sort_over_tiles(builder, sort, operands, cut, wanted, counting)
    return compute_spread(
        builder,
        sort,
        operands,
        [(tensor.element_type, tensor.shape) for tensor in operands[:wanted]],
    )
