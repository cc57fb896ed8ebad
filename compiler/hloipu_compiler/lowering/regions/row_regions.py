"""Lowering of fusions that reduce: by whole rows, with a fused producer, or op by op."""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from math import prod

from hloipu_compiler.lowering.core.alternatives import cheapest
from hloipu_compiler.lowering.core.context import LoweringContext
from hloipu_compiler.lowering.core.values import Scalar, TileTensor, Value
from hloipu_compiler.lowering.ops.reductions import in_stages
from hloipu_compiler.lowering.regions.flat_rows import FlatRows, Operand, Reduction, flat_rows
from hloipu_compiler.lowering.regions.row_steps import row_region
from hloipu_compiler.planners.reduction_plans import partial_type, reduction_plan
from hloipu_runtime.codelets.core.constants import text_node
from hloipu_runtime.codelets.core.expression_form import Expression, Node
from hloipu_runtime.codelets.ops.reduce import Reduce

OpByOp = Callable[[], Sequence[Value]]


def rows_lowered(context: LoweringContext, op_by_op: OpByOp) -> Sequence[Value]:
    """Write the steps of a fusion that reduces, in the way that takes fewest cycles."""
    rows = flat_rows(context)
    if rows is None or not prod(rows.space):
        return op_by_op()
    reductions = [op.what for op in rows.ops if isinstance(op.what, Reduction)]
    last = rows.ops[rows.results[0]].what
    other = _whole_rows
    if len(reductions) == 1 and len(rows.results) == 1 and isinstance(last, Reduction):
        other = _with_producer
    return cheapest(context.builder, [op_by_op, partial(other, context, rows)], _key(context, rows))


def _key(context: LoweringContext, rows: FlatRows) -> Hashable:
    """Return all that the steps of a region depend on."""
    builder = context.builder
    ops: list[Hashable] = []
    for number, op in enumerate(rows.ops):
        what: Hashable = op.what
        if isinstance(op.what, Operand):
            tensor, labels = op.what
            mapping = builder.variables[tensor.variable].mapping
            what = labels, tensor.shape, mapping, rows.last_uses[number]
        ops.append((what, op.element_type, op.is_full))
    preferences = tuple(
        (x.born, x.need) for x in (*builder.preferences, *builder.region_preferences)
    )
    around = builder.iterations, len(builder.scopes)
    return rows.space, rows.dimensions, tuple(ops), rows.results, preferences, around


def _whole_rows(context: LoweringContext, rows: FlatRows) -> Sequence[Value] | None:
    """Compute all of it row by row, each row whole on one tile."""
    found = row_region(rows)
    if found is None:
        return None
    codelet, operands, last_uses = found
    return context.builder.compute(codelet, operands, context.results, last_uses=last_uses)


def _with_producer(context: LoweringContext, rows: FlatRows) -> Sequence[Value] | None:
    """Compute a reduction in the stages that it would have, the first with its producer."""
    reduction = rows.ops[rows.results[0]].what
    operands = [(n, op.what) for n, op in enumerate(rows.ops) if isinstance(op.what, Operand)]
    if not isinstance(reduction, Reduction) or not operands:
        return None
    # The largest first, which has a say in where the reduction is computed.
    operands.sort(key=lambda x: -prod(x[1].held.shape))
    largest = operands[0][1]
    if len(largest.labels) != len(rows.space) or largest.held.shape != rows.space:
        return None
    expression = _expression(rows, [n for n, _ in operands], reduction.value)
    builder = context.builder
    kind = expression.result_types[0]
    codelet = Reduce(rows.dimensions, reduction.monoid, None, (kind,))
    kinds = (kind,)
    if reduction.monoid in ("add", "multiply"):
        kinds = (partial_type(kind),)
    plan = reduction_plan(
        builder.machine,
        codelet,
        (kind,),
        kinds,
        rows.space,
        builder.variables[largest.held.variable].mapping,
        builder.machine.memory.bytes_per_tile * builder.tuning.memory_percent // 100,
    )
    first = plan.stages[0]
    stage = first.codelet
    if not isinstance(stage, Reduce):
        return None
    from hloipu_runtime.codelets.ops.fused_reduce import FusedReduce

    fused = FusedReduce(
        expression,
        tuple(x.labels for _, x in operands),
        len(rows.space),
        stage.dimensions,
        stage.monoid,
        stage.element_types,
        stage.part,
    )
    tensors: list[TileTensor] = [x.held for _, x in operands]
    init = builder.scalar(Scalar(kind, reduction.init))
    return in_stages(builder, (first._replace(codelet=fused), *plan.stages[1:]), tensors, [init])


def _expression(rows: FlatRows, operands: Sequence[int], result: int) -> Expression:
    """Return what a value is of operands."""
    local = {n: k for k, n in enumerate(operands)}
    nodes: list[Node] = []
    for number, op in enumerate(rows.ops):
        match op.what:
            case Node():
                arguments = tuple(local[x] for x in op.what.arguments)
                node = op.what._replace(arguments=arguments)
            case Scalar():
                node = text_node(op.what.text, op.element_type)
            case _:
                continue
        local[number] = len(operands) + len(nodes)
        nodes.append(node)
    types = tuple(rows.ops[n].element_type for n in operands)
    return Expression(types, tuple(nodes), (local[result],))
