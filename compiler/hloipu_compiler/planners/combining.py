"""Planner of sums of partial results that lie on different tiles: all at once, or by and by.

Where p tiles have pieces of the same elements, each takes in a message of all others. In n stages
messages are about n times the nth root of p, so that less exchange code stays in memory, at the
price of a sync and of a vertex for each stage. poplin adds in two stages from 16 pieces on, and in
three from 125 (graphcore/poplibs: lib/poplin/ConvReducePlan.cpp): here these are tried.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import NamedTuple

from hloipu_compiler.planners.placing import Placement, gathered
from hloipu_compiler.planners.planned import Cycles
from hloipu_compiler.planners.stages import PlacedOperand, Stage, Work, staged, total_cycles
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.ops.reduce import Reduce
from hloipu_runtime.costs.exchange_price import NO_CODE_PRICE, CodePrice
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.mapping import Mapping, Sizes, Span, Tiles

_PIECES_OF_STAGES = (16, 125)
"""Pieces from which on two stages are tried, and three."""


class Combining(NamedTuple):
    """Stages that add pieces, the last of which leaves the sums."""

    stages: tuple[Stage, ...]

    @property
    def cycles(self) -> Cycles:
        """Predicted cycles of all stages."""
        return total_cycles(self.stages)

    @property
    def code_bytes(self) -> int:
        """Exchange code of all stages, on a tile."""
        return sum(stage.code_bytes for stage in self.stages)

    @property
    def held_bytes(self) -> int:
        """Of the stage that holds most, on a tile."""
        return max(stage.held_bytes for stage in self.stages)

    @property
    def price(self) -> int:
        """Cycles, and what the code is worth in cycles."""
        return sum(stage.price for stage in self.stages)


@lru_cache(1 << 12)
def combining(
    machine: Machine,
    add: Reduce,
    partials: Tensor,
    mapping: Mapping,
    code_price: CodePrice = NO_CODE_PRICE,
) -> Combining | None:
    """Return the cheapest stages that reduce the leading dimensions of partial results.

    `add` reduces these at once. Each stage is on the tiles that have the pieces. None where those
    cannot share the work.
    """
    last = gathered(mapping, partials.shape[len(add.dimensions) :])
    if last is None:
        return None
    zero = PlacedOperand(Tensor(partials.element_type, ()), None)
    placed = PlacedOperand(partials, mapping)
    kept = Tensor(add.element_types[0], partials.shape[len(add.dimensions) :])
    best = Combining((staged(Work(machine, add, (placed, zero), (kept,), code_price), last),))
    pieces = prod(partials.shape[: len(add.dimensions)])
    if pieces < _PIECES_OF_STAGES[0]:
        return best
    kind = partials.element_type
    if kind == "f16" and not add.of_convolution:
        return best  # plain reductions have partial results in f32
    for first, shape, placement in _beginnings(add, partials.shape, mapping):
        left = prod(shape) // kept.elements if kept.elements else 0
        if pieces < _PIECES_OF_STAGES[1] and left >= _PIECES_OF_STAGES[0]:
            continue  # would go on in two stages
        first = replace(first, element_types=(kind,))
        made = Tensor(kind, shape)
        stage = staged(Work(machine, first, (placed,), (made,), code_price), placement)
        if stage.price >= best.price:
            continue
        after = replace(add, dimensions=tuple(range(len(shape) - len(kept.shape))))
        rest = combining(machine, after, made, stage.mappings[0], code_price)
        if rest is not None and stage.price + rest.price < best.price:
            best = Combining((stage, *rest.stages))
    return best


def _beginnings(
    add: Reduce, shape: Sizes, mapping: Mapping
) -> Iterator[tuple[Reduce, Sizes, Placement]]:
    """Yield reductions of the first leading dimensions, and of equal groups along the first.

    What is left is counted by a leading dimension, which may be 1, and the others.
    """
    for count in range(1, len(add.dimensions)):
        left = (1, *shape[count:])
        placement = gathered(mapping, shape[count:])
        if placement is not None and prod(shape[:count]) > 1:
            labels = tuple((label + 1, span) for label, span in placement.labels)
            dimensions = tuple(range(count))
            first = replace(add, dimensions=dimensions, parts=(shape[0],))
            yield first, left, Placement(placement.tiles, labels)
    span, size = mapping.spans[0], shape[0]
    counts = size == mapping.tiles.extents[span.axis] if span.axis >= 0 else False
    if not counts or span.step != 1 or span.size != 1:
        return
    for group in range(2, size):
        if size % group == 0:
            made = (size // group, *shape[1:])
            placement = gathered(_in_groups(mapping, group), made)
            if placement is not None:
                yield replace(add, dimensions=(0,), parts=(group,)), made, placement


def _in_groups(mapping: Mapping, group: int) -> Mapping:
    """Return where pieces lie that are counted within equal groups first, then by groups."""
    tiles, (span, *others) = mapping.tiles, mapping.spans
    axis, stride = span.axis, tiles.strides[span.axis]
    extents, strides = list(tiles.extents), list(tiles.strides)
    extents[axis], strides[axis] = extents[axis] // group, stride * group
    within, by_groups = Span(len(extents), 1, 0, 1), Span(axis, 1, 0, 1)
    grid = Tiles((*extents, group), (*strides, stride), tiles.first)
    return Mapping(grid, (within, by_groups, *others))
