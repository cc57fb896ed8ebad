"""Cycles of row-wise work: loops over rows, from counts of instructions (`issuing.py`).

Rows are dealt to the workers, or each row is shared by all of them, whichever is faster. Each step
is a loop over the row: it loads what it reads of operands and of values that earlier steps left,
computes, takes values into the accumulators of reductions, and stores what is a result or read by a
later step. What reductions and their followers say of a row stays in registers. A loop begins and
ends in what a contiguous reduction of poplibs takes for each output, 12 slots (graphcore/poplibs:
lib/popops/reduction/CycleEstimationFunctions.cpp). Other overheads are assumed.
"""

from typing import NamedTuple

from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.codelets.costs.combining import taking_issue
from hloipu_runtime.codelets.costs.elementwise_rates import column_of, vector_elements
from hloipu_runtime.codelets.costs.emulation import Slots, conversion_slots
from hloipu_runtime.codelets.costs.expression_loops import numbers_in
from hloipu_runtime.codelets.costs.issuing import (
    Issue,
    accumulated,
    load_issue,
    op_issue,
    packing_issue,
)
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.costs import TileWork, shared_vertex_cycles
from hloipu_runtime.machine.model import Machine

_PROLOGUE = 30
"""Of a vertex, once."""
_ROW_LOOP = 12
"""Beginning and ending one step's loop over a row."""
_COMBINING = 6
"""For each worker whose part of a row's reduction is taken in."""


class RowWork(NamedTuple):
    """A region of rows on one tile, by numbers of values."""

    rows: int
    length: int
    """Elements of one row."""
    types: tuple[str, ...]
    is_full: tuple[bool, ...]
    """Whether a value has an element for each element of all rows."""
    is_column: tuple[bool, ...]
    """Whether it has one for each element of a row, the same for all rows."""
    expressions: tuple[Expression, ...]
    sources: tuple[tuple[int, ...], ...]
    reductions: tuple[tuple[int, int, str], ...]
    """Step, value, monoid."""
    kept: frozenset[int]
    """Values that are stored."""


def row_work(machine: Machine, work: RowWork) -> TileWork:
    """Return the cycles of one tile; nothing to do costs nothing."""
    if not work.rows or not work.length:
        return TileWork(0)
    contexts, supervisor = machine.tile.worker_contexts, machine.tile.supervisor_vertex_cycles
    rows = over(work.rows, contexts)
    dealt = _slots(machine, work, rows, work.length)
    cycles_and_slots = [(shared_vertex_cycles(machine, supervisor, dealt.slots), dealt)]
    if work.rows % contexts:
        shared = _slots(machine, work, work.rows, over(work.length, contexts))
        count = len(work.reductions)
        combined = shared.plus(Slots(*[count * work.rows * contexts * _COMBINING] * 2))
        calls = supervisor * (1 + count)
        cycles_and_slots.append((shared_vertex_cycles(machine, calls, combined.slots), combined))
    cycles, _ = min(cycles_and_slots)
    return TileWork(cycles, cycles)


def _slots(machine: Machine, work: RowWork, rows: int, length: int) -> Slots:
    elements = rows * length
    total = Slots(_PROLOGUE, _PROLOGUE)
    value_count = (
        len(work.types)
        - sum(len(expression.results) for expression in work.expressions)
        - len(work.reductions)
    )
    moved_types: set[str] = set()
    reductions = list(work.reductions)
    for step, (expression, sources) in enumerate(zip(work.expressions, work.sources, strict=True)):
        results = range(value_count, value_count + len(expression.results))
        value_count += len(results)
        taken: list[tuple[int, str]] = []
        while reductions and reductions[0][0] == step:
            _, value, monoid = reductions.pop(0)
            value_count += 1
            taken.append((value, monoid))
        issue = Issue()
        for number in sources:
            if work.is_full[number] or work.is_column[number]:
                issue = issue.plus(load_issue(work.types[number], elements))
                moved_types.add(work.types[number])
        for value, number in zip(expression.results, results, strict=True):
            if number in work.kept:
                stored = elements if work.is_full[number] else rows
                issue = issue.plus(load_issue(work.types[number], stored))
                issue = issue.plus(packing_issue(expression, [value], stored))
                moved_types.add(work.types[number])
        hidden, narrow = _taken_in(work, expression, results, taken)
        issue = issue.plus(_ops_issue(machine, work, expression, sources, hidden, (rows, length)))
        for value, monoid in taken:
            element_type = "f16" if value in narrow else work.types[value]
            issue = issue.plus(taking_issue(machine, element_type, monoid, rows, length))
        is_long = any(work.is_full[number] or work.is_column[number] for number in sources)
        loops = rows * _ROW_LOOP * (len(taken) + is_long)
        total = total.plus(issue.slots).plus(Slots(loops, loops - rows * _ROW_LOOP * len(taken)))
    return total.plus(conversion_slots(machine, tuple(sorted(moved_types)), elements))


def _taken_in(
    work: RowWork, expression: Expression, results: range, taken: list[tuple[int, str]]
) -> tuple[frozenset[int], frozenset[int]]:
    """Return a step's ops that accumulators do by themselves, and the values taken in as f16."""
    later = {number for sources in work.sources for number in sources} | work.kept
    sums = {
        expression.results[value - results.start]: value
        for value, monoid in taken
        if monoid == "add" and value in results
    }
    needed = {
        local for local, value in zip(expression.results, results, strict=True) if value in later
    }
    hidden, narrow = accumulated(expression, frozenset(sums), frozenset(needed))
    return hidden, frozenset(sums[x] for x in narrow)


def _ops_issue(
    machine: Machine,
    work: RowWork,
    expression: Expression,
    sources: tuple[int, ...],
    hidden: frozenset[int],
    sizes: tuple[int, int],
) -> Issue:
    """Return a step's ops on rows and elements of each; on a row's number they take a vector's."""
    rows, length = sizes
    is_long = [work.is_full[number] or work.is_column[number] for number in sources]
    numbers = numbers_in(expression, [k for k, long in enumerate(is_long) if not long])
    total = Issue()
    for number, node in enumerate(expression.nodes, len(sources)):
        if node.op in ("constant", "copy") or number in hidden:
            continue
        kind = expression.type_of(node.arguments[0]) if node.arguments else node.element_type
        one = rows * vector_elements(column_of(kind))
        count = one if number in numbers else rows * length
        total = total.plus(op_issue(machine, expression, node, count, numbers))
    return total
