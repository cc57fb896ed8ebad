"""Cycles of elementwise vertices, single ops and fused expressions.

Single ops: graphcore/poplibs: lib/popops/popopsCycleEstimators.cpp and PerformanceEstimation.cpp,
in the forms whose result is a new tensor. Where those are faster on sizes that a vector divides,
the form for all sizes is taken, so that larger parts never cost less, except for rows with a number
of their own. Code made of a whole expression has no published formula (`expression_loops.py`).
"""

from collections.abc import Sequence
from math import prod

from hloipu_runtime.codelets.core.expression_form import Expression, Node
from hloipu_runtime.codelets.costs.elementwise_rates import (
    Rate,
    column_of,
    rate_of,
    vector_elements,
)
from hloipu_runtime.codelets.costs.emulation import Slots, emulated
from hloipu_runtime.codelets.costs.expression_loops import Repeats, loop_work, repeats_of
from hloipu_runtime.codelets.costs.issuing import ZERO, cast_slots, table_name
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.costs import TileWork, shared_vertex_cycles, single_vertices_cycles
from hloipu_runtime.machine.model import Machine

Sizes = Sequence[int]

_SUPERVISOR = 11
_UNARY_EXIT = 9
_LOOP_UNARY, _LOOP_EXTERNAL, _LOOP_BINARY = 4, 2, 5
"""Load, store and loop added to a rate that lacks them; external: hand-written add, sub, mul."""
_ROW, _ALIGNED_ROW = 25, 7
"""Of a row with a number of its own (BroadcastVectorOuter); aligned: whole vectors fill rows."""
_RELU_SUPERVISOR, _RELU_WORKER, _RELU_VECTOR = 9, 23, 2
"""Of popnn's relu (lib/popnn/popnnCycleEstimators.cpp, nonLinearity1DCycleEstimator); of a vector,
which is said to take 1, the load and the store."""
_EXTERNAL = frozenset({"add", "subtract", "multiply"})


def elementwise_work(
    machine: Machine,
    expression: Expression,
    labels: Sequence[Sequence[int]],
    shape: Sizes,
) -> TileWork:
    """Return the cycles of one tile for an expression on its parts; nothing to do costs nothing."""
    elements = prod(shape)
    if not elements:
        return TileWork(0)
    repeats = [repeats_of(x, shape) if len(x) < len(shape) else None for x in labels]
    nodes = [node for node in expression.nodes if node.op not in ("constant", "copy")]
    if len(nodes) == 1 and len(expression.results) == 1:
        return _single(machine, expression, nodes[0], repeats, elements)
    scalars = frozenset(n for n, x in enumerate(repeats) if x is not None and x.is_scalar)
    scaled = scaled_add_cycles(machine, expression, nodes, scalars, elements)
    if scaled is not None:
        return TileWork(scaled)
    return loop_work(machine, expression, repeats, elements)


# --- single ops -----------------------------------------------------------------------------------


def _single(
    machine: Machine,
    expression: Expression,
    node: Node,
    repeats: Sequence[Repeats | None],
    elements: int,
) -> TileWork:
    """Return the cycles of one op by the vertex that popops has for it."""
    contexts = machine.tile.worker_contexts
    share = over(elements, contexts)
    count = len(expression.operand_types)
    argument_type = expression.type_of(node.arguments[0])
    op = table_name(node)
    if node.op == "convert":
        slots = cast_slots(argument_type, node.element_type, share)
        return _shared(machine, 12, Slots(37).plus(slots), argument_type, node, share)
    if node.op == "select":
        return _each_worker(machine, elements, Slots(5 + 6 + 5 * share), node, share)
    if node.op == "clamp":
        column = column_of(node.element_type)
        one = 2 * over(share, vector_elements(column)) if column in ("f32", "f16") else 7 * share
        return _each_worker(machine, elements, Slots(5 + 6 + one), node, share)
    if len(node.arguments) == 1:
        rate = rate_of(op, argument_type)
        prologue = 33 if node.op == "exponential" else 17
        loop = _loop(rate, argument_type, share, _LOOP_UNARY)
        supervisor = _SUPERVISOR + _UNARY_EXIT
        return _shared(machine, supervisor, Slots(prologue).plus(loop), argument_type, node, share)
    constant = Repeats(1, elements, 1)
    arguments = [repeats[number] if number < count else constant for number in node.arguments]
    repeated = next((x for x in arguments if x is not None), None)
    slots = _binary_slots(op, node, argument_type, repeated, elements, contexts)
    work = _shared(machine, _SUPERVISOR, slots, argument_type, node, share)
    if not _is_relu(expression, node):
        return work
    turns = over(share, vector_elements(column_of(argument_type)))
    relu = Slots(_RELU_WORKER + _RELU_VECTOR * (1 + turns))
    return min(work, _shared(machine, _RELU_SUPERVISOR, relu, argument_type, node, share))


def _is_relu(expression: Expression, node: Node) -> bool:
    """Whether an op is the larger of a float and zero."""
    if node.op != "maximum" or column_of(node.element_type) not in ("f32", "f16"):
        return False
    made = [x - len(expression.operand_types) for x in node.arguments]
    return any(x >= 0 and expression.nodes[x].parameters == ZERO for x in made)


