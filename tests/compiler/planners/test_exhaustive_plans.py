"""Planners against all candidates of a small space, priced by formulas written down once more.

`tiny`: 4 tiles, a bus for two, 4 bytes a cycle received or 8 where a bus shares them; an exchange
begins with 10 cycles of set-up, 20 of route and 100 of sync, and takes 2 for each piece.
"""

from collections.abc import Iterator
from itertools import product
from math import inf, prod

import pytest

from hloipu_compiler.lowering.ops.top_k import merging_options
from hloipu_compiler.planners.dot_grids import DotWork, dot_grid
from hloipu_compiler.planners.indexed_grids import best_of
from hloipu_compiler.planners.reading_plans import readings
from hloipu_compiler.planners.stages import PlacedOperand, Work, bytes_of
from hloipu_compiler.planners.transposing import transpositions
from hloipu_compiler.planners.tuning import Tuning
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.dense.dot import Dot
from hloipu_runtime.codelets.indexed.dynamic_slice import DynamicSlice
from hloipu_runtime.codelets.indexed.gather import Gather
from hloipu_runtime.codelets.ops.move import Transpose
from hloipu_runtime.codelets.ops.reduce import Reduce
from hloipu_runtime.codelets.ops.topk import TopK, TopKMerge
from hloipu_runtime.costs.exchange_price import CodePrice
from hloipu_runtime.kernels.gather import GatherDimensions
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.program.mapping import Mapping, Sizes, Span, Tiles

TINY = load_machine("tiny")
TILES = 4
BEGIN = 10 + 20 + 100
WIDTH = {"f16": 2, "f32": 4}


