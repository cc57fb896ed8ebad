"""Lowering of reduce-window and select-and-scatter.

Windows that reach back to the start are running totals, computed in parallel as prefix sums are
(Blelloch 1990: Prefix sums and their applications): of pieces of each row, of the pieces' totals,
then their sum. Rows are cut where there are fewer of them than tiles, and where that takes fewer
cycles.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import NamedTuple

from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.context import LoweringContext, lowers
from hloipu_compiler.lowering.core.values import Scalar, TileTensor, Value
from hloipu_compiler.lowering.core.views import mapping_in, seen_as, spread_out
from hloipu_compiler.planners.placing import followed
from hloipu_compiler.planners.planned import (
    Choice,
    Cycles,
    PlannedOp,
    cycles_of,
    losers,
    shape_texts,
)
from hloipu_runtime.codelets.core.constants import value_of
from hloipu_runtime.codelets.core.expression_form import Expression, Node, monoid_of
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.indexed.select_scatter import SelectAndScatter
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.codelets.ops.windows import (
    ReduceWindow,
    Window,
    dimensions_of,
    running_dimension,
)
from hloipu_runtime.costs.computing import codelet_work
from hloipu_runtime.costs.exchange_price import arriving, exchange_price
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.kernels.core.monoids import identity
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.mapping import Sizes

_LONGEST_SEARCH = 64
"""Divisors of a length that are looked at."""


class _Row(NamedTuple):
    """What is totalled: `rows` of a length, of one type, by a monoid."""

    codelet: ReduceWindow
    element_type: str
    rows: int
    length: int


def running_totals(
    builder: Builder, codelet: ReduceWindow, operand: TileTensor, init: Value
) -> list[TileTensor] | None:
    """Compute running totals in pieces; None where windows are others, or whole rows cost less."""
    shape = operand.shape
    d = running_dimension(dimensions_of(codelet.window), shape)
    if d < 0 or not codelet.monoid or not _is_neutral(init, codelet.monoid) or 0 in shape:
        return None
    row = _Row(codelet, operand.element_type, prod(shape) // shape[d], shape[d])
    options = _options(builder.machine, row)
    pieces = min(options, key=lambda n: options[n].total)
    if len(options) > 1:
        builder.explains(lambda: _planned(builder, row, operand, pieces))
    if pieces == 1:
        return None
    return [_in_pieces(builder, codelet, operand, init, d, pieces)]


def _is_neutral(init: Value, monoid: str) -> bool:
    """Whether a start changes no total, so that it may count once or for every piece."""
    if not isinstance(init, Scalar):
        return False
    neutral = identity(monoid, storage_dtype(init.element_type))
    return bool(value_of(init.text, init.element_type) == neutral)


@lru_cache(1 << 10)
def _options(machine: Machine, row: _Row) -> dict[int, Cycles]:
    """Return numbers of pieces of a row, with predicted cycles; 1: whole rows."""
    tiles = machine.chip.tiles_per_ipu
    cycles_by_pieces = {1: _cycles(machine, row, 1)}
    most = min(tiles // max(1, row.rows), row.length // 2)
    divisors = [n for n in range(2, most + 1) if row.length % n == 0]
    step = over(len(divisors), _LONGEST_SEARCH) if divisors else 1
    for pieces in divisors[::-1][:: max(1, step)]:
        cycles_by_pieces[pieces] = _cycles(machine, row, pieces)
    return cycles_by_pieces


def _cycles(machine: Machine, row: _Row, pieces: int) -> Cycles:
    """Return the cycles of totals of pieces, of the pieces' totals, and of adding both."""
    tiles, kind = machine.chip.tiles_per_ipu, row.element_type
    size = ELEMENT_TYPES[kind].byte_width
    block = row.length // pieces
    share = over(row.rows * pieces, tiles)
    compute = _running_cycles(machine, row, share, block)
    moving = exchange_price(machine, [arriving(machine, share * block * size)])
    if pieces == 1:
        return Cycles(compute).plus(cycles_of(moving))
    lines = over(row.rows, tiles)
    compute += _running_cycles(machine, row, lines, pieces)
    # As many bytes go back from where they were gathered.
    for fragments in (lines * pieces, 1):
        gathered = arriving(machine, lines * pieces * size, fragments)
        moving = moving.plus(exchange_price(machine, [gathered]))
    part, one = Tensor(kind, (share, block)), Tensor(kind, (share,))
    adding = _adding(row.codelet.monoid, kind, ((0,), (0, 1)), 2)
    compute += codelet_work(adding, machine, (one, part), (part,)).cycles
    return Cycles(compute).plus(cycles_of(moving))


def _running_cycles(machine: Machine, row: _Row, rows: int, length: int) -> int:
    """Return the work of running totals of some rows on one tile."""
    tensor, init = Tensor(row.element_type, (rows, length)), Tensor(row.element_type, ())
    codelet = replace(row.codelet, window=_window(2, 1, length, is_reverse=False))
    return codelet_work(codelet, machine, (tensor, init), (tensor,)).cycles


