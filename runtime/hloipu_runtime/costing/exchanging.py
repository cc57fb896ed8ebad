"""The charge of an exchange: within IPUs, between them, and copies on the tile itself."""

from collections import Counter
from functools import lru_cache
from typing import NamedTuple

from hloipu_runtime.costing.loads import Load, peaks
from hloipu_runtime.costing.spent import Spent
from hloipu_runtime.costing.traffic import TileRange, TransferTraffic, transfer_traffic
from hloipu_runtime.machine.charges import NOTHING, Charge, slowest
from hloipu_runtime.machine.costs import TileTraffic, copy_on_tile, exchange, rearrange_on_tile
from hloipu_runtime.machine.links import Flow, link_transfer
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import Exchange


class ExchangeCost(NamedTuple):
    """What an exchange costs and moves."""

    spent: Spent
    tiles: int
    """That receive or copy, at most."""
    ipus: tuple[int, ...]
    moved_bytes: int
    """That leave their tile, each once, rounded up to words."""


def exchange_cost(program: Program, step: Exchange, machine: Machine) -> ExchangeCost:
    """Return the cost of an exchange: the slowest tile's traffic, or the fullest link's.

    Transfers that meet on a tile add up. Copies within a tile come before, as computing.
    """
    traffic: list[tuple[int, Load]] = []
    copies: list[tuple[int, Load]] = []
    flows: Counter[tuple[int, int]] = Counter()
    ipus: set[int] = set()
    tiles = moved = 0
    for transfer in step.transfers:
        source, target = program.variables[transfer.source], program.variables[transfer.destination]
        ipus |= {source.ipu, target.ipu}
        found = transfer_traffic(transfer, source, target, machine.chip.tiles_per_exchange_bus)
        if found is None:
            continue
        tiles += found.receivers.tiles
        if found.copied_bytes:
            charge = copy_charge(machine, found.copied_bytes, found.copied_runs)
            copies.append((target.ipu, _load(found.receivers, tuple(charge))))
        if not found.received_bytes:
            continue
        moved += found.total_bytes
        traffic += [
            (target.ipu, _received(found)),
            (source.ipu, _sent(found, program, transfer.source, machine)),
        ]
        if source.ipu != target.ipu:
            flows[source.ipu, target.ipu] += found.total_bytes
    on_chip = slowest(
        exchange(machine, [_traffic_of(peak.amounts) for peak in peaks(loads)])
        for loads in _by_ipu(traffic)
    )
    links = link_transfer(machine, (Flow(*way, n) for way, n in flows.items()), program.ipus)
    copying = slowest(Charge(*peak.amounts) for loads in _by_ipu(copies) for peak in peaks(loads))
    present = len(ipus) * machine.chip.tiles_per_ipu
    return ExchangeCost(
        Spent(compute=copying, exchange=slowest((on_chip, links))),
        min(tiles, present),
        tuple(sorted(ipus)),
        moved,
    )


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


def word_to_all_tiles(machine: Machine) -> Charge:
    """Return the charge of one tile's sending one word to all others."""
    return exchange(machine, [TileTraffic(4, 4, received_fragments=1)])


def _received(found: TransferTraffic) -> Load:
    size, fragments = found.received_bytes, found.fragments
    amounts = (0, 0, 0, size, fragments) if found.is_paired else (0, size, 0, 0, fragments)
    return _load(found.receivers, amounts)


def _sent(found: TransferTraffic, program: Program, source: int, machine: Machine) -> Load:
    """Return what the senders send; at the paired rate each takes its partners' lanes, too."""
    if not found.is_paired:
        return _load(found.senders, (found.sent_bytes, 0, 0, 0, 0))
    bus = machine.chip.tiles_per_exchange_bus
    tiles = program.variables[source].mapping.tiles
    alone = all(stride % bus == 0 for stride in tiles.strides)
    size = found.sent_bytes * (1 if alone else min(bus, found.senders.tiles))
    first, last = found.senders.first // bus * bus, found.senders.last // bus * bus + bus - 1
    return Load(first, last, (0, 0, size, 0, 0))


def _traffic_of(amounts: tuple[int, ...]) -> TileTraffic:
    sent, received, paired_sent, paired_received, fragments = amounts
    return TileTraffic(sent, received, paired_sent, paired_received, fragments)


def _load(tiles: TileRange, amounts: tuple[int, ...]) -> Load:
    return Load(tiles.first, tiles.last, amounts)


def _by_ipu(loads: list[tuple[int, Load]]) -> list[list[Load]]:
    found: dict[int, list[Load]] = {}
    for ipu, load in loads:
        found.setdefault(ipu, []).append(load)
    return list(found.values())
