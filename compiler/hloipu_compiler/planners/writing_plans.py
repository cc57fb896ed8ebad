"""Planner of scatters and dynamic-update-slices.

Data lies on a grid, and every tile looks at the windows that may fall into its ranges. Grids are
searched over the parts of what updates follow, and of what not. Where windows and the notes on them
would take much of a tile, they come in slices, each written before the next one is brought.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from hloipu_compiler.planners.indexed_grids import (
    Option,
    most_gathered,
    placed,
    priced,
    searched,
    tiles_worth,
    where_it_lies,
)
from hloipu_compiler.planners.planned import Cycles
from hloipu_compiler.planners.searching import Candidate
from hloipu_compiler.planners.stages import PlacedOperand, Work, bytes_of, part_of
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.program.mapping import Sizes


@lru_cache(1 << 10)
def writings(work: Work, count: int) -> tuple[Option, ...]:
    """Return grids: where the data lies, and splits of what updates follow and of what not.

    `count`: operands that are data; those after them are what is written, and where.
    """
    machine, indexing = work.machine, work.indexing
    tiles = tiles_worth(machine, [operand.tensor for operand in work.operands])
    followed = {i.label for indices in indexing.operands[count:] for i in indices}
    labels = range(len(indexing.sizes))
    groups = [
        [label for label in labels if label in followed],
        [label for label in labels if label not in followed],
    ]

    def option(candidate: Candidate) -> Option:
        wanted = list(zip(groups, candidate, strict=True))
        return _in_slices(work, priced(work, placed(indexing.sizes, wanted, tiles)))

    lying = [_in_slices(work, option) for option in where_it_lies(work)]
    return (*lying, *searched(machine, indexing, groups, tiles, option))


def windows_cut(work: Work) -> tuple[int, ...]:
    """Return the dimension of the indices, and of all updates, along which windows can be cut.

    None where there is none. Windows that meet keep their order: it is the first that counts any.
    """
    from hloipu_runtime.codelets.indexed.scatter import Scatter
    from hloipu_runtime.codelets.indexed.scatter_parts import batch_places

    codelet, count = work.codelet, len(work.results)
    if not isinstance(codelet, Scatter):
        return ()
    dims, indices = codelet.dims, work.operands[count].tensor.shape
    for d, place in batch_places(dims, len(indices)):
        if d not in dims.scatter_indices_batching_dims and indices[d] > 1:
            return (d, *(place,) * count)
    return ()


def with_windows(work: Work, shapes: Sequence[Sizes]) -> Work:
    """Return the work on some of the windows: of indices and updates of other sizes."""
    count = len(work.results)
    windows = [
        PlacedOperand(Tensor(x.tensor.element_type, shape), None)
        for x, shape in zip(work.operands[count:], shapes, strict=True)
    ]
    return work._replace(operands=(*work.operands[:count], *windows))


def _in_slices(work: Work, option: Option) -> Option:
    """Return an option with as many slices as it takes to hold little.

    No more where halving them spares less than a quarter of what a tile holds.
    """
    cut, best = windows_cut(work), option
    if not cut:
        return option
    count = len(work.results)
    windows = [operand.tensor.shape for operand in work.operands[count:]]
    while best.held_bytes > most_gathered(work.machine) and 2 * best.slices <= windows[0][cut[0]]:
        slices = 2 * best.slices
        shapes = [
            tuple(-(-n // slices) if i == d else n for i, n in enumerate(shape))
            for shape, d in zip(windows, cut, strict=True)
        ]
        part = with_windows(work, shapes)
        once, indexing = priced(part, option.placement), part.indexing
        held_bytes = once.held_bytes + sum(
            bytes_of(part_of(option.placement, indices, operand.tensor))
            for indices, operand in zip(
                indexing.operands[count:], part.operands[count:], strict=True
            )
        )
        if 4 * held_bytes > 3 * best.held_bytes:
            break
        cycles = Cycles(
            slices * once.cycles.compute, option.cycles.exchange, slices * option.cycles.sync
        )
        best = replace(option, cycles=cycles, held_bytes=held_bytes, slices=slices)
    return best
