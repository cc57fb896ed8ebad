"""Planner of reads at run-time places: directly, or from ranges of the data.

Directly, a tile has all of the dimensions that indices walk along. Else each range of one of them
is on tiles of its own, which offer what they have of every slice; the offers are put together. Both
are searched over the parts of what table and result share, and of the indices.
"""

import math
from collections.abc import Iterator
from functools import lru_cache

from hloipu_compiler.ir.graph import Instruction
from hloipu_compiler.planners.indexed_grids import (
    Option,
    most_gathered,
    placed,
    priced,
    receiving,
    searched,
    tiles_worth,
    where_it_lies,
    worth,
)
from hloipu_compiler.planners.planned import Cycles
from hloipu_compiler.planners.searching import Candidate
from hloipu_compiler.planners.stages import Work, bytes_of
from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.indexed.gather import Gather, GatherCandidates
from hloipu_runtime.codelets.indexed.or_bits import OrBits
from hloipu_runtime.kernels.gather import GatherDimensions
from hloipu_runtime.machine.charges import over
from hloipu_runtime.program.mapping import Sizes

_WORSE_IN_A_ROW = 2
"""After so many sizes of ranges, none better than those before, no more are tried."""


@lru_cache(1 << 11)
def readings(work: Work, moving: tuple[int, ...]) -> tuple[Option, ...]:
    """Return ways to read: directly, and from ranges of the longest and of split dimensions.

    `work`: a `Gather` or `DynamicSlice`. `moving`: the dimensions that indices walk along.
    """
    machine, table = work.machine, work.operands[0]
    options = list(_searched(work, 0))
    if not moving:
        return tuple(options)
    spans = table.mapping.spans if table.mapping is not None else ()
    split = {d for d in moving if spans and spans[d].axis >= 0}
    for d in sorted(split | {max(moving, key=lambda d: table.tensor.shape[d])}):
        kept = {spans[d].size} if d in split else set()
        few = [
            option.cycles.total for option in options if option.held_bytes <= most_gathered(machine)
        ]
        options += _from_ranges(work, d, kept, min(few, default=1 << 62))
    return tuple(options)


def gather_codelet(op: Instruction, table: Sizes) -> tuple[Gather, tuple[int, ...]]:
    """Return the gather that an instruction describes, and the dimensions it walks along."""
    read = op.attributes.integers
    sizes = read("slice_sizes")
    dims = GatherDimensions(
        read("offset_dims"),
        read("collapsed_slice_dims"),
        read("start_index_map"),
        op.attributes.integer("index_vector_dim"),
        read("operand_batching_dims"),
        read("start_indices_batching_dims"),
    )
    moving = tuple(d for d in dims.start_index_map if sizes[d] != table[d])
    return Gather(dims, sizes), moving


def _candidates(direct: Codelet, dimension: int, block: int, ranges: int) -> Codelet:
    """Return the codelet that offers what ranges of a dimension have."""
    if isinstance(direct, Gather):
        return GatherCandidates(direct.dims, direct.slice_sizes, dimension, block, ranges)
    from hloipu_runtime.codelets.indexed.dynamic_slice import DynamicSlice
    from hloipu_runtime.codelets.indexed.dynamic_slice_candidates import DynamicSliceCandidates

    assert isinstance(direct, DynamicSlice)
    return DynamicSliceCandidates(dimension, block, direct.dropped)


def _searched(work: Work, ranges: int) -> Iterator[Option]:
    """Yield grids for a codelet: where its first operand lies, and what a search looks at.

    With ranges, label 0 counts them; each is a part.
    """
    machine, indexing = work.machine, work.indexing
    yield from where_it_lies(work)
    first = [0] if ranges else []
    of_table = {index.label for index in indexing.operands[0]}
    every = [label for label in range(len(indexing.sizes)) if label not in first]
    groups = [
        [label for label in every if label in of_table],
        [label for label in every if label not in of_table],
    ]
    tiles = machine.chip.tiles_per_ipu // max(1, ranges)

    def option(candidate: Candidate) -> Option:
        wanted = [(first, ranges), *zip(groups, candidate, strict=True)]
        placement = placed(indexing.sizes, wanted, machine.chip.tiles_per_ipu)
        return priced(work, placement)

    yield from searched(machine, indexing, groups, tiles, option)


def _from_ranges(reading: Work, dimension: int, kept: set[int], best: int) -> Iterator[Option]:
    """Yield readings from ranges of a dimension, priced with what follows.

    `kept`: sizes of ranges in which the dimension lies already, which come first: of them the table
    need not move. `best`: cycles of another way that holds little, more than which putting offers
    together must not take.
    """
    machine, result = reading.machine, reading.results[0]
    size = reading.operands[0].tensor.shape[dimension]
    most = min(machine.chip.tiles_per_ipu, size)
    share = over(result.elements, tiles_worth(machine, [result]))
    before, worse = math.inf, 0
    halved = {over(size, parts) for parts in _twofold(most)} - kept
    for block in (*kept, *sorted(halved, reverse=True)):
        parts = over(size, block)
        if parts < 2:
            continue
        offers = Tensor(result.element_type, (parts, *result.shape))
        taken = Tensor(result.element_type, (parts, share))
        work = OrBits().work(machine, [taken], [Tensor(result.element_type, (share,))])
        after = receiving(machine, bytes_of(taken), parts).plus(Cycles(work.cycles))
        if after.total >= best or worse == _WORSE_IN_A_ROW:
            continue
        codelet = _candidates(reading.codelet, dimension, block, parts)
        cheapest = math.inf
        for option in _searched(reading._replace(codelet=codelet, results=(offers,)), parts):
            option = option.then(after, bytes_of(taken))
            cheapest = min(cheapest, worth(machine, option))
            best = min(best, option.cycles.total)
            yield option
        worse = worse + 1 if cheapest >= before else 0
        before = min(before, cheapest)


def _twofold(most: int) -> list[int]:
    """Return 2, 4, 8, .. below a number, and the number."""
    return [1 << n for n in range(1, most.bit_length()) if 1 << n < most] + [most]