def up(amount: int, grain: int) -> int:
    return -(-amount // grain)


def blocks(size: int, grain: int = 1) -> Iterator[tuple[int, int]]:
    """Yield each number of parts up to the tiles with the size of the largest part."""
    for parts in range(1, min(size, TILES) + 1):
        block = min(size, up(up(size, parts), grain) * grain)
        yield up(size, block), block


def dot_cycles(
    kind: str, block: Sizes, m_parts: int, n_parts: int, pieces: int, code_price: int
) -> int:
    """Return the cycles of a product of blocks, whose whole parts are received.

    A piece that is received takes 32 bytes of code, each of them worth so many cycles.
    """
    m, k, n = block
    each = 2 + 32 * code_price
    width = WIDTH[kind]
    lhs, rhs = m * k * width, k * n * width
    sharing_lhs = up(lhs, 8 if n_parts % 2 == 0 else 4) + up(rhs, 4)
    sharing_rhs = up(rhs, 8 if m_parts % 2 == 0 else 4) + up(lhs, 4)
    made = Tensor("f32" if pieces > 1 else kind, (m, n))
    codelet = Dot((), (), (1,), (0,), made.element_type)
    work = codelet.work(TINY, [Tensor(kind, (m, k)), Tensor(kind, (k, n))], [made]).cycles
    cycles = (
        min(sharing_lhs, sharing_rhs) + BEGIN + each * (min(n_parts, m) + min(m_parts, k)) + work
    )
    if pieces > 1:
        share = up(m * n, pieces)
        given = [Tensor("f32", (pieces, share)), Tensor("f32", ())]
        add = Reduce((0,), "add", None, ("f32",)).work(TINY, given, [Tensor("f32", (share,))])
        cycles += up(4 * share * pieces, 4) + BEGIN + each * pieces + add.cycles
    return cycles


@pytest.mark.parametrize(
    ("kind", "m", "k", "n"),
    [
        ("f32", 8, 16, 8), ("f32", 1, 256, 64), ("f16", 8, 512, 8), ("f16", 33, 40, 65),
        ("f32", 5, 300, 3), ("f16", 64, 24, 16), ("f32", 200, 8, 24),
    ],
)  # fmt: skip
@pytest.mark.parametrize("code_price", [0, 1])
def test_no_split_of_a_product_is_cheaper(
    kind: str, m: int, k: int, n: int, code_price: int
) -> None:
    tuning = Tuning(code_price=CodePrice(code_price, code_price))
    lhs, rhs, result = (Tensor(kind, shape) for shape in ((m, k), (k, n), (m, n)))
    plan = dot_grid(DotWork(TINY, Dot((), (), (1,), (0,), kind), lhs, rhs, result, tuning))
    least = inf
    for of_rows, of_columns in ((16, 1), (1, 16), (1, 1)):
        for (a, rows), (b, columns) in product(blocks(m, of_rows), blocks(n, of_columns)):
            for depth in range(1, TILES // (a * b) + 1):
                piece = k if depth == 1 else min(k, up(up(k, depth), 8) * 8)
                pieces = up(k, piece)
                least = min(
                    least, dot_cycles(kind, (rows, piece, columns), a, b, pieces, code_price)
                )
    assert plan.cycles == least


@pytest.mark.parametrize(
    ("kind", "rows", "length", "k"), [("f32", 2, 50, 3), ("f16", 1, 2000, 20), ("f32", 5, 300, 1)]
)
def test_no_pieces_and_fan_find_the_best_sooner(kind: str, rows: int, length: int, k: int) -> None:
    """Each tile has six workers, and a piece for each at most."""
    least = inf
    for pieces in (2**n for n in range(12) if rows * 2**n <= 6 * TILES or n == 0):
        if pieces > 2 and length < k * pieces:
            break
        for fan in (2**n for n in range(1, 12) if 2**n <= max(2, pieces)):
            least = min(least, merged_cycles(kind, rows, length, k, pieces, fan))
    options = merging_options(TINY, kind, rows, length, k)
    assert min(x.total for x in options.values()) == least


def test_candidates_are_merged_in_so_many_bytes_at_most() -> None:
    """64 KiB of f32 and s32 pairs, unless not even two rows of candidates take less."""
    for k, fans in ((1024, {2, 4, 8}), (1025, {2, 4}), (5000, {2})):
        options = merging_options(TINY, "f32", 1, 16 * k, k)
        assert {cut.fan for cut in options if cut.pieces == 16} == fans


def merged_cycles(kind: str, rows: int, length: int, k: int, pieces: int, fan: int) -> int:
    """Return the cycles of finding the k best of pieces, then of the candidates of so many."""
    width = WIDTH[kind]
    share = up(rows * pieces, TILES)
    taken = Tensor(kind, (share, up(length, pieces)))
    work = TopK(k).work(TINY, [taken], [Tensor(kind, (share, k))]).cycles
    cycles = work + up(taken.elements * width, 4) + BEGIN + 2
    while pieces > 1:
        once = min(fan, pieces)
        pieces = up(pieces, once)
        share = up(rows * pieces, TILES)
        candidates = [Tensor(x, (share * once, k)) for x in (kind, "s32")]
        best = [Tensor(x, (share, k)) for x in (kind, "s32")]
        cycles += TopKMerge(k, once).work(TINY, candidates, best).cycles
        cycles += up(share * once * k * (width + 4), 4) + BEGIN + 2 * 2 * share * once
    return cycles


@pytest.mark.parametrize(
    ("kind", "shape", "permutation"),
    [("f32", (30, 50), (1, 0)), ("f16", (6, 8, 10), (1, 0, 2)), ("f16", (16, 24), (1, 0))],
)
def test_no_split_of_a_transpose_is_cheaper(
    kind: str, shape: Sizes, permutation: tuple[int, ...]
) -> None:
    """Where the operand lies as it is wanted only the work counts."""
    made = tuple(shape[d] for d in permutation)
    least = inf
    for parts in product(*(blocks(n) for n in made)):
        if prod(count for count, _ in parts) > TILES:
            continue
        taken = [0] * len(shape)
        for d, (_, block) in zip(permutation, parts, strict=True):
            taken[d] = block
        result = Tensor(kind, tuple(block for _, block in parts))
        work = Transpose(permutation).work(TINY, [Tensor(kind, tuple(taken))], [result])
        least = min(least, work.cycles)
    best = transpositions(TINY, Tensor(kind, shape), permutation, None)[0]
    assert best.cycles.total == least


@pytest.mark.parametrize(
    ("shape", "window"), [((20, 16), (4, 16)), ((12, 40), (12, 3)), ((9, 7), (2, 7))]
)
def test_no_split_of_what_is_read_is_cheaper(shape: Sizes, window: Sizes) -> None:
    """A table that lies where it is wanted: a tile slices its part of what the window leaves."""
    moving = tuple(d for d, (n, w) in enumerate(zip(shape, window, strict=True)) if n != w)
    places = [PlacedOperand(Tensor("s32", ()), None)] * len(shape)
    table = PlacedOperand(Tensor("f32", shape), None)
    read = Work(TINY, DynamicSlice(), (table, *places), (Tensor("f32", window),))
    found = readings(read, moving)
    least = inf
    for parts in product(*(blocks(n) for n in window)):
        if prod(count for count, _ in parts) > TILES:
            continue
        made = tuple(block for _, block in parts)
        held = tuple(n if d in moving else made[d] for d, n in enumerate(shape))
        operands = [Tensor("f32", held), *(x.tensor for x in places)]
        work = DynamicSlice().work(TINY, operands, [Tensor("f32", made)])
        least = min(least, work.cycles)
    assert min(x.cycles.total for x in found) == least


@pytest.mark.parametrize("ranges", [3, 24, 92])
def test_a_table_in_ranges_is_read_where_it_lies(ranges: int) -> None:
    """One element of each row: in however many ranges rows lie, nothing of them need move."""
    rows, length, parts = 1024, 50257, 16
    block, high = -(-length // ranges), rows // parts
    tiles = Tiles((parts, ranges), (ranges, 1))
    lies = Mapping(tiles, (Span(0, high, 0, high), Span(1, block, 0, block)))
    table = PlacedOperand(Tensor("f32", (rows, length)), lies)
    places = PlacedOperand(Tensor("s32", (rows, 1)), None)
    direct = Gather(GatherDimensions((), (1,), (1,), 1, (0,), (0,)), (1, 1))
    machine = load_machine("bow")
    work = Work(machine, direct, (table, places), (Tensor("f32", (rows,)),))
    options = readings(work, (1,))
    best = best_of(machine, options)
    assert best.stays
    assert best.placement.tiles == tiles
    assert best.held_bytes < bytes_of(Tensor("f32", (high, block)))
