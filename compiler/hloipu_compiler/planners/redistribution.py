"""Cost and route of moving a value from one mapping to another.

A value that lies on many tiles and is wanted by many more makes each of them receive from all that
have a part. Where that takes too much time and code, it goes by way of other tiles: those that it
is wanted on receive from some of these, which receive from some of those where it lies
(`routes`).

Where each tile of the one has something for many tiles of the other, blocks between those of both,
dimension by dimension, make two exchanges of about the square root of the messages each.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from itertools import product
from math import isqrt, prod
from typing import NamedTuple

from hloipu_compiler.planners.placing import in_blocks
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.costs.exchange_form import exchange_code_bytes
from hloipu_runtime.costs.exchange_price import (
    NO_CODE_PRICE,
    CodePrice,
    ExchangePrice,
    TransferPrice,
    arriving,
    exchange_price,
    transfer_price,
)
from hloipu_runtime.costs.pieces import Sent, most_met, whole_sent
from hloipu_runtime.costs.traffic import whole_traffic
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.costs import TileTraffic
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.mapping import Mapping, Sizes, contains, extent_of

LEAST_CODE_CYCLES = 8
"""What a byte of exchange code is worth at least where ways to bring a value are compared.

Assumed: at it the exchanges of networks of some hundred ops take about half of the memory for code.
"""

_LEAST_MESSAGES = 24
"""Message count above which relaying through other tiles is considered."""


class Redistribution(NamedTuple):
    """How a value comes to where it is wanted."""

    cycles: int
    """Of exchange, sync and rearranging, where nothing else comes in the same exchange."""
    code_bytes: int
    """That a tile keeps for it."""
    via: Mapping | None = None
    """Where it is gathered first."""
    transfers: tuple[TransferPrice, ...] = ()
    """What moves: nothing, or by one exchange, or by two."""
    code_cycles: int = LEAST_CODE_CYCLES
    """What a byte of code is worth."""

    @property
    def price(self) -> int:
        """Cycles, and what the code is worth in cycles."""
        return self.at(self.code_cycles)

    def at(self, code_cycles: int) -> int:
        """Return the cycles, and what the code is worth at so many for each byte."""
        return self.cycles + code_cycles * self.code_bytes


STAYING = Redistribution(0, 0)


@lru_cache(1 << 14)
def redistribution(
    machine: Machine,
    element_type: str,
    shape: Sizes,
    lying: Mapping,
    wanted: Mapping,
    code_price: CodePrice = NO_CODE_PRICE,
) -> Redistribution:
    """Return the cheapest redistribution of a whole value from one mapping to another.

    `code_price`: what a byte of exchange code is worth.
    """
    if serves(lying, wanted, shape):
        return STAYING
    by_one = partial(_by_one, machine, element_type, shape, code_price)
    best, messages = by_one(lying, wanted)
    if messages < _LEAST_MESSAGES:
        return best
    via = _gathering(shape, wanted, messages)
    if via is not None:
        (first, met), (then, more) = by_one(lying, via), by_one(via, wanted)
        both = _by_two(first, via, then)
        if met + more < messages and both.price < best.price:
            best = both
    code_cycles = max(code_price)
    if code_cycles:
        for via in routes(shape, lying, wanted, machine.chip.tiles_per_ipu):
            first, _ = by_one(lying, via)
            if first.at(code_cycles) < best.at(code_cycles):
                both = _by_two(first, via, by_one(via, wanted)[0])
                best = min(best, both, key=lambda x: x.at(code_cycles))
    return best


def together(machine: Machine, redistributed: Iterable[Redistribution]) -> ExchangePrice:
    """Return the price of bringing several values: to where some are gathered, then all."""
    transfers = [
        redistribution.transfers for redistribution in redistributed if redistribution.transfers
    ]
    first = exchange_price(machine, [x[0] for x in transfers if len(x) > 1])
    return first.plus(exchange_price(machine, [x[-1] for x in transfers]))


class LeastMoved(NamedTuple):
    """What a redistribution moves at least, at the receiver and at the sender that have most."""

    received_bytes: int = 0
    parts: int = 1
    """Of where the value lies, that a receiver takes from, its own with them."""
    sent_bytes: int = 0
    wanted_parts: int = 1
    """That a sender has something of, its own with them."""

    @classmethod
    def of(cls, tensor: Tensor, lying: Mapping, wanted: Mapping) -> "LeastMoved":
        """Return what moves to where each element is wanted by some tile.

        No tile has more than the largest part, of which it keeps no more than it wants.
        """
        shape = tensor.shape
        bits = ELEMENT_TYPES[tensor.element_type].bits
        has, wants = (prod(map(min, mapping.block, shape)) for mapping in (lying, wanted))
        received_bytes = max(0, wants - has) * bits // 8
        if not lying.is_partition or not prod(shape):
            return cls(received_bytes)
        parts = _parts_met(shape, wanted, lying)
        if lying.replicated_axes or not wanted.is_partition:
            return cls(received_bytes, parts)
        sent_bytes = max(0, has - wants) * bits // 8
        return cls(received_bytes, parts, sent_bytes, _parts_met(shape, lying, wanted))


def _parts_met(shape: Sizes, one: Mapping, other: Mapping) -> int:
    """Return how many parts of the other mapping one's parts meet at most."""
    met = 1
    for size, span, met_span in zip(shape, one.spans, other.spans, strict=True):
        if met_span.axis >= 0:
            extents = extent_of(one.tiles, span), extent_of(other.tiles, met_span)
            met *= most_met(span, met_span, *extents, 0, size)
    return met


