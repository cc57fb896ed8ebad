"""Cycle formulas of compute, exchange and sync.

Pure functions of the machine's numbers. A phase ends when its slowest tile ends (bulk synchronous
parallel: docs.graphcore.ai, IPU Programmer's Guide), so a phase costs the maximum over its tiles.
"""

from collections.abc import Iterable
from heapq import heapreplace
from operator import add
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.machine.charges import NOTHING, Amount, Charge, charge_of, over, slowest
from hloipu_runtime.machine.model import Machine

# --- compute --------------------------------------------------------------------------------------


def shared_vertex_cycles(machine: Machine, supervisor_cycles: int, worker_slots: int) -> int:
    """Return the tile cycles of a vertex that the supervisor hands to all workers at once.

    `worker_slots` are those of the slowest worker: supervisor + contexts * slots
    (graphcore/poplibs: lib/popops/popopsCycleEstimators.cpp, lib/poplin/PerformanceEstimation.hpp).
    """
    return supervisor_cycles + machine.tile.worker_contexts * worker_slots


def single_vertices_cycles(machine: Machine, classes: Iterable[tuple[int, int]]) -> int:
    """Return the tile cycles of vertices that each run on one worker.

    `classes` are (count, slots of one). Each class is dealt to all workers evenly, its remainder to
    the workers that have least to do; the tile takes contexts * the fullest worker's slots.
    """
    contexts = machine.tile.worker_contexts
    workers = [0] * contexts
    even = 0
    for count, slots in classes:
        rounds, remainder = divmod(count, contexts)
        even += rounds * slots
        for _ in range(remainder):
            heapreplace(workers, workers[0] + slots)
    return contexts * (even + max(workers))


class TileWork(NamedTuple):
    """Work of one tile, or of each tile of a class, in a compute set."""

    cycles: int
    """Sum over its vertices, by the two functions above: they run one after the other."""
    assumed_cycles: int = 0
    """Of these, cycles by formulas that rest on no source."""


def compute_set(machine: Machine, tiles: Iterable[TileWork]) -> Charge:
    """Return the charge of a compute set: the tile with most work; the sync is charged apart."""
    all_assumed = machine.rests_on_assumption("tile.worker_contexts")
    return slowest(
        Charge(work.cycles, work.cycles if all_assumed else work.assumed_cycles) for work in tiles
    )


def copy_on_tile(machine: Machine, size_bytes: int) -> Charge:
    """Return the charge of a contiguous copy within a tile by all workers.

    Call + bytes / rate (osmarks/ipu-stack: crates/ipu-target/src/ipu21/costs.rs).
    """
    if size_bytes <= 0:
        return NOTHING
    return charge_of(
        machine,
        (machine.tile.copy_call_cycles, "tile.copy_call_cycles"),
        (over(size_bytes, machine.tile.copy_bytes_per_cycle), "tile.copy_bytes_per_cycle"),
    )


def rearrange_on_tile(machine: Machine, size_bytes: int, run_bytes: int) -> Charge:
    """Return the charge of a copy within a tile that reorders runs of `run_bytes` bytes.

    Call + price * bytes, the price by the length of runs, a regression
    (graphcore/poplibs: lib/poplin/ConvTransformsBytesToCycles.hpp). Lengths between those of the
    table, and all below it, take the price of the next shorter one.
    """
    if size_bytes <= 0:
        return NOTHING
    tile, width = machine.tile, 2
    price = tile.rearrange_2_byte_runs_millicycles_per_byte
    if run_bytes >= 8:
        width, price = 8, tile.rearrange_8_byte_runs_millicycles_per_byte
    elif run_bytes >= 4:
        width, price = 4, tile.rearrange_4_byte_runs_millicycles_per_byte
    return charge_of(
        machine,
        (tile.rearrange_call_cycles, "tile.rearrange_call_cycles"),
        (over(size_bytes * price, 1000), f"tile.rearrange_{width}_byte_runs_millicycles_per_byte"),
    )


# --- exchange and sync ----------------------------------------------------------------------------


class TileTraffic(NamedTuple):
    """Traffic of one tile, or of each tile of a class, in an exchange.

    Bytes sent to several tiles are sent once. Paired bytes are those that all tiles of one bus
    receive; the sender's own partner lends its lane for them, so they are counted at both.
    """

    sent_bytes: Amount = 0
    received_bytes: Amount = 0
    paired_sent_bytes: Amount = 0
    paired_received_bytes: Amount = 0
    received_fragments: Amount = 0
    """Contiguous pieces, at the receiver, of all that it receives."""

    def plus(self, other: "TileTraffic") -> "TileTraffic":
        """Return what both are together."""
        return TileTraffic(*map(add, self, other))


