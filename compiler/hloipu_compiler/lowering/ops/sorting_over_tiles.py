"""Sorting over tiles, for dimensions too long for one tile (steps: codelets/ops/sort.py)."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import NamedTuple

from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.values import TileTensor
from hloipu_compiler.lowering.core.views import mapping_in, seen_as, spread_out
from hloipu_compiler.planners.planned import Choice, Cycles, PlannedOp, losers, shape_texts
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.ops.generate import Iota
from hloipu_runtime.codelets.ops.sort import Sort
from hloipu_runtime.costs.exchange_price import arriving, exchange_price
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.costs import sync
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.mapping import Sizes

MOST_GATHERED_BYTES = 1 << 16
"""Longer rows are not gathered on one tile where they can be sorted over tiles."""


_CODE_SHARE = 4
"""One part in so many of the memory for code may go to the exchanges of one sort."""

_RADICES = (8, 16, 32, 64, 128)

_PARTS_ON_A_TILE = 16
"""Parts are powers of two; more of them than tiles leave fewer tiles idle."""


class Parts(NamedTuple):
    """How a sorted dimension is cut."""

    parts: int
    """A power of two."""
    block: int
    radix: int
    """Most parts that a column of one step spans."""

    @property
    def total(self) -> int:
        """Elements, filling included."""
        return self.parts * self.block


class Step(NamedTuple):
    """One sort of all elements, seen as [outer.., runs, parts of a run.., block, inner..]."""

    codelet: Sort
    shape: Sizes


class Priced(NamedTuple):
    """A cut with its price."""

    cut: Parts
    is_too_much: bool
    """Whether its exchanges take much code, or it gathers rows that are too long."""
    cycles: int


def choose_parts(builder: Builder, sort: Sort, operands: Sequence[TileTensor]) -> Parts:
    """Return the cut with the fewest cycles; one part: every row on one tile.

    Cuts whose exchanges take much code, and rows too long to gather, are taken only if all do.
    """
    length = operands[0].shape[sort.dimension]
    rows = prod(operands[0].shape) // max(1, length)
    kinds = tuple(tensor.element_type for tensor in operands)
    options = cuts(builder.machine, sort, kinds, rows, length)
    builder.explains(lambda: _planned(builder, operands, options, rows))
    return options[0].cut


@lru_cache(1 << 10)
def cuts(
    machine: Machine, sort: Sort, kinds: tuple[str, ...], rows: int, length: int
) -> tuple[Priced, ...]:
    """Return ways to cut rows into parts, each with its price."""
    tiles = machine.chip.tiles_per_ipu
    options = [Parts(1, length, 1)]
    parts = 2
    while parts <= length and rows * parts <= _PARTS_ON_A_TILE * tiles:
        block = -(-length // parts)
        options += [Parts(parts, block, n) for n in _RADICES if n == _RADICES[0] or n <= parts]
        parts *= 2
    limit = machine.memory.executable_bytes // _CODE_SHARE

    def price(cut: Parts) -> Priced:
        if cut.parts == 1:
            is_too_much = length * _element_bytes(kinds) > MOST_GATHERED_BYTES
        else:
            is_too_much = _code_bytes(machine, len(kinds) + 1, cut) > limit
        return Priced(cut, is_too_much, _estimate(machine, sort, kinds, rows, cut))

    return tuple(sorted(map(price, options), key=lambda x: (x.is_too_much, x.cycles)))


def _planned(
    builder: Builder, operands: Sequence[TileTensor], options: Sequence[Priced], rows: int
) -> PlannedOp:

    def choice(option: Priced) -> Choice:
        cut = option.cut
        words = "rows whole" if cut.parts == 1 else "blocks, then runs of blocks"
        elements_per_tile = -(-rows * cut.parts // builder.tile_count) * cut.block
        return Choice(
            words,
            (("blocks", cut.parts),) if cut.parts > 1 else (),
            min(builder.tile_count, rows * cut.parts),
            Cycles(together=option.cycles),
            elements_per_tile * _element_bytes([tensor.element_type for tensor in operands]),
            (("radix", cut.radix),) if cut.parts > 1 else (),
        )

    texts = shape_texts(operands)
    chosen = choice(options[0])
    others = [
        choice(priced) for priced in options if not priced.is_too_much or options[0].is_too_much
    ]
    return PlannedOp(builder.origin, "sort", texts, texts, chosen, losers(chosen, others))


def sort_over_tiles(
    builder: Builder,
    sort: Sort,
    operands: Sequence[TileTensor],
    cut: Parts,
    wanted: int,
    counting: int = -1,
) -> list[TileTensor]:
    """Write the steps of a sort over tiles; return the first `wanted` operands, sorted.

    `counting`: an s32 operand that counts along the dimension, so that it serves as places.
    """
    shape, d = operands[0].shape, sort.dimension
    length = shape[d]
    long = (*shape[:d], cut.total, *shape[d + 1 :])
    leaves = list(operands)
    if cut.total > length:
        leaves = _filled_up(builder, leaves, d, long)
    if _needs_places(sort, operands, cut):
        places = builder.compute(Iota(d, "s32"), [], [("s32", long)])
        at = counting if counting >= 0 else len(leaves)
        leaves[at : at + 1] = places
        sort = replace(sort, places=at, count=length)
    rows = prod(shape) // length
    for step in _steps(sort, long, cut):
        tensors = [Tensor(tensor.element_type, step.shape) for tensor in leaves]
        parts = min(builder.tile_count, max(1, rows) * cut.parts)
        placement = spread_out(step.codelet, tensors, tensors, parts)
        if leaves[0].shape != step.shape:
            mapping = mapping_in(placement, step.codelet, tensors)
            leaves = seen_as(builder, leaves, step.shape, mapping=mapping)
        leaves = builder.compute(
            step.codelet,
            leaves,
            [(tensor.element_type, tensor.shape) for tensor in tensors],
            last_uses=[True] * len(leaves),
            placement=placement,
        )
    box = tuple((0, n) for n in shape)
    return seen_as(builder, leaves[:wanted], shape, ((long, box, (0,) * len(shape)),))


def _steps(sort: Sort, long: Sizes, cut: Parts) -> Iterator[Step]:
    """Yield the sorts: of blocks, then, for longer and longer runs, of columns and of blocks."""
    d = sort.dimension
    run = 1
    while run <= cut.parts:
        runs = cut.parts // run
        factors = _factors(run, cut.radix)
        shape = (*long[:d], runs, *factors, cut.block, *long[d + 1 :])
        one = replace(sort, alternating=d if runs > 1 else -1, rises_and_falls=run > 1)
        for axis in range(d + 1, d + 2 + len(factors)):
            yield Step(replace(one, dimension=axis), shape)
        run *= 2


@lru_cache(1 << 8)
def _factors(run: int, radix: int) -> tuple[int, ...]:
    """Return powers of two up to `radix`, as few and as equal as can be, whose product is `run`."""
    bits, most = run.bit_length() - 1, radix.bit_length() - 1
    count = -(-bits // most) if bits else 0
    return tuple(1 << (bits + n) // count for n in range(count))


def _needs_places(sort: Sort, operands: Sequence[TileTensor], cut: Parts) -> bool:
    """Whether equals can be told apart, or there is filling."""
    if cut.total > operands[0].shape[sort.dimension]:
        return True
    alone = len(operands) == 1 and len(sort.keys) == 1
    if not alone:
        return True
    is_float = ELEMENT_TYPES[operands[0].element_type].is_float
    return is_float and sort.keys[0].order != "total"


def _filled_up(
    builder: Builder, leaves: Sequence[TileTensor], d: int, long: Sizes
) -> list[TileTensor]:
    """Lengthen a dimension, by elements from its start: their values do not matter."""
    shape = leaves[0].shape
    length, zeros = shape[d], (0,) * len(shape)
    front = tuple((0, n) for n in shape)
    rest = tuple((length, n) if k == d else (0, n) for k, n in enumerate(long))
    back = tuple(-length if k == d else 0 for k in range(len(shape)))
    return seen_as(builder, leaves, long, ((shape, front, zeros), (shape, rest, back)))


def _estimate(machine: Machine, sort: Sort, kinds: Sequence[str], rows: int, cut: Parts) -> int:
    """Return roughly the cycles of a sort: its vertices, exchanges and syncs."""
    sort = replace(sort, dimension=1)
    if cut.parts == 1:
        share = -(-rows // machine.chip.tiles_per_ipu)
        return _step_cycles(machine, sort, kinds, (share, cut.block), 1)
    kinds = [*kinds, "s32"]
    sort = replace(sort, places=len(kinds) - 1, count=cut.total)
    merge = replace(sort, rises_and_falls=True)
    # Of more parts than tiles, each tile has several.
    share = -(-rows * cut.parts // machine.chip.tiles_per_ipu)
    cycles = _step_cycles(machine, sort, kinds, (share, cut.block), 1)
    run = 2
    while run <= cut.parts:
        factors = _factors(run, cut.radix)
        for factor in factors:
            columns = -(-share * cut.block // factor)
            cycles += _step_cycles(machine, merge, kinds, (columns, factor), factor)
        cycles += _step_cycles(machine, merge, kinds, (share, cut.block), factors[-1])
        run *= 2
    return cycles + 2 * sync(machine).cycles


def _code_bytes(machine: Machine, operands: int, cut: Parts) -> int:
    """Return roughly a tile's code for what it receives and sends in pieces."""
    pieces, run = 0, 2
    while run <= cut.parts:
        factors = _factors(run, cut.radix)
        pieces += 2 * (sum(factors) + factors[-1])
        run *= 2
    return operands * pieces * machine.memory.exchange_fragment_code_bytes


def _step_cycles(
    machine: Machine, sort: Sort, kinds: Sequence[str], part: Sizes, pieces: int
) -> int:
    tensors = [Tensor(kind, part) for kind in kinds]
    count = prod(part)
    fragments = len(kinds) * min(pieces, count)
    moving = exchange_price(machine, [arriving(machine, count * _element_bytes(kinds), fragments)])
    work = sort.work(machine, tensors, tensors)
    return work.cycles + moving.cycles + sync(machine).cycles


def _element_bytes(kinds: Sequence[str]) -> int:
    return sum(ELEMENT_TYPES[kind].byte_width for kind in kinds)