def least_moving_price(machine: Machine, moved: Sequence[LeastMoved], code_cycles: int) -> int:
    """Return what it costs at least to bring several values, by one exchange or by two.

    Code is worth so many cycles a byte. By way of others, a tile that receives from m of them, and
    these from n, has what (m + 1) * (n + 1) tiles had: m + n is least where both are the same.
    """
    received_bytes = sum([x.received_bytes for x in moved])
    sent_bytes = sum([x.sent_bytes for x in moved])
    received, sent = [x.parts for x in moved], [x.wanted_parts for x in moved]
    pieces, sent_pieces = sum(received) - len(moved), sum(sent) - len(moved)
    if not received_bytes + sent_bytes + pieces + sent_pieces:
        return 0
    least = partial(_least_of_one, machine, code_cycles)
    by_one = least((received_bytes, pieces), (sent_bytes, sent_pieces))
    if max(received) < _LEAST_MESSAGES:
        return by_one
    pieces = sum([min(n, isqrt(4 * max(n, _LEAST_MESSAGES)) - 1) - 1 for n in received])
    sent_pieces = sum([min(n, isqrt(4 * n) - 1) - 1 for n in sent])
    by_two = least((received_bytes, pieces), (sent_bytes, sent_pieces))
    return min(by_one, by_two + least((0, 0), (0, 0)))


def _least_of_one(
    machine: Machine, code_cycles: int, received: tuple[int, int], sent: tuple[int, int]
) -> int:
    """Return the price of an exchange of bytes and pieces, a word at least."""
    (received_bytes, pieces), (sent_bytes, sent_pieces) = received, sent
    traffic = TileTraffic(
        paired_sent_bytes=sent_bytes or 1,
        paired_received_bytes=received_bytes or 1,
        received_fragments=pieces,
    )
    code_bytes = exchange_code_bytes(machine, received_bytes, pieces)
    code_bytes += exchange_code_bytes(machine, sent_bytes, sent_pieces)
    price = exchange_price(machine, [TransferPrice(traffic, code_bytes=code_bytes)])
    return price.cycles + code_cycles * price.code_bytes


def received(machine: Machine, size_bytes: int) -> Redistribution:
    """Return how a part of so many bytes comes to each tile from nobody knows where."""
    transfer = arriving(machine, size_bytes)
    alone = exchange_price(machine, [transfer])
    return Redistribution(alone.cycles, alone.code_bytes, None, (transfer,))


def serves(lying: Mapping, wanted: Mapping, shape: Sizes) -> bool:
    """Whether every tile that wants a part has it within its own part."""
    if lying == wanted:
        return True
    return lying.tiles == wanted.tiles and all(
        contains(a, b, max(extent_of(lying.tiles, a), extent_of(lying.tiles, b)), size)
        for a, b, size in zip(lying.spans, wanted.spans, shape, strict=True)
    )


def _by_one(
    machine: Machine,
    element_type: str,
    shape: Sizes,
    code_price: CodePrice,
    lying: Mapping,
    wanted: Mapping,
) -> tuple[Redistribution, int]:
    """Return what one exchange costs, and the most messages that a tile receives."""
    bus = machine.chip.tiles_per_exchange_bus
    traffic = whole_traffic(ELEMENT_TYPES[element_type].bits, shape, lying, wanted, bus)
    if traffic is None:
        return STAYING, 0
    sent = whole_sent(shape, lying, wanted) if traffic.fragments else Sent(0, 0)
    transfer = transfer_price(machine, traffic, sent, lying.tiles, code_price.of_forms)
    alone = exchange_price(machine, [transfer])
    price = max(LEAST_CODE_CYCLES, code_price.compared)
    redistributed = Redistribution(alone.cycles, alone.code_bytes, None, (transfer,), price)
    return redistributed, traffic.messages


