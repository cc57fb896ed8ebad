"""Forms of a transfer: piece by piece, or in messages that tiles rearrange.

Each piece costs its receiver control cycles, and both ends exchange code that stays in memory. A
sender may instead first put what goes to the same tiles side by side, and a receiver may take
whole messages and put their pieces in place afterwards; that costs cycles of computing, and memory
for the messages while the exchange lasts. Poplar's users weigh cycles against memory here with its
engine option opt.internalExchangeOptimisationTarget; how it decides is not public.
"""

from functools import lru_cache
from typing import NamedTuple

from hloipu_runtime.costs.pieces import Sent
from hloipu_runtime.costs.traffic import TransferTraffic
from hloipu_runtime.machine.charges import NOTHING, Charge, over
from hloipu_runtime.machine.costs import (
    TileTraffic,
    beginning,
    copy_on_tile,
    exchange_cycles,
    rearrange_on_tile,
    sync,
)
from hloipu_runtime.machine.model import Machine

REARRANGING_CODE_BYTES = 512
"""Code of the copy that rearranges, once on each tile; assumed, as for codelets without source."""

_LOOPS = 4
"""Loops within each other of the copy that rearranges, each a count and a stride at both ends.

Assumed: two over messages, and two over the pieces of each, as all messages but the last are alike.
"""

_COUNT_BYTES = 2
"""Of a count or stride of such a loop: graphcore/poplibs: lib/popops/codelets/ReduceCodelets.hpp,
`ShortType`."""

_SHARE_OF_MEMORY = 32
"""Messages take one part in so many of a tile's memory, if need be in several rounds. Assumed:
small beside what is exchanged, yet large beside what a round costs: on a Bow 20 kB, which come in
5,000 cycles, where a round takes some hundred."""


class Way(NamedTuple):
    """What one end of a transfer does, on the tile that has most to do."""

    size_bytes: int
    """Sent or received, in whole words."""
    pieces: int
    """Of exchange: each takes code, and at a receiver control cycles."""
    code_bytes: int
    buffer_bytes: int = 0
    """For messages that are rearranged; 0: pieces are taken as they lie."""
    rounds: int = 1
    """Exchanges that it takes to move all through the buffer."""
    state_bytes: int = 0
    """Of the vertices that rearrange."""
    rearranging: Charge = NOTHING

    @property
    def kept_bytes(self) -> int:
        """Bytes that the tile is without for good."""
        return self.code_bytes + self.state_bytes


class ExchangeForm(NamedTuple):
    """How both ends of a transfer carry it out."""

    sending: Way
    receiving: Way
    rounds: int
    """Exchanges that it takes, each after a sync."""
    cycles: int
    """Of a tile that does what both ends do, but for the first sync."""

    @property
    def kept_bytes(self) -> int:
        """Bytes that such a tile is without for good."""
        return self.sending.kept_bytes + self.receiving.kept_bytes


def exchange_form(forms: tuple[ExchangeForm, ...], price: int) -> ExchangeForm:
    """Return the cheapest form, at a price in cycles for each kilobyte that stays in memory.

    Of equally cheap ones the first. The higher the price, the fewer bytes stay.
    """
    if len(forms) == 1:
        return forms[0]
    return min(forms, key=lambda form: 1000 * form.cycles + price * form.kept_bytes)


def _form(machine: Machine, sending: Way, receiving: Way) -> ExchangeForm:
    rounds = max(sending.rounds, receiving.rounds)
    traffic = TileTraffic(
        sending.size_bytes, receiving.size_bytes, received_fragments=receiving.pieces
    )
    cycles = int(exchange_cycles(machine, traffic))
    cycles += sending.rearranging.cycles + receiving.rearranging.cycles
    if rounds > 1:
        cycles += sum(charge.cycles for charge in more_rounds(machine, rounds))
    return ExchangeForm(sending, receiving, rounds, cycles)


@lru_cache(1 << 14)
def exchange_forms(
    machine: Machine, traffic: TransferTraffic, sent: Sent
) -> tuple[ExchangeForm, ...]:
    """Return the forms that a transfer may take, the direct one first."""
    sends = [_direct(machine, traffic.sent_bytes, sent.pieces)]
    if sent.messages < sent.pieces:
        sends.append(_rearranged(machine, traffic.sent_bytes, sent.messages, sent.pieces))
    receives = [_direct(machine, traffic.received_bytes, traffic.fragments)]
    if traffic.messages < traffic.fragments:
        receives.append(
            _rearranged(machine, traffic.received_bytes, traffic.messages, traffic.fragments)
        )
    forms = []
    for sending in sends:
        for receiving in receives:
            if sending.buffer_bytes and receiving.buffer_bytes:
                # Pieces that end within a word leave gaps, but for those of one message.
                receiving = _rearranged(
                    machine, traffic.message_bytes, traffic.messages, traffic.fragments
                )
            forms.append(_form(machine, sending, receiving))
    return tuple(forms)


def _direct(machine: Machine, size_bytes: int, pieces: int) -> Way:
    return Way(size_bytes, pieces, exchange_code_bytes(machine, size_bytes, pieces))


def _rearranged(machine: Machine, size_bytes: int, messages: int, pieces: int) -> Way:
    memory = machine.memory
    # One at least, where nothing is taken of a transfer.
    rounds = max(1, over(size_bytes, max(1, memory.bytes_per_tile // _SHARE_OF_MEMORY)))
    # Rounds cut messages anywhere, but all of them at about the same place.
    parts = messages + rounds - 1
    return Way(
        size_bytes,
        parts,
        exchange_code_bytes(machine, size_bytes, parts),
        over(size_bytes, rounds),
        rounds,
        memory.vertex_fixed_bytes + 2 * memory.edge_pointer_bytes + _LOOPS * 3 * _COUNT_BYTES,
        copy_charge(machine, over(size_bytes, rounds), over(pieces, rounds)).times(rounds),
    )


def more_rounds(machine: Machine, rounds: int) -> tuple[Charge, Charge]:
    """Return the charges of all rounds but the first: of exchanging without data, and of syncs."""
    return beginning(machine).times(rounds - 1), sync(machine).times(rounds - 1)


def exchange_code_bytes(machine: Machine, size_bytes: int, pieces: int) -> int:
    """Return the exchange code of a tile; longer pieces than an instruction moves need several."""
    instructions = pieces + size_bytes // machine.exchange.transfer_bytes
    return instructions * machine.memory.exchange_fragment_code_bytes


@lru_cache(1 << 12)
def copy_charge(machine: Machine, size_bytes: int, runs: int) -> Charge:
    """Return the charge of a copy within a tile, in so many contiguous pieces.

    One rearranging copy, or one plain copy a piece, whichever is cheaper.
    """
    if size_bytes <= 0:
        return NOTHING
    run_bytes = -(-size_bytes // max(runs, 1))
    singly = copy_on_tile(machine, run_bytes).times(runs)
    return singly if runs == 1 else min(singly, rearrange_on_tile(machine, size_bytes, run_bytes))
