"""Cost and route of moving a value from one mapping to another.

A value that lies on many tiles and is wanted by many more makes each of them receive from all that
have a part. Where that takes too much time and code, it goes by way of other tiles: those that it
is wanted on receive from some of these, which receive from some of those where it lies
(`routes.py`).
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import isqrt, prod
from typing import NamedTuple

from hloipu_compiler.planners.placing import row_major
from hloipu_compiler.planners.routes import routes
from hloipu_runtime.codelets.core.codelet import Tensor
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
from hloipu_runtime.costs.pieces import Sent, whole_sent
from hloipu_runtime.costs.traffic import whole_traffic
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.costs import TileTraffic
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.mapping import (
    Mapping,
    Sizes,
    Span,
    contains,
    extent_of,
    whole,
)

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
    direct, messages = _direct(machine, element_type, shape, lying, wanted, code_price)
    if messages < _LEAST_MESSAGES:
        return direct
    best = direct
    via = _gathering(shape, wanted, messages)
    if via is not None:
        both, fewer = _by_way_of(machine, element_type, shape, (lying, via, wanted), code_price)
        if fewer < messages and both.price < best.price:
            best = both
    code_cycles = max(code_price)
    if code_cycles:
        for via in routes(shape, lying, wanted, machine.chip.tiles_per_ipu):
            both, _ = _by_way_of(machine, element_type, shape, (lying, via, wanted), code_price)
            if both.at(code_cycles) < best.at(code_cycles):
                best = both
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
    def of(cls, tensor: Tensor, lying: Mapping, wanted: Sizes) -> "LeastMoved":
        """Return what moves where tiles want parts of at most these sizes, and some all elements.

        No tile has more than the largest part, of which it keeps no more than it wants.
        """
        has = [min(span.size, size) for span, size in zip(lying.spans, tensor.shape, strict=True)]
        bits = ELEMENT_TYPES[tensor.element_type].bits
        lacking = prod(wanted) - prod(has)
        if not lying.is_partition or not prod(has) * prod(wanted):
            return cls(max(0, lacking) * bits // 8)
        least = cls(max(0, lacking) * bits // 8, prod(map(over, wanted, has)))
        if lying.replicated_axes:
            return least
        sent_bytes = max(0, -lacking) * bits // 8
        return least._replace(sent_bytes=sent_bytes, wanted_parts=prod(map(over, has, wanted)))


def least_moving_price(machine: Machine, moved: Sequence[LeastMoved], code_cycles: int) -> int:
    """Return what it costs at least to bring several values, by one exchange or by two.

    Code is worth so many cycles a byte. By way of others, a tile that receives from m of them, and
    these from n, has what (m + 1) * (n + 1) tiles had: m + n is least where both are the same.
    """
    received_bytes = sum(x.received_bytes for x in moved)
    sent_bytes = sum(x.sent_bytes for x in moved)
    received, sent = [x.parts - 1 for x in moved], [x.wanted_parts - 1 for x in moved]
    if not received_bytes + sent_bytes + sum(received) + sum(sent):
        return 0
    prices = []
    for exchanges in (1, 2):
        pieces, sent_pieces = max(1, sum(received)), max(1, sum(sent))
        traffic = TileTraffic(
            paired_sent_bytes=max(1, sent_bytes),
            paired_received_bytes=max(1, received_bytes),
            received_fragments=pieces,
        )
        code_bytes = exchange_code_bytes(machine, received_bytes, pieces)
        code_bytes += exchange_code_bytes(machine, sent_bytes, sent_pieces)
        price = exchange_price(machine, [TransferPrice(traffic, code_bytes=code_bytes)])
        for _ in range(exchanges - 1):
            price = price.plus(exchange_price(machine, [_ALMOST_NOTHING]))
        prices.append(price.cycles + code_cycles * price.code_bytes)
        received = [min(n, _by_way_of_some(max(n, _LEAST_MESSAGES))) for n in received]
        sent = [min(n, _by_way_of_some(n)) for n in sent]
    return min(prices)


_ALMOST_NOTHING = TransferPrice(TileTraffic(paired_received_bytes=1))


def _by_way_of_some(messages: int) -> int:
    """Return the fewest messages of two exchanges in place of those of one."""
    return isqrt(4 * (messages + 1)) - 2


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


def _direct(
    machine: Machine,
    element_type: str,
    shape: Sizes,
    lying: Mapping,
    wanted: Mapping,
    code_price: CodePrice,
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


def _by_way_of(
    machine: Machine,
    element_type: str,
    shape: Sizes,
    places: tuple[Mapping, Mapping, Mapping],
    code_price: CodePrice,
) -> tuple[Redistribution, int]:
    """Return what two exchanges cost, and the most messages that tiles receive in both."""
    lying, via, wanted = places
    first, messages = _direct(machine, element_type, shape, lying, via, code_price)
    then, more = _direct(machine, element_type, shape, via, wanted, code_price)
    both = Redistribution(
        first.cycles + then.cycles,
        first.code_bytes + then.code_bytes,
        via,
        first.transfers + then.transfers,
        then.code_cycles,
    )
    return both, messages + more


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
        blocks[d] = over(block, min(left, max(1, block)))
        # Wanted parts are cut into whole blocks, so that each comes from its own tiles alone.
        while block % blocks[d]:
            blocks[d] += 1
        left //= max(1, over(block, max(1, blocks[d])))
        if blocks[d] > 1:
            # Parts of what lies further in would be many short runs at the receiver.
            break
    extents: list[int] = []
    spans: list[Span] = []
    for size, block in zip(shape, blocks, strict=True):
        count = over(size, block) if block else 1
        if count < 2:
            spans.append(whole(size))
            continue
        spans.append(Span(len(extents), block, 0, block))
        extents.append(count)
    if prod(extents) > grid.count:
        return None
    return Mapping(row_major(extents, grid.first), tuple(spans))
