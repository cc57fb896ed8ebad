"""Planner of convolutions: prices every split of sum, features, images and positions.

All candidates are priced at once by the machine's own formulas, as if operands had to be received
whole. The best of them, and the grids on which the image lies already, are then priced with what
the exchange from where operands lie would cost. What was chosen is told to users, with the best of
those that lost.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import ceil, log2
from typing import NamedTuple

import numpy as np

from hloipu_compiler.planners.combining import Combining, combining
from hloipu_compiler.planners.convolution_candidates import Cut
from hloipu_compiler.planners.convolution_prices import (
    Candidates,
    ConvolutionWork,
    Spread,
    priced,
    spread_of,
)
from hloipu_compiler.planners.placing import Placement, grid
from hloipu_compiler.planners.planned import (
    Choice,
    Cycles,
    PlannedOp,
    cycles_of,
    losers,
    shape_texts,
    splits_of,
)
from hloipu_compiler.planners.redistribution import received, redistribution, together
from hloipu_runtime.codelets.core.codelet import Index
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.costs.reduce import convolution_summing_cycles
from hloipu_runtime.codelets.dense.convolution import Convolution
from hloipu_runtime.codelets.ops.reduce import Reduce
from hloipu_runtime.costs.exchange_price import NO_CODE_PRICE, CodePrice, arriving, exchange_price
from hloipu_runtime.costs.vertex_bytes import state_of
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.costs import rearrange_on_tile
from hloipu_runtime.program.mapping import Mapping, Span, Tiles

_SLICES = (2, 4, 8, 16)
"""In how many slices a convolution may be done where memory bites."""

_SLICE_CODE_BYTES = 320
"""Of a slice's steps and the state of its vertices. Assumed."""

_WORD_BYTES = 8

_STEPS_A_DOUBLING = 4
"""Steps by which a room that no plan fits in grows to twice its size. Assumed."""

_NO_BOUND = 1 << 62

_CLOSER = 8
"""Ways whose exchange is looked at in detail: those with the smallest estimates that fit."""


class ConvolutionGrid(NamedTuple):
    """How a convolution is spread."""

    cut: Cut
    placement: Placement
    cycles: Cycles
    """Estimate of work, and of bringing operands in and pieces together."""
    bytes_per_tile: int
    """Of vertices, parts of operands and result, messages, and of what pieces are summed from."""
    kept_bytes: int = 0
    """Of its vertices and of the code of its exchanges, which stay in memory."""
    code_cycles: int = 0
    """What the code of its exchanges is worth."""
    slices: int = 1
    """Of the images, or of the result's features, done one after the other."""
    slices_features: bool = False

    @property
    def price(self) -> int:
        """What is compared."""
        return self.cycles.total + self.code_cycles


class Bounds(NamedTuple):
    """What a plan may take of a tile's memory."""

    budget_bytes: int
    """Bytes of parts of operands and results."""
    code_price: CodePrice = NO_CODE_PRICE
    """What exchange code is worth."""
    products: int = 1
    """Products that have to do with less, whose kept bytes are there while each of them runs."""


PlacedOperand = tuple[Mapping | None, Mapping | None]
"""Where image and kernel lie; None: not known."""


@lru_cache(1 << 12)
def convolution_grid(
    asked: ConvolutionWork, bounds: Bounds, lying: PlacedOperand = (None, None)
) -> ConvolutionGrid:
    """Return the cheapest grid that needs no more memory than it may, or little more than others.

    Where the whole needs more, images or features are done in slices, one after the other.
    """
    budget_bytes = bounds.budget_bytes
    whole = _best(asked, bounds, lying)
    if whole.bytes_per_tile <= budget_bytes:
        return whole
    options = [whole]
    for features in (False, True):
        for slices in _SLICES:
            sliced = sliced_tensors(asked, slices, features=features)
            if sliced is None:
                break
            image, kernel, result = sliced
            one_slice = asked._replace(operands=(image, kernel), result=result)
            price, within = bounds.code_price.compared, bounds
            for _ in range(2):
                one = _best(one_slice, within, (None, None))
                options.append(_in_slices(asked, one, result, slices, price, features=features))
                beside = options[-1].bytes_per_tile - one.bytes_per_tile
                within = bounds._replace(budget_bytes=max(0, budget_bytes - beside))
                if options[-1].bytes_per_tile <= budget_bytes:
                    break
            if options[-1].bytes_per_tile <= budget_bytes:
                # Finer slices only cost more.
                break

    def needed_bytes(x: ConvolutionGrid) -> int:
        """Return what is taken while it runs, if other products keep as much more as it does."""
        more = max(0, x.kept_bytes - whole.kept_bytes)
        return x.bytes_per_tile + (bounds.products - 1) * more

    return min(options, key=lambda x: (_excess(needed_bytes(x), budget_bytes), x.price))


