"""The charge of an exchange: within IPUs, between them, and copies on the tile itself."""

from collections import Counter
from typing import NamedTuple

from hloipu_runtime.costing.exchange_form import Way, copy_charge, more_rounds
from hloipu_runtime.costing.forms import Forms
from hloipu_runtime.costing.loads import Load, peaks
from hloipu_runtime.costing.spent import Spent
from hloipu_runtime.costing.traffic import TileRange, TransferTraffic
from hloipu_runtime.machine.charges import Charge, slowest
from hloipu_runtime.machine.costs import TileTraffic, exchange
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


def exchange_cost(program: Program, step: Exchange, machine: Machine, forms: Forms) -> ExchangeCost:
    """Return the cost of an exchange: the slowest tile's traffic, or the fullest link's.

    Transfers that meet on a tile add up. Copies within a tile and what senders rearrange come
    before, what receivers rearrange after, both as computing.
    """
    traffic: list[tuple[int, Load]] = []
    before: list[tuple[int, Load]] = []
    after: list[tuple[int, Load]] = []
    flows: Counter[tuple[int, int]] = Counter()
    ipus: set[int] = set()
    tiles = moved = 0
    rounds = 1
    for transfer in step.transfers:
        source, target = program.variables[transfer.source], program.variables[transfer.destination]
        ipus |= {source.ipu, target.ipu}
        carried = forms.of(transfer)
        if carried is None:
            continue
        found, form = carried
        tiles += found.receivers.tiles
        if found.copied_bytes:
            charge = copy_charge(machine, found.copied_bytes, found.copied_runs)
            before.append((target.ipu, _load(found.receivers, tuple(charge))))
        if not found.received_bytes:
            continue
        moved += found.total_bytes
        rounds = max(rounds, form.rounds)
        traffic += [
            (target.ipu, _received(found, form.receiving)),
            (source.ipu, _sent(found, program, transfer.source, machine)),
        ]
        if form.sending.buffer_bytes:
            before.append((source.ipu, _load(found.senders, tuple(form.sending.rearranging))))
        if form.receiving.buffer_bytes:
            after.append((target.ipu, _load(found.receivers, tuple(form.receiving.rearranging))))
        if source.ipu != target.ipu:
            flows[program.place(source.ipu), program.place(target.ipu)] += found.total_bytes
    on_chip = slowest(
        exchange(machine, [_traffic_of(peak.amounts) for peak in peaks(loads)])
        for loads in _by_ipu(traffic)
    )
    system = program.system_ipus or program.ipus
    links = link_transfer(machine, (Flow(*way, n) for way, n in flows.items()), system)
    copying = _slowest(before).plus(_slowest(after))
    starting, syncs = more_rounds(machine, rounds)
    present = len(ipus) * machine.chip.tiles_per_ipu
    return ExchangeCost(
        Spent(copying, slowest((on_chip, links)).plus(starting), syncs),
        min(tiles, present),
        tuple(sorted(ipus)),
        moved,
    )


def word_to_all_tiles(machine: Machine) -> Charge:
    """Return the charge of one tile's sending one word to all others."""
    return exchange(machine, [TileTraffic(4, 4, received_fragments=1)])


def _slowest(loads: list[tuple[int, Load]]) -> Charge:
    """Return the charge of the tile that copies longest."""
    return slowest(Charge(*peak.amounts) for on_ipu in _by_ipu(loads) for peak in peaks(on_ipu))


def _received(found: TransferTraffic, way: Way) -> Load:
    size, fragments = way.size_bytes, way.pieces
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
