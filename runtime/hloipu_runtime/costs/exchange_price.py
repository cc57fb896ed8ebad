"""Price of exchanges from what their transfers move: the same for planners and for the verdict.

A transfer asks something of its senders and of its receivers; what transfers of one exchange ask of
one tile adds up, and the exchange lasts as long as its slowest tile (`machine/costs.py`). The
verdict knows which tiles meet; a planner takes all transfers to meet on one.
"""

from collections.abc import Iterable
from typing import NamedTuple

from hloipu_runtime.costs.exchange_form import (
    ExchangeForm,
    copy_charge,
    exchange_code_bytes,
    exchange_form,
    exchange_forms,
)
from hloipu_runtime.costs.pieces import Sent
from hloipu_runtime.costs.traffic import TransferTraffic
from hloipu_runtime.machine.charges import Amount
from hloipu_runtime.machine.costs import TileTraffic, beginning, exchange_cycles
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.mapping import Tiles


class CodePrice(NamedTuple):
    """What a byte of exchange code, which stays in memory, is worth in cycles."""

    compared: int = 0
    """Where plans are compared; 0: some cycles at most, among plans of like speed."""
    of_forms: int = 0
    """Where transfers take their forms: so that all code of a program fits (`forms.py`)."""


NO_CODE_PRICE = CodePrice()


class TransferPrice(NamedTuple):
    """What a transfer asks of the tile that has most to do, in the exchange that it is part of."""

    traffic: TileTraffic = TileTraffic()
    copying_cycles: int = 0
    """Of copies on the tile itself, and of rearranging messages, before and after."""
    rounds: int = 1
    code_bytes: int = 0
    """That stay in the tile's memory, with the state of vertices that rearrange."""
    buffer_bytes: int = 0
    """For messages at both ends, while the exchange lasts."""


class ExchangePrice(NamedTuple):
    """What an exchange of some transfers costs, the sync before it too."""

    copying_cycles: int = 0
    exchange_cycles: int = 0
    sync_cycles: int = 0
    code_bytes: int = 0

    @property
    def cycles(self) -> int:
        """All cycles."""
        return self.copying_cycles + self.exchange_cycles + self.sync_cycles

    def plus(self, other: "ExchangePrice") -> "ExchangePrice":
        """Return the price of both, one after the other."""
        return ExchangePrice(*map(sum, zip(self, other, strict=True)))

    def times(self, count: int) -> "ExchangePrice":
        """Return the price of so many of them."""
        return ExchangePrice(*(count * amount for amount in self))


def transfer_price(
    machine: Machine, traffic: TransferTraffic, sent: Sent, source: Tiles, code_cycles: int
) -> TransferPrice:
    """Return the price of a transfer in its cheapest form, at `code_cycles` a byte of code."""
    copying = copy_charge(machine, traffic.copied_bytes, traffic.copied_runs).cycles
    if not traffic.received_bytes:
        return TransferPrice(copying_cycles=copying)
    form = exchange_form(exchange_forms(machine, traffic, sent), 1000 * code_cycles)
    copying += form.sending.rearranging.cycles + form.receiving.rearranging.cycles
    sending = sent_by_tile(machine, traffic, source)
    both = sending.plus(received_by_tile(traffic, form))
    buffers = form.sending.buffer_bytes + form.receiving.buffer_bytes
    return TransferPrice(both, copying, form.rounds, form.kept_bytes, buffers)


def arriving(machine: Machine, received_bytes: int, pieces: int = 1) -> TransferPrice:
    """Return the price of so many bytes on each receiver, sent by tiles that send no more each."""
    if not received_bytes:
        return TransferPrice()
    return TransferPrice(
        TileTraffic(received_bytes=received_bytes, received_fragments=pieces),
        code_bytes=exchange_code_bytes(machine, received_bytes, pieces),
    )


def exchange_price(machine: Machine, transfers: Iterable[TransferPrice]) -> ExchangePrice:
    """Return the price of transfers in one exchange; nothing of none."""
    listed = list(transfers)
    if not listed:
        return ExchangePrice()
    traffic, copying, rounds, code_bytes, _ = listed[0]
    for other in listed[1:]:
        traffic = traffic.plus(other.traffic)
        copying += other.copying_cycles
        rounds = max(rounds, other.rounds)
        code_bytes += other.code_bytes
    cycles = int(exchange_cycles(machine, traffic))
    if rounds > 1:
        cycles += (rounds - 1) * beginning(machine).cycles
    code_bytes += machine.memory.step_code_bytes
    return ExchangePrice(copying, cycles, rounds * machine.sync.sync_cycles, code_bytes)


def side_by_side_cycles(
    machine: Machine, shared: Amount, other: Amount, alike: Amount, fragments: Amount
) -> Amount:
    """Return the cycles of an exchange where runs of tiles receive `shared` bytes all alike.

    Each tile receives `other` bytes of its own as well. Where runs of `alike` tiles fill whole
    buses, what they share comes at the paired rate. Entries of arrays are priced one by one.
    """
    bus = machine.chip.tiles_per_exchange_bus
    paired = shared * ((alike % bus == 0) & (bus > 1))
    traffic = TileTraffic(
        received_bytes=other + shared - paired,
        paired_received_bytes=paired,
        received_fragments=fragments,
    )
    return exchange_cycles(machine, traffic)


def received_by_tile(traffic: TransferTraffic, form: ExchangeForm) -> TileTraffic:
    """Return what each receiver of a transfer receives."""
    size, pieces = form.receiving.size_bytes, form.receiving.pieces
    if traffic.is_paired:
        return TileTraffic(paired_received_bytes=size, received_fragments=pieces)
    return TileTraffic(received_bytes=size, received_fragments=pieces)


def sent_by_tile(machine: Machine, traffic: TransferTraffic, source: Tiles) -> TileTraffic:
    """Return what each sender of a transfer sends.

    At the paired rate each takes its partners' lanes, too.
    """
    if not traffic.is_paired:
        return TileTraffic(sent_bytes=traffic.sent_bytes)
    bus = machine.chip.tiles_per_exchange_bus
    alone = all(stride % bus == 0 for stride in source.strides)
    partners = 1 if alone else min(bus, traffic.senders.tiles)
    return TileTraffic(paired_sent_bytes=partners * traffic.sent_bytes)
