"""Planner of dot products: prices every split of batch, rows, columns and depth.

Prices are the machine's own, for arrays of splits at once. Operands are taken to lie where their
exchange has few pieces. Whole parts are received, not only what a tile lacks: poplibs credits what
is local (lib/poplin/ConvModel.cpp), which measured products do not bear out.
"""

from functools import lru_cache
from itertools import chain
from math import gcd, prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hloipu_compiler.planners.dot_candidates import (
    DEPTH_GRAIN,
    GRAIN,
    Amounts,
    Candidate,
    Candidates,
    block_sizes,
    candidates_of,
    parts_of,
)
from hloipu_compiler.planners.placing import Placement, grid
from hloipu_compiler.planners.tuning import DEFAULT_TUNING, Tuning
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.costs.amp import Products, product_table_bytes, products_cycles
from hloipu_runtime.codelets.costs.reduce import summing_cycles
from hloipu_runtime.codelets.dense.dot import Dot
from hloipu_runtime.costs.exchange_price import side_by_side_cycles
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.costs import TileTraffic, beginning, exchange_cycles, sync
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.mapping import Sizes

_SLICES = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)
"""In how many slices of its rows, columns or depth a dot may be done, where memory bites."""

WHOLE, ROWS, COLUMNS, DEPTH = "whole", "rows", "columns", "depth"
"""What is done slice by slice."""

_SLICE_FRAGMENTS = 40
"""The code of a slice's steps and the state of its vertices, in pieces of exchange. Assumed."""

_SHORTEST_RUN_BYTES = 32
"""Pieces of rows that are shorter come one by one, and longer ones together, as rows mostly lie on
one tile. Assumed."""

_LEAST_GAIN = 2
"""So many times fewer bytes that slices of the depth have to need where nothing fits. Assumed."""

_NEVER = 1 << 60
"""The price of what cannot be."""

_MOST_SHOWN = 5
"""Grids of each number of slices that are looked at for an explanation."""


class DotGrid(NamedTuple):
    """How a dot product is spread."""

    part: int
    """Elements of a piece of the depth; 0: the depth is whole on each tile."""
    placement: Placement
    """Of one slice."""
    cycles: int
    """Estimate: operands in, products, and pieces brought together."""
    bytes_per_tile: int
    """Of the parts of operands and products, and of what pieces are summed from."""
    slices: int = 1
    """Of one dimension, done one after the other."""
    sliced: str = WHOLE
    """The first dimension of the rows or columns, or the depth: whose slices add up in place."""
    sliced_depth: int = 0
    """Which of the contracted dimensions has the slices of the depth."""


class _Sides(NamedTuple):
    """The dimensions of a slice's result: batch, rows, columns; and the depth."""

    batch: Sizes
    rows: Sizes
    columns: Sizes
    cut_depth: int
    """Of the contracted dimension that may be cut into pieces."""
    other_depth: int
    slices: int = 1
    sliced: str = WHOLE
    sliced_depth: int = 0
    fragment_cycles: int = 0
    """What the code of one piece that a tile receives is worth."""
    fragment_bytes: int = 0
    """What that code takes, where code counts."""
    lhs_in_rows: bool = False
    """Of slices of the depth: whether a slice of lhs is a piece of each of its rows."""
    rhs_in_rows: bool = False
    cuts_slices: bool = False
    """Whether the dimension with the slices is the one that is cut into pieces."""


class _Types(NamedTuple):
    lhs: str
    rhs: str
    result: str
    partial: str

    def bits(self) -> tuple[int, int, int, int]:
        """Return the bits of an element of each."""
        lhs, rhs, result, partial = (ELEMENT_TYPES[name].bits for name in self)
        return lhs, rhs, result, partial


class _Blocks(NamedTuple):
    """Largest parts and numbers of parts; entries of the arrays are candidates."""

    batch: Amounts
    rows: Amounts
    columns: Amounts
    depth: Amounts
    row_parts: Amounts
    column_parts: Amounts
    pieces: Amounts


class _Prices(NamedTuple):
    cycles: Amounts
    bytes_per_tile: Amounts
    shares_rhs: NDArray[np.bool_]
    """Whether tiles side by side have the same part of rhs, not of lhs."""