class _Data(NamedTuple):
    """Cycles of what the slower direction of an exchange moves, and of its fragments."""

    alone: Amount
    paired: Amount
    controls: Amount
    is_sent: bool | NDArray[np.bool_]


def _cycles_each(
    machine: Machine, traffic: TileTraffic
) -> tuple[Amount, Amount, Amount, Amount, Amount]:
    """Return the cycles of what is sent and received, of the same at the paired rate, of controls.

    As `over`, without a call each: planners ask this most often of all.
    """
    rates = machine.exchange
    sent, received, paired_sent, paired_received, fragments = traffic
    paired_rate = rates.paired_receive_bytes_per_cycle
    return (
        -(-sent // rates.send_bytes_per_cycle),
        -(-received // rates.receive_bytes_per_cycle),
        -(-paired_sent // paired_rate),
        -(-paired_received // paired_rate),
        fragments * rates.control_cycles_per_fragment,
    )


def _data(machine: Machine, traffic: TileTraffic) -> _Data:
    send, receive, paired_send, paired_receive, controls = _cycles_each(machine, traffic)
    is_sent = send + paired_send > receive + paired_receive
    if isinstance(is_sent, np.ndarray):
        alone: Amount = np.where(is_sent, send, receive)
        return _Data(alone, np.where(is_sent, paired_send, paired_receive), controls, is_sent)
    alone, paired = (send, paired_send) if is_sent else (receive, paired_receive)
    return _Data(alone, paired, controls, is_sent)


def exchange_cycles(machine: Machine, traffic: TileTraffic) -> Amount:
    """Return the cycles of an exchange with this traffic of its slowest tile.

    Entries of arrays are priced one by one. Where nothing moves it is 0; the sync before it is
    charged apart. Data: max(sent, received) bytes over the rate, paired ones at the paired rate
    (graphcore/poplibs: lib/poplin/ExchangeEstimator.hpp). Added are set-up, the controls of each
    fragment and the way of the first word (osmarks/ipu-stack:
    docs/EXCHANGE_INSTRUCTION_REFERENCE.md), which together make the smallest exchange.
    """
    send, receive, paired_send, paired_receive, controls = _cycles_each(machine, traffic)
    sent, received, rates = send + paired_send, receive + paired_receive, machine.exchange
    is_array = isinstance(sent, np.ndarray) or isinstance(received, np.ndarray)
    data = np.maximum(sent, received) if is_array else max(sent, received)
    return (rates.setup_cycles + rates.route_cycles + controls + data) * (data > 0)


def beginning(machine: Machine) -> Charge:
    """Return the charge of an exchange before its data: set-up, and the way of the first word."""
    rates = machine.exchange
    return charge_of(
        machine,
        (rates.setup_cycles, "exchange.setup_cycles"),
        (rates.route_cycles, "exchange.route_cycles"),
    )


def exchange(machine: Machine, tiles: Iterable[TileTraffic]) -> Charge:
    """Return the charge of an exchange on one IPU: the `exchange_cycles` of its slowest tile."""
    return slowest(_exchange_of(machine, traffic) for traffic in tiles)


def _exchange_of(machine: Machine, traffic: TileTraffic) -> Charge:
    """Return the charge of a tile, or of the slowest of the tiles of an array."""
    cycles = exchange_cycles(machine, traffic)
    if isinstance(cycles, np.ndarray):
        if not cycles.size:
            return NOTHING
        columns = (np.broadcast_to(amount, cycles.shape) for amount in traffic)
        traffic = TileTraffic(*(int(column.flat[cycles.argmax()]) for column in columns))
    alone, paired, controls, is_sent = _data(machine, traffic)
    if not alone + paired:
        return NOTHING
    direction = "send" if is_sent else "receive"
    data = charge_of(
        machine,
        (int(controls), "exchange.control_cycles_per_fragment"),
        (int(alone), f"exchange.{direction}_bytes_per_cycle"),
        (int(paired), "exchange.paired_receive_bytes_per_cycle"),
    )
    return beginning(machine).plus(data)


def sync(machine: Machine, ipus: int = 1) -> Charge:
    """Return the charge of a barrier between the tiles of one IPU, or of several.

    Poplar's constants, as osmarks/ipu-stack quotes them; waiting for the slowest tile is no part.
    """
    if ipus > 1:
        return charge_of(machine, (machine.sync.global_sync_cycles, "sync.global_sync_cycles"))
    return charge_of(machine, (machine.sync.sync_cycles, "sync.sync_cycles"))
