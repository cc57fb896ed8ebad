"""Choosing grids for what indices decide: ops whose operands tiles must hold in good part.

Where an index may point anywhere, a tile needs the whole of a dimension, or a range of it and a
second step. Both are tried on grids of several forms, and priced by the codelet's own work and the
exchange that brings operands to the tiles.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hloipu_compiler.codegen.builder import Builder
from hloipu_compiler.codegen.leaves import Held, Leaf, Scalar, Spread
from hloipu_compiler.codegen.placing import MINIMUM_BYTES, Placement, followed, grid
from hloipu_runtime.codelets.codelet import Codelet, Indexing, Tensor
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.costs import TileTraffic, exchange, sync
from hloipu_runtime.program.mapping import Mapping, Sizes

MOST_GATHERED_BYTES = 1 << 16
"""Most that is brought to one tile for an index to point into, where there is another way."""


@dataclass(frozen=True)
class Option:
    """A codelet on a grid, priced."""

    codelet: Codelet
    placement: Placement
    cycles: int
    gathered_bytes: int
    """Brought to the tile with most."""


def best_of(options: Iterable[Option]) -> Option:
    """Return the fastest of those that gather little, or the one that gathers least."""
    found = list(options)
    small = [x for x in found if x.gathered_bytes <= MOST_GATHERED_BYTES]
    if small:
        return min(small, key=lambda x: x.cycles)
    return min(found, key=lambda x: x.gathered_bytes)


def priced(
    builder: Builder,
    codelet: Codelet,
    operands: Sequence[Leaf],
    results: Sequence[Tensor],
    placement: Placement,
) -> Option:
    """Price one codelet on one grid."""
    indexing = codelet.indexing([Tensor(x.element_type, x.shape) for x in operands], results)
    parts = []
    gathered = 0
    for leaf, indices in zip(operands, indexing.operands, strict=True):
        spans = placement.spans(indices, leaf.shape)
        sizes = tuple(min(s.size, n) for s, n in zip(spans, leaf.shape, strict=True))
        part = Tensor(leaf.element_type, sizes)
        parts.append(part)
        if not _lies_so(builder, leaf, Mapping(placement.tiles, spans)):
            gathered += _bytes(part)
    made = [
        Tensor(
            x.element_type,
            tuple(
                min(s.size, n)
                for s, n in zip(placement.spans(indices, x.shape), x.shape, strict=True)
            ),
        )
        for x, indices in zip(results, indexing.results, strict=True)
    ]
    machine = builder.machine
    cycles = codelet.work(machine, parts, made).cycles
    if gathered:
        cycles += exchange(machine, [TileTraffic(received_bytes=gathered)]).cycles
        cycles += sync(machine).cycles
    return Option(codelet, placement, cycles, gathered)


def _lies_so(builder: Builder, leaf: Leaf, wanted: Mapping) -> bool:
    """Whether no exchange brings a leaf there; constant numbers are written where they are used."""
    if isinstance(leaf, Held):
        return builder.variables[leaf.variable].mapping == wanted
    return isinstance(leaf, Scalar) or (
        isinstance(leaf, Spread) and isinstance(leaf.source, Scalar)
    )


def _bytes(tensor: Tensor) -> int:
    return -(-tensor.elements * ELEMENT_TYPES[tensor.element_type].bits // 8)


def tiles_worth(builder: Builder, tensors: Sequence[Tensor]) -> int:
    """Return how many tiles the largest of some tensors is worth, 128 bytes for each."""
    most = max((_bytes(x) for x in tensors), default=0)
    return min(builder.tile_count, max(1, most // MINIMUM_BYTES))


def placed(sizes: Sizes, groups: Sequence[tuple[Sequence[int], int]], tiles: int) -> Placement:
    """Return a grid that splits groups of labels into so many parts each, as far as tiles go.

    Within a group the first labels are split first.
    """
    counts = []
    left = tiles
    for labels, parts in groups:
        budget = min(parts, left)
        for label in labels:
            taken = max(1, min(budget, sizes[label]))
            counts.append((label, taken, 1))
            budget //= taken
            left //= taken
    return grid(counts, sizes)


def where_it_lies(builder: Builder, indexing: Indexing, number: int, leaf: Leaf) -> list[Placement]:
    """Return the grid on which an operand need not be moved, if there is one."""
    if not isinstance(leaf, Held):
        return []
    found = followed(indexing, indexing.operands[number], builder.variables[leaf.variable].mapping)
    return [] if found is None else [found]


def powers(most: int) -> Iterator[int]:
    """Yield 1, 4, 16, .. below a number, and the number."""
    count = 1
    while count < most:
        yield count
        count *= 4
    yield max(1, most)