def _binary_slots(
    op: str, node: Node, argument_type: str, repeated: Repeats | None, elements: int, contexts: int
) -> Slots:
    """Return one worker's slots for an op of two arguments, one of which may repeat.

    Of the vertices that serve, the fastest. A repeating argument whose part happens not to repeat
    is served by its own vertex, too, so that larger parts cost no less.
    """
    share = over(elements, contexts)
    rate = rate_of(op, argument_type)
    external = node.op in _EXTERNAL and column_of(argument_type) in ("f32", "f16")
    overhead = _LOOP_EXTERNAL if external else _LOOP_BINARY
    prologue = 29 if column_of(argument_type) == "f32" else 26
    full = Slots(prologue).plus(_loop(rate, argument_type, share, overhead))
    if repeated is None:
        return full
    slices, rows, inner = repeated
    once = rate_of(op, argument_type, scalar=True)
    # Writing the repeated elements out first: two slots for each, by no source.
    slots_of_vertices = [full if repeated.is_full else full.plus(Slots(2 * share, 2 * share))]
    if repeated.is_scalar:
        slots_of_vertices.append(
            Slots(20).plus(_loop(once, argument_type, share, 1 if external else 4))
        )
    if inner == 1:
        is_aligned = not rows % vector_elements(column_of(argument_type))
        around = Slots(_ALIGNED_ROW if is_aligned else _ROW)
        by_row = _loop(once, argument_type, rows, 1).plus(around)
        by_column = _loop(once, argument_type, over(rows, contexts), 1).plus(around)
        slots_of_vertices += [
            Slots(15).plus(by_row.times(over(slices, contexts), assumed=False)),
            Slots(15).plus(by_column.times(slices, assumed=False)),
        ]
    if external:
        # One value at a time is kept in a register and added down its column, two slots each time.
        column = over(inner, 4 if column_of(argument_type) == "f16" else 1)
        down = min(column * (8 + 2 * over(rows, contexts)), over(column, contexts) * (8 + 2 * rows))
        slots_of_vertices.append(Slots(17 + slices * (17 + down)))
    return min(slots_of_vertices)


def _loop(rate: Rate, element_type: str, elements: int, overhead: int) -> Slots:
    turns = over(elements, rate.elements or vector_elements(column_of(element_type)))
    slots = turns * (rate.cycles + (0 if rate.complete else overhead))
    return Slots(slots, slots if rate.assumed else 0)


def _shared(
    machine: Machine, supervisor: int, slots: Slots, argument_type: str, node: Node, share: int
) -> TileWork:
    """Return the cycles of a vertex that all workers share, emulated types included."""
    slots = emulated(machine, slots, (argument_type, node.element_type), share)
    contexts = machine.tile.worker_contexts
    cycles = shared_vertex_cycles(machine, supervisor, slots.slots)
    return TileWork(cycles, min(cycles, contexts * slots.assumed))


def _each_worker(machine: Machine, elements: int, slots: Slots, node: Node, share: int) -> TileWork:
    """Return the cycles of vertices of one worker each, the elements dealt to them."""
    slots = emulated(machine, slots, (node.element_type,), share)
    contexts = machine.tile.worker_contexts
    cycles = single_vertices_cycles(machine, [(min(elements, contexts), slots.slots)])
    return TileWork(cycles, min(cycles, contexts * slots.assumed))


_SCALED_SUPERVISOR = 21 + 11 + 13 + 12 + 6
_SCALED_SUBTRACT = 7
_SCALED_WORKER = 16 + 6 + 3
"""Prologue, around the loop, and out again."""
_SCALED_LAST = 7
"""Elements that fill no vector."""
_SCALED_INNER = 3
"""Slots of a vector: two loads, a store, the arithmetic beside them."""


def scaled_add_cycles(
    machine: Machine,
    expression: Expression,
    nodes: Sequence[Node],
    scalars: frozenset[int],
    elements: int,
) -> int | None:
    """Return the cycles of a scaled addition, x + s * y, which popops has a vertex for; else None.

    Formula: graphcore/poplibs: lib/popops/PerformanceEstimation.cpp,
    getScaledArithmeticSupervisorCycleEstimate, without constraints on memory.
    `scalars` are operands that are one number.
    """
    if not _is_scaled_add(expression, nodes, scalars):
        return None
    vector = vector_elements(nodes[1].element_type)
    vectors = over(over(elements, vector), machine.tile.worker_contexts)
    supervisor = _SCALED_SUPERVISOR + (_SCALED_SUBTRACT if nodes[1].op == "subtract" else 0)
    return shared_vertex_cycles(
        machine, supervisor, _SCALED_WORKER + _SCALED_LAST + _SCALED_INNER * max(0, vectors - 1)
    )


def _is_scaled_add(expression: Expression, nodes: Sequence[Node], scalars: frozenset[int]) -> bool:
    if len(nodes) != 2 or len(expression.operand_types) != 3 or len(expression.nodes) != 2:
        return False
    product, total = nodes
    product_number = len(expression.operand_types)
    if product.op != "multiply" or total.op not in ("add", "subtract"):
        return False
    if total.element_type not in ("f32", "f16") or {*expression.operand_types} != {
        total.element_type
    }:
        return False
    scales = [number for number in product.arguments if number in scalars]
    added = [number for number in total.arguments if number != product_number]
    if total.op == "subtract" and total.arguments[1] != product_number:
        return False
    return (
        expression.results == (product_number + 1,)
        and len(scales) == 1
        and len(added) == 1
        and added[0] not in scalars
        and sorted((*product.arguments, *added)) == [0, 1, 2]
    )