def _excess(size_bytes: int, budget_bytes: int) -> int:
    """Return by how many steps the room must grow.

    poplibs doubles it where no plan fits (graphcore/poplibs: lib/poplin/ConvPlan.cpp); such plans
    take up to twice what is needed, so steps here are smaller.
    """
    return max(0, ceil(_STEPS_A_DOUBLING * log2(max(1, size_bytes) / max(1, budget_bytes))))


def _best(asked: ConvolutionWork, bounds: Bounds, lying: PlacedOperand) -> ConvolutionGrid:
    best = ConvolutionGrid(Cut(), Placement(Tiles(), ()), Cycles(), 0)
    best_rank = _NO_BOUND, _NO_BOUND
    for spread, placement in _looked_at(asked, bounds, lying):
        # Once one fits, dearer ones are out, however little memory they need.
        most = _NO_BOUND if best_rank[0] else best_rank[1]
        grid_so_far = _detailed(asked, spread, placement, lying, bounds, most)
        rank = _excess(grid_so_far.bytes_per_tile, bounds.budget_bytes), grid_so_far.price
        if grid_so_far.price < most and rank < best_rank:
            best, best_rank = grid_so_far, rank
    return best


def sliced_tensors(
    asked: ConvolutionWork, slices: int, *, features: bool
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return image, kernel and result of the first of so many slices; None for fewer elements."""
    codelet, (image, kernel), result = asked.codelet, asked.operands, asked.result
    if features and codelet.feature_groups * codelet.batch_groups > 1:
        return None
    if not features and codelet.batch_groups > 1:
        return None
    of_result, number = codelet.out[1 if features else 0], 1 if features else 0
    of_operand = codelet.rhs[1] if features else codelet.lhs[0]
    size = result.shape[of_result]
    if size < slices:
        return None
    step = over(size, slices)
    parts = [image, kernel]
    parts[number] = _resized(parts[number], of_operand, step)
    return parts[0], parts[1], _resized(result, of_result, step)


def _resized(tensor: Tensor, dimension: int, size: int) -> Tensor:
    shape = (*tensor.shape[:dimension], size, *tensor.shape[dimension + 1 :])
    return Tensor(tensor.element_type, shape)


def _in_slices(
    asked: ConvolutionWork,
    one: ConvolutionGrid,
    made: Tensor,
    slices: int,
    price: int,
    *,
    features: bool,
) -> ConvolutionGrid:
    """Return the price of all slices, whose results are put together on other tiles."""
    machine, result = asked.machine, asked.result
    count = over(result.elements, max(1, made.elements))
    share = over(_bytes(result), machine.chip.tiles_per_ipu)
    joining = exchange_price(machine, [arriving(machine, over(share, count))]).times(count)
    first = len(one.cut.parts)
    if (first if features else first + 1) in dict(one.placement.labels) or first:
        # Tiles have parts of each slice: they come to others, in short runs.
        rearranging = rearrange_on_tile(machine, 2 * share, _WORD_BYTES).cycles
        joining = joining._replace(copying_cycles=rearranging)
    kept = (count - 1) * one.kept_bytes
    stays = 0
    if first:
        # What all slices read stays while pieces are brought together.
        spread = spread_of(asked, one.cut)
        number = 0 if features else 1
        indices = spread.indexing.operands[number]
        stays = _bytes(_part(one.placement, asked.operands[number], indices))
    return one._replace(
        cycles=one.cycles.times(count).plus(cycles_of(joining)),
        bytes_per_tile=one.bytes_per_tile + share + stays + kept,
        kept_bytes=one.kept_bytes + kept,
        code_cycles=count * (one.code_cycles + _SLICE_CODE_BYTES * price),
        slices=slices,
        slices_features=features,
    )


def convolution_grids(
    asked: ConvolutionWork, bounds: Bounds, lying: PlacedOperand
) -> list[ConvolutionGrid]:
    """Return the grids that are looked at in detail."""
    looked_at = _looked_at(asked, bounds, lying)
    return [_detailed(asked, *x, lying, bounds, _NO_BOUND) for x in looked_at]


def _looked_at(
    asked: ConvolutionWork, bounds: Bounds, lying: PlacedOperand
) -> list[tuple[Spread, Placement]]:
    """Return grids to be priced in detail, the fastest first so far as is known."""
    if 0 in (*asked.result.shape, *asked.operands[0].shape, *asked.operands[1].shape):
        return []
    candidates = priced(asked)
    excess = _excess(int(candidates.bytes_per_tile.min()), bounds.budget_bytes)
    bound = max(1, bounds.budget_bytes) * 2 ** (excess / _STEPS_A_DOUBLING)
    bound = max(bound, int(candidates.bytes_per_tile.min()))
    fitting = np.nonzero(candidates.bytes_per_tile <= bound)[0]
    best = fitting[np.argsort(candidates.cycles[fitting], kind="stable")[:_CLOSER]]
    placed = [_placed(candidates, int(number)) for number in best]
    if lying[0] is not None:
        indices = {x.cut: x for x in candidates.spreads}
        placed += staying(tuple(indices.values()), asked.operands, lying[0])
    return list(dict.fromkeys(placed))


def _placed(candidates: Candidates, number: int) -> tuple[Spread, Placement]:
    """Return the grid of a candidate; tiles side by side differ in positions, or in features."""
    spread = candidates.spreads[int(candidates.spread[number])]
    blocks = candidates.blocks[number].tolist()
    sizes = spread.indexing.sizes
    features = len(spread.cut.parts)
    order = [label for label in range(len(sizes)) if label != features]
    order.insert(len(order) if candidates.features_last[number] else features, features)
    counts = [(label, -(-sizes[label] // blocks[label]), blocks[label]) for label in order]
    return spread, grid([(x, n, _grain(sizes[x], n, block)) for x, n, block in counts], sizes)


def _grain(size: int, count: int, block: int) -> int:
    """Return a grain with which so many parts of a size are blocks of this size."""
    return 1 if -(-size // count) == block else block


def _detailed(
    asked: ConvolutionWork,
    spread: Spread,
    placement: Placement,
    lying: PlacedOperand,
    bounds: Bounds,
    most: int,
) -> ConvolutionGrid:
    """Price a grid with the exchange of operands from where they lie.

    Without the addition of pieces if its price is `most` or more before that.
    """
    machine = asked.machine
    received_bytes = relayed = 0
    parts, moved = [], []
    for tensor, indices, current_mapping in zip(
        asked.operands, spread.indexing.operands, lying, strict=True
    ):
        part = _part(placement, tensor, indices)
        parts.append(part)
        wanted = Mapping(placement.tiles, placement.spans(indices, tensor.shape))
        if current_mapping is None:
            moved.append(received(machine, _bytes(part)))
        else:
            kind, shape = tensor
            moved.append(
                redistribution(machine, kind, shape, current_mapping, wanted, bounds.code_price)
            )
        received_bytes += _bytes(part) if moved[-1].transfers else 0
        relayed += sum(x.buffer_bytes for x in moved[-1].transfers[-1:])
        if moved[-1].via is not None:
            relayed += _largest_bytes(tensor, moved[-1].via)
    price = together(machine, moved)
    mine = _part(placement, spread.made, spread.indexing.results[0])
    compute = spread.codelet.work(machine, parts, [mine]).cycles
    state = state_of(spread.codelet, machine, tuple(parts), (mine,)).kept
    needed = received_bytes + max(relayed, _bytes(mine))
    code_bytes, cycles = price.code_bytes, Cycles(compute).plus(cycles_of(price))
    price_so_far = cycles.total + code_bytes * bounds.code_price.compared
    if spread.cut.parts and price_so_far < most:
        adding = _adding(asked, spread, placement, bounds.code_price)
        code_bytes += adding.code_bytes
        cycles = cycles.plus(adding.cycles)
        needed = max(needed, adding.held_bytes + _bytes(mine))
    return ConvolutionGrid(
        spread.cut,
        placement,
        cycles,
        needed + state,
        state + code_bytes,
        code_bytes * bounds.code_price.compared,
    )


class _Adding(NamedTuple):
    """What it takes to add the pieces of sums that are cut."""

    cycles: Cycles
    code_bytes: int
    held_bytes: int


def _adding(
    asked: ConvolutionWork, spread: Spread, placement: Placement, code_price: CodePrice
) -> _Adding | Combining:
    """Return what it takes to add pieces; each tile that has some of the same adds a share."""
    machine, partials, result = asked.machine, spread.made, asked.result
    spans = placement.spans(spread.indexing.results[0], partials.shape)
    leading = tuple(range(len(spread.cut.parts)))
    add = Reduce(leading, "add", None, (result.element_type,), of_convolution=True)
    planned = combining(machine, add, partials, Mapping(placement.tiles, spans), code_price)
    if planned is not None:
        return planned
    pieces, part = spread.cut.pieces, _part(placement, partials, spread.indexing.results[0])
    share = over(part.elements, pieces)
    taken = over(share * pieces * ELEMENT_TYPES[partials.element_type].bits, 8)
    price = exchange_price(machine, [arriving(machine, taken, pieces)])
    kinds = partials.element_type, result.element_type
    compute = int(convolution_summing_cycles(machine, kinds, np.array(share), np.array(pieces)))
    return _Adding(Cycles(compute).plus(cycles_of(price)), price.code_bytes, taken)


def _largest_bytes(tensor: Tensor, lying: Mapping) -> int:
    """Return the bytes of the largest part that a tile has of a tensor that lies so."""
    sizes = (min(span.size, size) for span, size in zip(lying.spans, tensor.shape, strict=True))
    return _bytes(Tensor(tensor.element_type, tuple(sizes)))


def _part(placement: Placement, tensor: Tensor, indices: tuple[Index, ...]) -> Tensor:
    """Return the largest part that a tile has of a tensor."""
    spans = placement.spans(indices, tensor.shape)
    sizes = (min(span.size, size) for span, size in zip(spans, tensor.shape, strict=True))
    return Tensor(tensor.element_type, tuple(sizes))


def _bytes(tensor: Tensor) -> int:
    return over(tensor.elements * ELEMENT_TYPES[tensor.element_type].bits, 8)


def staying(
    spreads: Sequence[Spread], operands: tuple[Tensor, Tensor], lying: Mapping
) -> list[tuple[Spread, Placement]]:
    """Return the grids that cut images and positions where the image is cut already.

    A grid axis along which the image's features are cut cuts the result's features instead, or the
    sum along the features of the image, which then stay.
    """
    if lying.replicated_axes or not lying.is_partition:
        return []
    grids = []
    for spread in spreads:
        labels = _labels(spread, operands[0], lying)
        if labels is not None:
            grids.append((spread, Placement(lying.tiles, tuple(sorted(labels)))))
    return grids


def _labels(spread: Spread, image: Tensor, lying: Mapping) -> list[tuple[int, Span]] | None:
    """Return the part of each label that follows the image's parts; None where there is none."""
    indexing, codelet = spread.indexing, spread.codelet
    first = len(spread.cut.parts)
    spans: dict[int, Span] = {}
    for d, span in enumerate(lying.spans):
        if span.axis < 0:
            continue
        extent = lying.tiles.extents[span.axis]
        label = indexing.operands[0][d].label
        if label < 0 and d == codelet.lhs[1] and codelet.feature_groups == 1:
            label = first
        if label < 0 or label in spans:
            return None
        size = indexing.sizes[label]
        block = over(size, extent)
        if over(size, max(1, block)) != extent:
            return None
        spans[label] = Span(span.axis, block, 0, block)
    if any(label not in spans for label in range(first)):
        return None
    return list(spans.items())


def planned_convolution(
    name: str, asked: ConvolutionWork, bounds: Bounds, lying: PlacedOperand
) -> PlannedOp:
    """Return the record of a convolution's plan."""
    choice = _choice(asked.codelet, convolution_grid(asked, bounds, lying))
    others = [_choice(asked.codelet, x) for x in convolution_grids(asked, bounds, lying)]
    return PlannedOp(
        name,
        "convolution",
        shape_texts(asked.operands),
        shape_texts([asked.result]),
        choice,
        losers(choice, others, bounds.budget_bytes),
    )


def _choice(codelet: Convolution, x: ConvolutionGrid) -> Choice:
    spatial = [f"position {number}" for number in range(len(codelet.window))]
    features = "groups" if codelet.feature_groups * codelet.batch_groups > 1 else "features"
    sums = ["taps" if along else "input features" for along, _ in x.cut.parts]
    images = ["images"] if codelet.batch_groups == 1 else []
    names = [*sums, features, *images, *spatial]
    words = (
        f"{' and '.join(dict.fromkeys(sums))} in {x.cut.pieces} pieces"
        if sums
        else "each sum whole on a tile"
    )
    details: tuple[tuple[str, str | int], ...] = ()
    if x.slices > 1:
        details = ((f"slices of {'features' if x.slices_features else 'images'}", x.slices),)
    return Choice(
        words,
        splits_of(x.placement, names),
        x.placement.tiles.count,
        x.cycles,
        x.bytes_per_tile,
        details,
    )
