"""Lowering of reduce-window and select-and-scatter."""

from collections.abc import Sequence

from hloipu_compiler.lowering.core.context import LoweringContext, lowers
from hloipu_compiler.lowering.core.values import Value
from hloipu_compiler.lowering.ops.running_totals import running_totals
from hloipu_runtime.codelets.core.expression_form import Expression, monoid_of
from hloipu_runtime.codelets.indexed.select_scatter import SelectAndScatter
from hloipu_runtime.codelets.ops.windows import ReduceWindow, Window


def window_of(context: LoweringContext) -> Window:
    """Return an instruction's window; none written means a window of one everywhere."""
    written = context.attributes.window().dimensions
    if not written:
        return ((1, 1, 0, 0, 1, 1),) * len(context.operand_shape(0).dimensions)
    return tuple(
        (d.size, d.stride, d.pad_low, d.pad_high, d.base_dilation, d.window_dilation)
        for d in written
    )


@lowers("reduce-window")
def _reduce_window(context: LoweringContext) -> Sequence[Value]:
    body = context.expression(context.attributes.text("to_apply"))
    monoid = monoid_of(body) if len(context.operands) == 2 else None
    kinds = tuple(kind for kind, _ in context.results)
    codelet = ReduceWindow(window_of(context), monoid or "", None if monoid else body, kinds)
    if len(context.operands) == 2:
        totals = running_totals(context.builder, codelet, context.tile_tensor(0), context.leaf(1))
        if totals is not None:
            return totals
    operands = [context.tile_tensor(n) for n in range(len(context.operands))]
    return context.builder.compute(codelet, operands, context.results)


@lowers("select-and-scatter")
def _select_and_scatter(context: LoweringContext) -> Sequence[Value]:
    stays = context.expression(context.attributes.text("select"))
    body = context.expression(context.attributes.text("scatter"))
    direction, monoid = _direction_of(stays), monoid_of(body)
    codelet = SelectAndScatter(
        window_of(context),
        direction,
        None if direction else stays,
        monoid or "",
        None if monoid else body,
        context.shape.element_type.name,
    )
    return context.builder.compute(
        codelet, [context.tile_tensor(n) for n in range(3)], context.results
    )


def _direction_of(stays: Expression) -> str:
    """Return ge, gt, le or lt where a selector is that comparison of its two operands."""
    if len(stays.nodes) != 1 or stays.nodes[0].op != "compare":
        return ""
    node = stays.nodes[0]
    parameters = dict(node.parameters)
    plain = node.arguments == (0, 1) and parameters.get("type") != "TOTALORDER"
    direction = str(parameters["direction"]).lower()
    return direction if plain and direction in ("ge", "gt", "le", "lt") else ""
