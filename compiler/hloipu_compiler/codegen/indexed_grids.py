"""Choosing grids for what indices decide: ops whose operands tiles must hold in good part.

Where an index may point anywhere, a tile needs the whole of a dimension, or a range of it and a
second step. Both are tried on grids of several forms, and priced by the codelet's own work and the
exchange that brings operands to the tiles.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from hloipu_compiler.codegen.bringing import bringing
from hloipu_compiler.codegen.builder import Builder
from hloipu_compiler.codegen.leaves import Held, Leaf, Scalar, Spread
from hloipu_compiler.codegen.placing import MINIMUM_BYTES, Placement, followed, grid, moved
from hloipu_compiler.codegen.site import Site
from hloipu_compiler.codegen.views import seen_as
from hloipu_runtime.codelets.codelet import Codelet, Index, Indexing, Tensor
from hloipu_runtime.codelets.move import StridedSlice
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.costs import TileTraffic, exchange, sync
from hloipu_runtime.program.mapping import Mapping, Sizes

MOST_GATHERED_BYTES = 1 << 16
"""Most that is brought to one tile for an index to point into, where there is another way."""


@dataclass(frozen=True)
class Option:
    """A codelet on a grid, priced."""

    codelet: Codelet
    results: tuple[Tensor, ...]
    placement: Placement
    cycles: int
    held_bytes: int
    """Brought to a tile, or made there, whichever is more."""
    stays: bool
    """Whether the grid is where an operand lies already."""

    def then(self, cycles: int, held_bytes: int) -> "Option":
        """Return the option with the price of what must follow, on tiles that hold so much."""
        held = max(self.held_bytes, held_bytes)
        return replace(self, cycles=self.cycles + cycles, held_bytes=held)


def best_of(options: Iterable[Option]) -> Option:
    """Return the fastest of those that hold little, or not much more than the least."""
    found = list(options)
    least = min(x.held_bytes for x in found)
    most = max(MOST_GATHERED_BYTES, least + least // 2)
    return min((x for x in found if x.held_bytes <= most), key=lambda x: x.cycles)


def priced(
    builder: Builder,
    codelet: Codelet,
    operands: Sequence[Leaf],
    results: Sequence[Tensor],
    placement: Placement,
    *,
    stays: bool = False,
) -> Option:
    """Price a codelet on a grid: its work there and the exchange of what lies elsewhere."""
    indexing = codelet.indexing(tensors_of(operands), results)
    parts = []
    brought = exchanging = 0
    for leaf, indices in zip(operands, indexing.operands, strict=True):
        parts.append(_part(placement, indices, Tensor(leaf.element_type, leaf.shape)))
        wanted = Mapping(placement.tiles, placement.spans(indices, leaf.shape))
        if isinstance(leaf, Held):
            lying = builder.variables[leaf.variable].mapping
            cost = bringing(builder.machine, leaf.element_type, leaf.shape, lying, wanted)
            exchanging += cost.cycles
            brought += bytes_of(parts[-1]) if cost.cycles else 0
        elif not _lies_so(leaf):
            brought += bytes_of(parts[-1])
            exchanging += exchange_cycles(builder, bytes_of(parts[-1]))
    made = [
        _part(placement, indices, x) for x, indices in zip(results, indexing.results, strict=True)
    ]
    machine = builder.machine
    cycles = codelet.work(machine, parts, made).cycles + exchanging
    held = max(brought, sum(map(bytes_of, made)))
    return Option(codelet, tuple(results), placement, cycles, held, stays)


def tensors_of(leaves: Sequence[Leaf]) -> list[Tensor]:
    """Return types and sizes of leaves."""
    return [Tensor(x.element_type, x.shape) for x in leaves]


def exchange_cycles(builder: Builder, received_bytes: int, pieces: int = 0) -> int:
    """Return what it costs that every tile receives so much, its sync too; nothing: nothing."""
    if not received_bytes:
        return 0
    machine = builder.machine
    traffic = TileTraffic(received_bytes=received_bytes, received_fragments=pieces)
    return exchange(machine, [traffic]).cycles + sync(machine).cycles


def _part(placement: Placement, indices: Sequence[Index], tensor: Tensor) -> Tensor:
    spans = placement.spans(indices, tensor.shape)
    sizes = tuple(min(span.size, n) for span, n in zip(spans, tensor.shape, strict=True))
    return Tensor(tensor.element_type, sizes)


def _lies_so(leaf: Leaf) -> bool:
    """Whether no exchange brings a leaf there; constant numbers are written where they are used."""
    return isinstance(leaf, Scalar) or (
        isinstance(leaf, Spread) and isinstance(leaf.source, Scalar)
    )


def bytes_of(tensor: Tensor) -> int:
    """Return the bytes of a tensor in a tile's memory."""
    return -(-tensor.elements * ELEMENT_TYPES[tensor.element_type].bits // 8)


def tiles_worth(builder: Builder, tensors: Sequence[Tensor]) -> int:
    """Return how many tiles the largest of some tensors is worth, 128 bytes for each."""
    most = max((bytes_of(x) for x in tensors), default=0)
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


def settled(builder: Builder, option: Option) -> Placement:
    """Return the chosen grid; small ones do not all begin on tile 0."""
    count = option.placement.tiles.count
    if option.stays or 2 * count > builder.tile_count:
        return option.placement
    return moved(option.placement, builder.first_tile(count), builder.tile_count)


def starts_of(site: Site, first: int) -> list[Held]:
    """Return the scalars that say where, from operand `first` on.

    Dumps before 2019 print them as one vector.
    """
    numbers = range(first, len(site.operands))
    if len(numbers) != 1 or not site.operand_shape(first).dimensions:
        return [site.held(n) for n in numbers]
    builder, vector = site.builder, site.held(first)
    kind = vector.element_type
    singles = [
        builder.compute(StridedSlice((k,), (1,)), [vector], [(kind, (1,))])[0]
        for k in range(vector.shape[0])
    ]
    return seen_as(builder, singles, ()) if singles else []