def _window(
    rank: int, dimension: int, size: int, *, is_reverse: bool
) -> tuple[tuple[int, int, int, int, int, int], ...]:
    low, high = (0, size - 1) if is_reverse else (size - 1, 0)
    one = (1, 1, 0, 0, 1, 1)
    return tuple((size, 1, low, high, 1, 1) if d == dimension else one for d in range(rank))


def _adding(monoid: str, kind: str, labels: Sequence[tuple[int, ...]], rank: int) -> Elementwise:
    expression = Expression((kind, kind), (Node(monoid, (0, 1), kind),), (2,))
    return Elementwise(expression, tuple(labels), rank)


def _in_pieces(
    builder: Builder, codelet: ReduceWindow, operand: TileTensor, init: Value, d: int, pieces: int
) -> TileTensor:
    """Write the steps of running totals of rows cut into equal pieces."""
    shape, kind = operand.shape, operand.element_type
    block = shape[d] // pieces
    is_reverse = codelet.window[d][2] == 0
    cut: Sizes = (*shape[:d], pieces, block, *shape[d + 1 :])
    rank = len(cut)
    start = builder.tile_tensor(init)
    inner = replace(codelet, window=_window(rank, d + 1, block, is_reverse=is_reverse))
    results = [Tensor(kind, cut)]
    placement = spread_out(inner, [*results, Tensor(kind, ())], results, builder.tile_count)
    seen = seen_as(builder, [operand], cut, mapping=mapping_in(placement, inner, results))
    (totals,) = builder.compute(inner, [*seen, start], [(kind, cut)], placement=placement)
    last = 0 if is_reverse else block - 1
    ends: Sizes = (*shape[:d], pieces, *shape[d + 1 :])
    (offsets,) = _before(builder, codelet, totals, start, ends, d, last, is_reverse=is_reverse)
    every = tuple(range(rank))
    labels = (tuple(n for n in every if n != d + 1), every)
    adding = _adding(codelet.monoid, kind, labels, rank)
    # Where the totals lie, whose labels are the adding's own.
    indexing = adding.indexing([Tensor(kind, ends), *results], results)
    lying = builder.variables[totals.variable].mapping
    (sums,) = builder.compute(
        adding,
        [offsets, totals],
        [(kind, cut)],
        last_uses=[True, True],
        placement=followed(indexing, indexing.operands[1], lying),
    )
    return seen_as(builder, [sums], shape)[0]


def _before(
    builder: Builder,
    codelet: ReduceWindow,
    totals: TileTensor,
    start: TileTensor,
    ends: Sizes,
    d: int,
    last: int,
    *,
    is_reverse: bool,
) -> list[TileTensor]:
    """Return for each piece the total of all pieces before it, in the totals' direction."""
    kind = totals.element_type
    flat = (*totals.shape[: d + 1], 1, *totals.shape[d + 2 :])
    box = tuple((0, n) for n in flat)
    shift = tuple(last if k == d + 1 else 0 for k in range(len(flat)))
    running = replace(codelet, window=_window(len(flat), d, flat[d], is_reverse=is_reverse))
    results = [Tensor(kind, flat)]
    placement = spread_out(running, [*results, Tensor(kind, ())], results, builder.tile_count)
    where = mapping_in(placement, running, results)
    (each,) = seen_as(builder, [totals], flat, ((totals.shape, box, shift),), mapping=where)
    (inclusive,) = builder.compute(running, [each, start], [(kind, flat)], placement=placement)
    # One place on: the first piece begins with the start.
    (base,) = builder.compute(
        Elementwise(Expression((kind,), (), (0,)), ((),), len(ends)), [start], [(kind, ends)]
    )
    moved = 1 if is_reverse else -1
    low, high = (0, ends[d] - 1) if is_reverse else (1, ends[d])
    box = tuple((low, high) if k == d else (0, n) for k, n in enumerate(ends))
    shift = tuple(moved if k == d else 0 for k in range(len(ends)))
    return [builder.assembled(kind, ends, [(inclusive, ends, box, shift)], base)]


def _planned(builder: Builder, row: _Row, operand: TileTensor, pieces: int) -> PlannedOp:
    options = _options(builder.machine, row)

    def choice(count: int) -> Choice:
        words = "rows whole" if count == 1 else "rows in pieces, then the totals of pieces"
        tiles = min(builder.tile_count, row.rows * count)
        block = row.length // count
        elements_per_tile = 2 * over(row.rows * count, builder.tile_count) * block
        splits = (("pieces", count),) if count > 1 else ()
        size = elements_per_tile * ELEMENT_TYPES[row.element_type].byte_width
        return Choice(words, splits, tiles, options[count], size)

    chosen = choice(pieces)
    texts = shape_texts([operand])
    return PlannedOp(
        builder.origin, "reduce-window", texts, texts, chosen, losers(chosen, map(choice, options))
    )


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
