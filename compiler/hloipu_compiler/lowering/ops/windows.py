"""Lowering of reduce-window and select-and-scatter."""

from collections.abc import Sequence

from hloipu_compiler.lowering.core.context import Site, lowers
from hloipu_compiler.lowering.core.values import Leaf
from hloipu_compiler.lowering.ops.running_totals import running_totals
from hloipu_runtime.codelets.core.expression_form import Expression, monoid_of
from hloipu_runtime.codelets.indexed.select_scatter import SelectAndScatter
from hloipu_runtime.codelets.ops.windows import ReduceWindow, Window


def window_of(site: Site) -> Window:
    """Return an instruction's window; none written means a window of one everywhere."""
    written = site.attributes.window().dimensions
    if not written:
        return ((1, 1, 0, 0, 1, 1),) * len(site.operand_shape(0).dimensions)
    return tuple(
        (d.size, d.stride, d.pad_low, d.pad_high, d.base_dilation, d.window_dilation)
        for d in written
    )


@lowers("reduce-window")
def _reduce_window(site: Site) -> Sequence[Leaf]:
    body = site.expression(site.attributes.text("to_apply"))
    monoid = monoid_of(body) if len(site.operands) == 2 else None
    kinds = tuple(kind for kind, _ in site.results)
    codelet = ReduceWindow(window_of(site), monoid or "", None if monoid else body, kinds)
    if len(site.operands) == 2:
        totals = running_totals(site.builder, codelet, site.held(0), site.leaf(1))
        if totals is not None:
            return totals
    operands = [site.held(n) for n in range(len(site.operands))]
    return site.builder.compute(codelet, operands, site.results)


@lowers("select-and-scatter")
def _select_and_scatter(site: Site) -> Sequence[Leaf]:
    stays = site.expression(site.attributes.text("select"))
    body = site.expression(site.attributes.text("scatter"))
    direction, monoid = _direction_of(stays), monoid_of(body)
    codelet = SelectAndScatter(
        window_of(site),
        direction,
        None if direction else stays,
        monoid or "",
        None if monoid else body,
        site.shape.element_type.name,
    )
    return site.builder.compute(codelet, [site.held(n) for n in range(3)], site.results)


def _direction_of(stays: Expression) -> str:
    """Return ge, gt, le or lt where a selector is that comparison of its two operands."""
    if len(stays.nodes) != 1 or stays.nodes[0].op != "compare":
        return ""
    node = stays.nodes[0]
    parameters = dict(node.parameters)
    plain = node.arguments == (0, 1) and parameters.get("type") != "TOTALORDER"
    direction = str(parameters["direction"]).lower()
    return direction if plain and direction in ("ge", "gt", "le", "lt") else ""