class DotWork(NamedTuple):
    """A dot product to be planned."""

    machine: Machine
    codelet: Dot
    lhs: Tensor
    rhs: Tensor
    result: Tensor
    tuning: Tuning = DEFAULT_TUNING

    @property
    def budget_bytes(self) -> int:
        """The plan's share of a tile's memory."""
        return self.machine.memory.bytes_per_tile * self.tuning.memory_percent // 100


@lru_cache(1 << 12)
def dot_grid(work: DotWork) -> DotGrid:
    """Return the cheapest grid that needs at most the plan's share of a tile's memory.

    Where the cheapest of all needs more, rows, columns or the depth may be done in slices, one
    after the other. Where nothing fits, the grid that needs least.
    """
    machine, types, whole, budget_bytes = (
        work.machine,
        _types(work),
        _sides(work),
        work.budget_bytes,
    )
    best, fits = _cheapest(machine, whole, types, budget_bytes)
    if fits == 2:
        return best
    fitting = [best] if fits else []
    least = best
    for slices in _all_slices(whole, work):
        for sides in slices:
            other, fits = _cheapest(machine, sides, types, budget_bytes)
            if fits:
                fitting.append(other)
            # Where nothing fits, the finest slices of the depth would cost cycles for few bytes.
            elif (_LEAST_GAIN if sides.sliced == DEPTH else 1) * other.bytes_per_tile < (
                least.bytes_per_tile
            ):
                least = other
            if fits == 2:
                # Memory no longer bites: finer slices only cost more.
                break
    return min(fitting, key=lambda x: x.cycles) if fitting else least


def dot_alternatives(work: DotWork) -> list[DotGrid]:
    """Return the cheapest grids of the whole and of each number of slices, fitting or not."""
    types, whole = _types(work), _sides(work)
    grids = []
    for sides in (whole, *chain.from_iterable(_all_slices(whole, work))):
        candidates = _all_priced(work.machine, sides, types)
        for place in candidates.prices.cycles.argsort(kind="stable")[:_MOST_SHOWN].tolist():
            grids.append(_grid_at(sides, candidates, place))
    return grids


def _types(work: DotWork) -> _Types:
    kind = work.result.element_type
    partial = work.tuning.partial_type(kind)
    return _Types(work.lhs.element_type, work.rhs.element_type, kind, partial)


def cut_dimension(codelet: Dot, lhs: Tensor) -> int:
    """Return which of the contracted dimensions is cut into pieces: the largest, for most choices.

    A weight gradient contracts batch and positions, and batches may be small.
    """
    depth = [lhs.shape[d] for d in codelet.lhs_contracting]
    return depth.index(max(depth)) if depth else 0


def _sides(work: DotWork) -> _Sides:
    machine, codelet, lhs, _, result, tuning = work
    batch = len(codelet.lhs_batch)
    rows = len(lhs.shape) - batch - len(codelet.lhs_contracting)
    depth = [lhs.shape[d] for d in codelet.lhs_contracting]
    cut = depth.pop(cut_dimension(codelet, lhs)) if depth else 1
    return _Sides(
        result.shape[:batch],
        result.shape[batch : batch + rows],
        result.shape[batch + rows :],
        cut,
        prod(depth),
        fragment_cycles=tuning.code_price.compared * machine.memory.exchange_fragment_code_bytes,
        fragment_bytes=machine.memory.exchange_fragment_code_bytes if tuning.code_memory else 0,
    )


def _all_slices(whole: _Sides, work: DotWork) -> tuple[list[_Sides], ...]:
    """Return slices of the rows, of the columns and of the depth, of each the coarsest first."""
    return (
        _sliced(whole, columns=False),
        _sliced(whole, columns=True),
        _slices_of_depth(whole, work.codelet, work.lhs),
    )


