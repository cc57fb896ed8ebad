"""Charge of an exchange: within IPUs, between them, and copies on the tile itself."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.costs.exchange_form import copy_charge, more_rounds
from hloipu_runtime.costs.exchange_price import received_by_tile, sent_by_tile
from hloipu_runtime.costs.forms import Forms
from hloipu_runtime.costs.loads import Load, peaks
from hloipu_runtime.costs.spent import Spent
from hloipu_runtime.costs.traffic import TileRange, TransferTraffic
from hloipu_runtime.machine.charges import Charge, slowest
from hloipu_runtime.machine.costs import TileTraffic, exchange, exchange_cycles
from hloipu_runtime.machine.links import Flow, LinkCycles, link_price
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.channels import pushed
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import Channel, Exchange, Pipeline, Transfer


class ExchangeCost(NamedTuple):
    """What an exchange costs and moves."""

    spent: Spent
    tiles: int
    """That receive or copy, at most."""
    ipus: tuple[int, ...]
    moved_bytes: int
    """That leave their tile, each once, rounded up to words."""
    flows: Mapping[tuple[int, int], int]
    """Bytes between IPUs, by their places in the system: those that links are charged for."""
    links: LinkCycles
    """Cycles that they take there; exchanges on the chips go on meanwhile."""


def exchange_cost(program: Program, step: Exchange, machine: Machine, forms: Forms) -> ExchangeCost:
    """Return the cost of an exchange: the slowest tile's traffic, or the fullest link's.

    Transfers that meet on a tile add up. Copies within a tile and what senders rearrange come
    before, what receivers rearrange after, both as computing.
    """
    moved = _moved_by(program, step.transfers, machine, forms)
    on_ipus = [_spent_on(machine, loads) for loads in moved.loads.values()]
    return _cost_of(program, machine, [moved], on_ipus)


def cycles_by_tile(
    program: Program, step: Exchange, machine: Machine, forms: Forms
) -> dict[int, NDArray[np.int64]]:
    """Return the cycles of every tile in an exchange by IPU, copies and rearranging included.

    What links take, and further rounds, is nobody's tile.
    """
    moved = _moved_by(program, step.transfers, machine, forms)
    tiles, cycles_by_ipu = machine.chip.tiles_per_ipu, {}
    for ipu, loads in moved.loads.items():
        traffic = TileTraffic(*_sums_by_tile(loads.traffic, len(TileTraffic._fields), tiles))
        copying = _sums_by_tile(loads.before + loads.after, len(Charge._fields), tiles)[0]
        cycles_by_ipu[ipu] = np.asarray(exchange_cycles(machine, traffic) + copying)
    return cycles_by_ipu


def tile_loads(
    program: Program, transfers: Iterable[Transfer], machine: Machine, forms: Forms
) -> Iterator[tuple[int, Load]]:
    """Yield what transfers ask of the tiles of each IPU.

    Amounts are those of `TileTraffic`, then cycles of copying before and after.
    """
    nothing = (0,) * len(TileTraffic._fields)
    for ipu, loads in _moved_by(program, transfers, machine, forms).loads.items():
        for load in loads.traffic:
            yield ipu, load._replace(amounts=(*load.amounts, 0, 0))
        for load in loads.before:
            yield ipu, load._replace(amounts=(*nothing, load.amounts[0], 0))
        for load in loads.after:
            yield ipu, load._replace(amounts=(*nothing, 0, load.amounts[0]))


def _sums_by_tile(loads: Iterable[Load], amounts: int, tiles: int) -> NDArray[np.int64]:
    changes = np.zeros((amounts, tiles + 1), np.int64)
    for load in loads:
        changes[:, load.first] += load.amounts
        changes[:, load.last + 1] -= load.amounts
    return changes.cumsum(axis=1)[:, :tiles]


class SlotCopies:
    """The copies that end the slots of a pipeline: each position makes the same ones every time.

    What an IPU spends depends only on which positions make copies from and to it, of which there
    are few, so that a slot costs a look-up for each IPU.
    """

    def __init__(self, program: Program, step: Pipeline, machine: Machine, forms: Forms) -> None:
        self._program, self._machine = program, machine
        channels: dict[int, list[Channel]] = {}
        for channel in step.channels:
            channels.setdefault(channel.producer, []).append(channel)
        self._made = {
            producer: _moved_by(program, pushed(program, some).transfers, machine, forms)
            for producer, some in sorted(channels.items())
        }
        self._makers: dict[int, list[int]] = {}
        """IPU -> the positions that make copies from and to it."""
        for producer, moved in self._made.items():
            for ipu in moved.loads:
                self._makers.setdefault(ipu, []).append(producer)
        self._found: dict[tuple[int, ...], _OnIpu] = {}

    def cost(self, positions: Iterable[int]) -> ExchangeCost:
        """Return the cost of the copies of some positions."""
        active = frozenset(positions)
        parts = [moved for producer, moved in self._made.items() if producer in active]
        on_ipus = [
            self._on(ipu, tuple([producer for producer in makers if producer in active]))
            for ipu, makers in self._makers.items()
        ]
        return _cost_of(self._program, self._machine, parts, on_ipus)

    def _on(self, ipu: int, makers: tuple[int, ...]) -> "_OnIpu":
        on_ipu = self._found.get((ipu, *makers))
        if on_ipu is None:
            loads = _Loads()
            for producer in makers:
                loads.add(self._made[producer].loads[ipu])
            on_ipu = self._found[ipu, *makers] = _spent_on(self._machine, loads)
        return on_ipu


class _Loads:
    """Loads on the tiles of one IPU: while an exchange lasts, and before and after it."""

    def __init__(self) -> None:
        self.traffic: list[Load] = []
        self.before: list[Load] = []
        self.after: list[Load] = []

    def add(self, other: "_Loads") -> None:
        self.traffic += other.traffic
        self.before += other.before
        self.after += other.after


class _OnIpu(NamedTuple):
    """What an exchange costs on one IPU: on the slowest tile, each part."""

    exchanging: Charge
    before: Charge
    after: Charge


class _Moved:
    """What some transfers move."""

    def __init__(self) -> None:
        self.loads: dict[int, _Loads] = {}
        """By IPU."""
        self.flows: Counter[tuple[int, int]] = Counter()
        self.ipus: set[int] = set()
        self.receivers: dict[int, list[TileRange]] = {}
        """By IPU: where each transfer ends."""
        self.size_bytes = 0
        self.rounds = 1

    def on(self, ipu: int) -> _Loads:
        loads = self.loads.get(ipu)
        if loads is None:
            loads = self.loads[ipu] = _Loads()
        return loads


def _moved_by(
    program: Program, transfers: Iterable[Transfer], machine: Machine, forms: Forms
) -> _Moved:
    moved = _Moved()
    for transfer in transfers:
        source, target = program.variables[transfer.source], program.variables[transfer.destination]
        moved.ipus.update((source.ipu, target.ipu))
        carried = forms.of(transfer)
        if carried is None:
            continue
        traffic, form = carried
        moved.receivers.setdefault(target.ipu, []).append(traffic.receivers)
        if traffic.copied_bytes:
            charge = copy_charge(machine, traffic.copied_bytes, traffic.copied_runs)
            moved.on(target.ipu).before.append(_load(traffic.receivers, tuple(charge)))
        if not traffic.received_bytes:
            continue
        moved.size_bytes += traffic.total_bytes
        moved.rounds = max(moved.rounds, form.rounds)
        received = received_by_tile(traffic, form)
        moved.on(target.ipu).traffic.append(_traffic_load(traffic.receivers, received))
        moved.on(source.ipu).traffic.append(_sent(traffic, program, transfer.source, machine))
        if form.sending.buffer_bytes:
            amounts = tuple(form.sending.rearranging)
            moved.on(source.ipu).before.append(_load(traffic.senders, amounts))
        if form.receiving.buffer_bytes:
            amounts = tuple(form.receiving.rearranging)
            moved.on(target.ipu).after.append(_load(traffic.receivers, amounts))
        if source.ipu != target.ipu:
            ends = program.place(source.ipu), program.place(target.ipu)
            moved.flows[ends] += traffic.total_bytes
    return moved


def _spent_on(machine: Machine, loads: _Loads) -> _OnIpu:
    return _OnIpu(
        slowest(_exchanged(machine, peak.amounts) for peak in peaks(loads.traffic)),
        _slowest(loads.before),
        _slowest(loads.after),
    )


def _cost_of(
    program: Program, machine: Machine, parts: Sequence[_Moved], on_ipus: Sequence[_OnIpu]
) -> ExchangeCost:
    """Return the cost of moving all parts in one exchange, from what it costs on each IPU."""
    exchanging = slowest(each.exchanging for each in on_ipus)
    copying = slowest(on_ipu.before for on_ipu in on_ipus).plus(
        slowest(on_ipu.after for on_ipu in on_ipus)
    )
    flows: Counter[tuple[int, int]] = Counter()
    ipus: set[int] = set()
    for part in parts:
        ipus |= part.ipus
        flows.update(part.flows)
    system = program.system_ipus or program.ipus
    links, by_kind = link_price(machine, (Flow(*ends, n) for ends, n in flows.items()), system)
    starting, syncs = more_rounds(machine, max((part.rounds for part in parts), default=1))
    receivers: dict[int, list[TileRange]] = {}
    for part in parts:
        for ipu, ranges in part.receivers.items():
            receivers.setdefault(ipu, []).extend(ranges)
    return ExchangeCost(
        Spent(copying, slowest((exchanging, links)).plus(starting), syncs),
        sum(map(most_tiles, receivers.values())),
        tuple(sorted(ipus)),
        sum(part.size_bytes for part in parts),
        flows,
        by_kind,
    )


def most_tiles(ranges: Iterable[TileRange]) -> int:
    """Return how many tiles take part in some transfers at most, each counted once.

    Transfers to one and the same range are taken to end on the same tiles, as operands of one op
    do; of ranges that overlap no more tiles count than lie between their ends.
    """
    most: dict[tuple[int, int], int] = {}
    for first, last, tiles in ranges:
        most[first, last] = max(tiles, most.get((first, last), 0))
    total = begin = count = 0
    end = -1
    for (first, last), tiles in sorted(most.items()):
        if first > end:
            total += min(count, end - begin + 1)
            begin, count = first, 0
        end, count = max(end, last), count + tiles
    return total + min(count, end - begin + 1)


def word_to_all_tiles(machine: Machine) -> Charge:
    """Return the charge of one tile's sending one word to all others."""
    return exchange(machine, [TileTraffic(4, 4, received_fragments=1)])


def _slowest(loads: list[Load]) -> Charge:
    """Return the charge of the tile that copies longest."""
    return slowest(Charge(*peak.amounts) for peak in peaks(loads))


def _sent(traffic: TransferTraffic, program: Program, source: int, machine: Machine) -> Load:
    """Return what the senders send; those of paired data take whole buses."""
    tiles = program.variables[source].mapping.tiles
    first, last, count = traffic.senders
    if traffic.is_paired:
        bus = machine.chip.tiles_per_exchange_bus
        first, last = first // bus * bus, last // bus * bus + bus - 1
    return _traffic_load(TileRange(first, last, count), sent_by_tile(machine, traffic, tiles))


@lru_cache(1 << 14)
def _exchanged(machine: Machine, amounts: tuple[int, ...]) -> Charge:
    return exchange(machine, [TileTraffic(*amounts)])


def _traffic_load(tiles: TileRange, traffic: TileTraffic) -> Load:
    return _load(tiles, tuple(map(int, traffic)))


def _load(tiles: TileRange, amounts: tuple[int, ...]) -> Load:
    return Load(tiles.first, tiles.last, amounts)
