"""Planner of dynamic slices, gathers and scatters.

Where an index may point anywhere, a tile needs the whole of a dimension, or a range of it and a
second step. Both are tried on grids of several forms, and priced by the codelet's own work and the
exchange that brings operands to the tiles.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import prod

from hloipu_compiler.planners.placing import MINIMUM_BYTES, Placement, followed, grid
from hloipu_compiler.planners.planned import (
    Choice,
    Cycles,
    PlannedOp,
    cycles_of,
    losers,
    shape_texts,
    splits_of,
)
from hloipu_compiler.planners.searching import Candidate, descend
from hloipu_compiler.planners.stages import Work, bytes_of, staged
from hloipu_runtime.codelets.core.codelet import Codelet, Indexing
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.costs.exchange_price import arriving, exchange_price
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.mapping import Sizes

_SHARE_GATHERED = 5
"""One part in so many of a tile's memory may be brought to it for an index to point into, and made
there, where there is another way. Assumed: other data lives there at the same time."""


@dataclass(frozen=True)
class Option:
    """A codelet on a grid, priced."""

    codelet: Codelet
    results: tuple[Tensor, ...]
    placement: Placement
    cycles: Cycles
    held_bytes: int
    """Brought to a tile, or made there, whichever is more."""
    stays: bool
    """Whether the grid is where an operand lies already."""
    slices: int = 1
    """In which windows are brought and written, one after the other."""

    def then(self, cycles: Cycles, held_bytes: int) -> "Option":
        """Return the option with the price of what must follow, on tiles that hold so much."""
        most_bytes = max(self.held_bytes, held_bytes)
        return replace(self, cycles=self.cycles.plus(cycles), held_bytes=most_bytes)


def best_of(machine: Machine, options: Iterable[Option]) -> Option:
    """Return the fastest of those that hold little, or not much more than the least."""
    all_options = list(options)
    most = _most_held(machine, all_options)
    return min(
        (option for option in all_options if option.held_bytes <= most),
        key=lambda x: x.cycles.total,
    )


def _most_held(machine: Machine, options: Iterable[Option]) -> int:
    least = min(option.held_bytes for option in options)
    return max(most_gathered(machine), least + least // 2)


def most_gathered(machine: Machine) -> int:
    """Return the bytes that an op may bring to a tile and make there."""
    return machine.memory.bytes_per_tile // _SHARE_GATHERED


def priced(work: Work, placement: Placement, *, stays: bool = False) -> Option:
    """Price a codelet on a grid: its work there and the exchange of what lies elsewhere."""
    stage = staged(work, placement)
    return Option(work.codelet, work.results, placement, stage.cycles, stage.held_bytes, stays)


def receiving(machine: Machine, received_bytes: int, pieces: int) -> Cycles:
    """Return what it costs that every tile receives so much, its sync too; nothing: nothing."""
    if not received_bytes:
        return Cycles()
    return cycles_of(exchange_price(machine, [arriving(machine, received_bytes, pieces)]))


def tiles_worth(machine: Machine, tensors: Sequence[Tensor]) -> int:
    """Return how many tiles the largest of some tensors is worth, 128 bytes for each."""
    most = max((bytes_of(tensor) for tensor in tensors), default=0)
    return min(machine.chip.tiles_per_ipu, max(1, most // MINIMUM_BYTES))


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


def where_it_lies(work: Work) -> list[Option]:
    """Return the grid on which the first operand need not be moved, if there is one."""
    mapping = work.operands[0].mapping
    if mapping is None:
        return []
    placement = followed(work.indexing, work.indexing.operands[0], mapping)
    return [] if placement is None else [priced(work, placement, stays=True)]


def worth(machine: Machine, option: Option) -> float:
    """Return what a search makes less: cycles, far more of them for what fills a tile."""
    too_much = max(0, option.held_bytes - most_gathered(machine))
    return option.cycles.total + 4 * too_much


def searched(
    machine: Machine,
    indexing: Indexing,
    groups: Sequence[Sequence[int]],
    tiles: int,
    option_of: Callable[[Candidate], Option],
) -> list[Option]:
    """Return what a search looks at over the parts of two groups of labels; `tiles` in all."""
    options: list[Option] = []

    def price(candidate: Candidate) -> float:
        options.append(option_of(candidate))
        return worth(machine, options[-1])

    sizes = (prod(indexing.sizes[label] for label in group) for group in groups)
    limits = tuple(max(1, min(tiles, n)) for n in sizes)
    beginnings = [(limits[0], tiles // limits[0]), (tiles // limits[1], limits[1])]
    descend(beginnings, limits, tiles, price)
    return options


def planned_options(
    work: Work, op: str, opcode: str, chosen: Option, options: Sequence[Option]
) -> PlannedOp:
    """Return the record of an op that indices decide."""
    results = work.results

    def choice(option: Option) -> Choice:
        first_shape = option.results[0].shape
        ranged = len(first_shape) > len(results[0].shape)
        words = "what is indexed whole on each tile"
        if ranged:
            words = f"{first_shape[0]:,} ranges offered, then put together"
        elif option.stays:
            words = "where the first operand lies"
        names = [*(["ranges"] if ranged else []), *(f"index {n}" for n in range(len(first_shape)))]
        return Choice(
            words,
            splits_of(option.placement, names),
            option.placement.tiles.count,
            option.cycles,
            option.held_bytes,
            (("slices", option.slices),) if option.slices > 1 else (),
        )

    one = choice(chosen)
    return PlannedOp(
        op,
        opcode,
        shape_texts(operand.tensor for operand in work.operands),
        shape_texts(results),
        one,
        losers(one, map(choice, options), _most_held(work.machine, options)),
    )