def _slices_of_depth(whole: _Sides, codelet: Dot, lhs: Tensor) -> list[_Sides]:
    """Return equal slices of a contracted dimension, rather of one that is not cut into pieces."""
    if not ELEMENT_TYPES[codelet.element_type].is_float:
        return []
    sizes = [lhs.shape[d] for d in codelet.lhs_contracting]
    cut = cut_dimension(codelet, lhs)
    order = sorted(range(len(sizes)), key=lambda n: (n == cut, -sizes[n]))
    slices_of_depth = []
    for slices in _SLICES:
        n = next((n for n in order if sizes[n] and sizes[n] % slices == 0), None)
        if n is not None:
            one = whole._replace(
                slices=slices,
                sliced=DEPTH,
                sliced_depth=n,
                lhs_in_rows=_is_within(codelet.lhs_contracting, codelet.lhs_batch, n),
                rhs_in_rows=_is_within(codelet.rhs_contracting, codelet.rhs_batch, n),
            )
            if n == cut:
                cut_depth = whole.cut_depth // slices
                slices_of_depth.append(one._replace(cut_depth=cut_depth, cuts_slices=True))
            else:
                slices_of_depth.append(one._replace(other_depth=whole.other_depth // slices))
    return slices_of_depth


def _is_within(contracting: tuple[int, ...], batch: tuple[int, ...], n: int) -> bool:
    """Whether dimensions that stay in the result come before the n-th contracted one."""
    inner = {*contracting, *batch}
    return any(d not in inner for d in range(contracting[n]))


def _sliced(whole: _Sides, *, columns: bool) -> list[_Sides]:
    """Return slices of the first dimension of the rows or columns, the coarsest first."""
    equal_slices = []
    sizes = whole.columns if columns else whole.rows
    for slices in _SLICES:
        if sizes and sizes[0] >= slices:
            cut = (over(sizes[0], slices), *sizes[1:])
            one = whole._replace(columns=cut) if columns else whole._replace(rows=cut)
            count = over(sizes[0], cut[0])
            equal_slices.append(one._replace(slices=count, sliced=COLUMNS if columns else ROWS))
    return equal_slices


def _cheapest(
    machine: Machine, sides: _Sides, types: _Types, budget_bytes: int
) -> tuple[DotGrid, int]:
    """Return the cheapest grid that fits: 2 if no other is cheaper, 1 if one is.

    The one that needs least, and 0, if none fits.
    """
    unbeaten = _unbeaten(machine, sides, types)
    fitting = (unbeaten.prices.bytes_per_tile[:-1] <= budget_bytes).nonzero()[0].tolist()
    if not fitting:
        return _grid_at(sides, unbeaten, -1), 0
    return _grid_at(sides, unbeaten, fitting[0]), 1 if fitting[0] else 2


class _PricedCandidates(NamedTuple):
    candidates: Candidates
    step: Amounts
    """Elements of a piece of the depth."""
    pieces: Amounts
    prices: _Prices


@lru_cache(1 << 12)
def _unbeaten(machine: Machine, sides: _Sides, types: _Types) -> _PricedCandidates:
    """Return candidates of which no faster one needs as little, the fastest first.

    Last comes the one that needs least: of these the first, not the fastest.
    """
    candidates, step, pieces, prices = _all_priced(machine, sides, types)
    order = prices.cycles.argsort(kind="stable")
    sizes = prices.bytes_per_tile[order]
    least = np.minimum.accumulate(sizes)
    is_unbeaten = np.concatenate([[True], sizes[1:] < least[:-1]])
    places = np.append(order[is_unbeaten], prices.bytes_per_tile.argmin())
    return _PricedCandidates(
        Candidates(*(each[places] for each in candidates)),
        step[places],
        pieces[places],
        _Prices(*(each[places] for each in prices)),
    )


def _all_priced(machine: Machine, sides: _Sides, types: _Types) -> _PricedCandidates:
    rows, columns = prod(sides.rows), prod(sides.columns)
    depth = sides.cut_depth * sides.other_depth
    most_pieces = max(1, min(sides.cut_depth, over(depth, DEPTH_GRAIN)))
    depth_grain = DEPTH_GRAIN // gcd(DEPTH_GRAIN, sides.other_depth)
    candidates = candidates_of(
        machine.chip.tiles_per_ipu, prod(sides.batch), rows, columns, most_pieces
    )
    grain = np.where(
        candidates.rows_grained, 1, np.where(columns >= GRAIN * candidates.columns, GRAIN, 1)
    )
    batch, _ = block_sizes(sides.batch, candidates.batch, np.ones_like(candidates.batch))
    n, column_parts = block_sizes(sides.columns, candidates.columns, grain)
    grain = np.where(candidates.rows_grained & (rows >= GRAIN * candidates.rows), GRAIN, 1)
    m, row_parts = block_sizes(sides.rows, candidates.rows, grain)
    step = _over(_over(sides.cut_depth, candidates.depth), depth_grain) * depth_grain
    step = np.where(candidates.depth > 1, step, max(1, sides.cut_depth))
    pieces = np.maximum(1, _over(sides.cut_depth, step))
    k = np.minimum(step, sides.cut_depth) * sides.other_depth
    blocks = _Blocks(batch, m, n, k, row_parts, column_parts, pieces)
    return _PricedCandidates(candidates, step, pieces, _priced(machine, sides, types, blocks))


def _grid_at(sides: _Sides, priced: _PricedCandidates, place: int) -> DotGrid:
    prices, pieces = priced.prices, int(priced.pieces[place])
    return DotGrid(
        int(priced.step[place]) if pieces > 1 else 0,
        _placement(sides, priced.candidates.at(place), pieces, bool(prices.shares_rhs[place])),
        int(prices.cycles[place]),
        int(prices.bytes_per_tile[place]),
        sides.slices,
        sides.sliced,
        sides.sliced_depth,
    )


def _placement(sides: _Sides, candidate: Candidate, pieces: int, shares_rhs: bool) -> Placement:
    """Return the grid of a candidate: tiles side by side differ in columns, or in rows."""
    first = 1 if pieces > 1 else 0
    rows, columns = prod(sides.rows), prod(sides.columns)
    grained = (
        rows >= GRAIN * candidate.rows
        if candidate.rows_grained
        else columns >= GRAIN * candidate.columns
    )
    grain = GRAIN if grained else 1
    before = first + len(sides.batch)
    across = parts_of(
        sides.columns,
        before + len(sides.rows),
        candidate.columns,
        1 if candidate.rows_grained else grain,
    )
    down = parts_of(sides.rows, before, candidate.rows, grain if candidate.rows_grained else 1)
    counts = [(0, pieces, 1)] if first else []
    counts += parts_of(sides.batch, first, candidate.batch, 1)
    counts += [*across, *down] if shares_rhs else [*down, *across]
    sizes = ((pieces,) if first else ()) + sides.batch + sides.rows + sides.columns
    return grid(counts, sizes)


def _priced(machine: Machine, sides: _Sides, types: _Types, blocks: _Blocks) -> _Prices:
    bits = types.bits()
    cut = blocks.pieces > 1
    results = blocks.batch * blocks.rows * blocks.columns
    lhs = _over(blocks.batch * blocks.rows * blocks.depth * bits[0], 8)
    rhs = _over(blocks.batch * blocks.depth * blocks.columns * bits[1], 8)
    partials = _over(results * np.where(cut, bits[3], bits[2]), 8)
    # The operand that does not change from slice to slice comes in once.
    in_lhs = 1 if sides.sliced == COLUMNS else sides.slices
    in_rhs = 1 if sides.sliced == ROWS else sides.slices
    fragments = np.minimum(blocks.column_parts, blocks.rows) + np.minimum(
        blocks.row_parts, blocks.depth
    )
    runs: Amounts | int = 0
    if sides.sliced == DEPTH:
        run_bits = blocks.depth * np.array(bits[:2])[:, None]
        are_single = run_bits < 8 * _SHORTEST_RUN_BYTES
        if sides.cuts_slices:
            # Pieces of slices that end within one begin elsewhere in each, where nothing else ends.
            piece = blocks.depth // sides.other_depth
            are_single = are_single | (cut & (sides.cut_depth % piece != 0))
        in_rows = np.array([sides.lhs_in_rows, sides.rhs_in_rows])[:, None] & are_single
        runs = blocks.batch * (in_rows[0] * blocks.rows + in_rows[1] * blocks.columns)
        fragments = fragments + runs
    in_all = sides.slices * fragments
    ways = (
        (in_lhs * lhs, in_rhs * rhs, blocks.column_parts),
        (in_rhs * rhs, in_lhs * lhs, blocks.row_parts),
    )
    alone, swapped = (np.asarray(side_by_side_cycles(machine, *x, in_all)) for x in ways)
    begin, barrier = beginning(machine).cycles, sync(machine).cycles
    cycles = np.minimum(alone, swapped) + (sides.slices - 1) * begin
    sizes = Products(blocks.batch, blocks.rows, blocks.depth, blocks.columns)
    work = products_cycles(
        machine, sizes, (types.lhs, types.rhs), (types.result, types.partial), cut
    )
    each = barrier + sides.fragment_cycles * fragments + work
    share = _over(results, blocks.pieces)
    gathered = _over(share * blocks.pieces * bits[3], 8)
    gathering = TileTraffic(received_bytes=gathered, received_fragments=blocks.pieces)
    summing = barrier + exchange_cycles(machine, gathering)
    summing = summing + sides.fragment_cycles * blocks.pieces
    summing = summing + summing_cycles(machine, types.partial, share, blocks.pieces)
    of_depth = sides.sliced == DEPTH
    # Slices of the depth add up in place, and their pieces are brought together once.
    sums = 1 if of_depth else sides.slices
    cycles = cycles + sides.slices * each + sums * np.where(cut, summing, 0)
    if sides.slices > 1:
        sent = _slice_sent(machine, sides, bits)
        rate = machine.exchange.receive_bytes_per_cycle
        changing = (0 if sides.sliced == COLUMNS else lhs) + (0 if sides.sliced == ROWS else rhs)
        cycles = cycles + sides.slices * np.maximum(0, sent - _over(changing, rate))
        cycles = cycles + sides.slices * _SLICE_FRAGMENTS * sides.fragment_cycles
    # Operands are gone by the time that pieces are brought together, but for the one that the next
    # slices need.
    gathered = np.where(cut, gathered, 0)
    state = product_table_bytes(machine, sizes, (types.lhs, types.rhs))
    state = sides.slices * (state + machine.memory.vertex_fixed_bytes)
    if sides.slices == 1 or of_depth:
        memory = state + partials + np.maximum(lhs + rhs, gathered)
        if of_depth:
            # Short pieces of rows take more code in each slice than the slice spares.
            memory = memory + (sides.slices - 1) * sides.fragment_bytes * runs
            # Sums have to be partial sums all the time.
            may_add = cut | np.asarray(types.result == types.partial)
            cycles, memory = (np.where(may_add, x, _NEVER) for x in (cycles, memory))
        return _Prices(cycles, memory, swapped < alone)
    # All slices are put together at once. Blocks of rows take parts of few slices of rows, and of
    # all slices of columns.
    fragments = blocks.column_parts * (sides.slices if sides.sliced == COLUMNS else 1)
    sliced = sides.slices * _over(share * bits[2], 8)
    joining = TileTraffic(received_bytes=sliced, received_fragments=fragments)
    cycles = cycles + barrier + exchange_cycles(machine, joining)
    cycles = cycles + sides.fragment_cycles * fragments
    stays, comes = (lhs, rhs) if sides.sliced == COLUMNS else (rhs, lhs)
    memory = state + stays + partials + np.maximum(comes, gathered)
    memory = np.maximum(memory, sliced) + sliced
    return _Prices(cycles, memory, swapped < alone)


def _slice_sent(machine: Machine, sides: _Sides, bits: tuple[int, int, int, int]) -> int:
    """Return the cycles in which the few tiles that have a slice of operands send it."""
    depth = sides.cut_depth * sides.other_depth
    rows = 0 if sides.sliced == COLUMNS else prod(sides.rows) * bits[0]
    columns = 0 if sides.sliced == ROWS else prod(sides.columns) * bits[1]
    size = over(prod(sides.batch) * (rows + columns) * depth, 8)
    tiles = max(1, machine.chip.tiles_per_ipu // sides.slices)
    return over(over(size, tiles), machine.exchange.send_bytes_per_cycle)


def _over(amounts: Amounts | int, parts: Amounts | int) -> Amounts:
    """Return quotients, rounded up."""
    return np.asarray(-(-amounts // parts), np.int64)