def _by_two(first: Redistribution, via: Mapping, then: Redistribution) -> Redistribution:
    """Return what two exchanges cost."""
    return Redistribution(
        first.cycles + then.cycles,
        first.code_bytes + then.code_bytes,
        via,
        first.transfers + then.transfers,
        then.code_cycles,
    )


def _gathering(shape: Sizes, wanted: Mapping, messages: int) -> Mapping | None:
    """Return a partition with few tiles for each part that is wanted; None where there is none.

    Tiles that want the same part receive it from as many as the root of those that have it now.
    """
    grid = wanted.tiles
    if not wanted.is_partition or not wanted.replicated_axes:
        return None
    counts = [extent_of(grid, span) for span in wanted.spans]
    tiles_per_part = grid.count // max(1, prod(counts))
    left = min(tiles_per_part, max(2, isqrt(messages)))
    blocks = [min(span.size, size) for span, size in zip(wanted.spans, shape, strict=True)]
    for d, block in enumerate(blocks):
        if left < 2:
            break
        # Wanted parts are cut into whole blocks, so that each comes from its own tiles alone.
        pieces = min(left, block)
        while block % pieces:
            pieces -= 1
        blocks[d] = block // pieces
        left //= pieces
        if blocks[d] > 1:
            # Parts of what lies further in would be many short runs at the receiver.
            break
    gathering = in_blocks(shape, blocks, grid.first)
    return None if gathering.tiles.count > grid.count else gathering


_MOST_ROUTES = 3
"""Routes that are worth pricing, those with the fewest messages. Assumed."""

_LEAST_SHARE = 4
"""A route has at least one part in so many of the tiles that the value lies on, and is wanted on:
on fewer tiles it would wait for bytes. Assumed."""


def routes(shape: Sizes, lying: Mapping, wanted: Mapping, tiles: int) -> list[Mapping]:
    """Return partitions that take few messages from `lying` to them and on to `wanted`."""
    if not shape:
        return []
    here, there = _blocks(shape, lying), _blocks(shape, wanted)
    least = min(lying.tiles.count, wanted.tiles.count) // _LEAST_SHARE
    direct = prod(map(_met, there, here)) + prod(map(_met, here, there))
    candidates: list[tuple[int, Sizes]] = []
    for along in product(*map(_along, shape, here, there)):
        blocks, counts, *met = zip(*along, strict=True)
        if least <= prod(counts) <= tiles:
            messages = sum(map(prod, met))
            if 2 * messages < direct:
                candidates.append((messages, blocks))
    return [in_blocks(shape, blocks, 0) for _, blocks in sorted(candidates)[:_MOST_ROUTES]]


class _Along(NamedTuple):
    """A block along a dimension, and how many blocks meet at most at both ends of both ways."""

    block: int
    parts: int
    met_here: int
    meets_here: int
    met_there: int
    meets_there: int


def _along(size: int, here: int, there: int) -> list[_Along]:
    """Return the blocks that one dimension may be cut into between two others."""
    return [
        _Along(
            block,
            over(size, block),
            _met(here, block),
            _met(block, here),
            _met(there, block),
            _met(block, there),
        )
        for block in _between(here, there)
    ]


def _blocks(shape: Sizes, mapping: Mapping) -> Sizes:
    """Return how far apart parts begin along each dimension."""
    return tuple(
        max(1, min(size, span.step if span.axis >= 0 and span.step > 0 else size))
        for size, span in zip(shape, mapping.spans, strict=True)
    )


def _between(here: int, there: int) -> list[int]:
    """Return block sizes from one to the other: both, and what lies about half-way.

    Multiples of the smaller one, so that its blocks go whole, and if possible parts of the larger.
    """
    small, large = sorted((here, there))
    if small == large:
        return [small]
    times = over(large, small)
    middle = isqrt(times)
    fair = [n for n in range(1, middle + 1) if large % (n * small) == 0]
    between = {n * small for n in (middle, times // max(1, middle), *fair[-1:])}
    return sorted({small, large, *between})


def _met(block: int, others: int) -> int:
    """Return how many blocks of one size a block of another meets at most."""
    if block % others == 0:
        return block // others
    return 1 if others % block == 0 else over(block - 1, others) + 1
