"""Costs of transfers to host and remote buffers, and time in cycles."""

from collections.abc import Sequence

from hloipu_runtime.machine.charges import NOTHING, Charge, charge_of, over
from hloipu_runtime.machine.model import Machine


def cycles_of_nanoseconds(machine: Machine, nanoseconds: int) -> int:
    """Return the cycles that a time takes, rounded up."""
    return over(nanoseconds * machine.chip.clock_hz, 10**9)


def cycles_at_rate(machine: Machine, size_bytes: int, bytes_per_second: int) -> int:
    """Return the cycles that moving bytes takes at a rate, rounded up."""
    return over(size_bytes * machine.chip.clock_hz, bytes_per_second)


def seconds(machine: Machine, cycles: int) -> float:
    """Return the time that cycles take."""
    return cycles / machine.chip.clock_hz


def host_transfer(
    machine: Machine,
    bytes_by_ipu: Sequence[int],
    *,
    to_device: bool,
    busiest_tile_bytes: int = 0,
    is_connected: bool = False,
    hosts: int = 0,
) -> Charge:
    """Return the charge of one transfer between the host and some IPUs, numbered from 0.

    Round trip, unless the stream `is_connected` before the run, and command; then the slower of
    two: the line that the IPUs of a chassis share, and the packets of the tile that moves most
    (osmarks/ipu-stack: crates/ipu-target/src/exchange.rs). `hosts` divide the IPUs among them, and
    each of them has lines for so many; 0: it is not said, and all have.
    """
    busiest = _busiest_line(machine, bytes_by_ipu, hosts)
    if busiest <= 0:
        return NOTHING
    host = machine.host
    if to_device:
        direction, rate, packet_bytes = (
            "to",
            host.to_device_bytes_per_second,
            host.to_device_packet_bytes,
        )
        control = host.to_device_control_cycles_per_packet
    else:
        direction, rate = "from", host.from_device_bytes_per_second
        packet_bytes = host.from_device_packet_bytes
        control = host.from_device_control_cycles_per_packet
    line = cycles_at_rate(machine, busiest, rate)
    packets = control * over(busiest_tile_bytes, packet_bytes)
    data: tuple[int, *tuple[str, ...]] = (
        (line, f"host.{direction}_device_bytes_per_second", "chip.clock_hz")
        if line >= packets
        else (packets, f"host.{direction}_device_control_cycles_per_packet")
    )
    round_trip = 0 if is_connected else _round_trip(machine)
    return charge_of(
        machine,
        (round_trip, "host.round_trip_nanoseconds", "chip.clock_hz"),
        (host.command_cycles, "host.command_cycles"),
        data,
    )


def _busiest_line(machine: Machine, bytes_by_ipu: Sequence[int], hosts: int) -> int:
    """Return the bytes that the busiest line takes, of a chassis or its share of a host's lines."""
    group, lines = machine.links.ipus_per_machine, machine.host.ipus_per_host

    def most(ipus: int) -> int:
        firsts = range(0, len(bytes_by_ipu), ipus)
        return max((sum(bytes_by_ipu[first : first + ipus]) for first in firsts), default=0)

    if not hosts or len(bytes_by_ipu) <= hosts * lines:
        return most(group)
    return max(most(group), over(most(over(len(bytes_by_ipu), hosts)) * group, lines))


def host_call(machine: Machine) -> Charge:
    """Return the charge of one call from the host that runs a program: a round trip."""
    return charge_of(
        machine, (_round_trip(machine), "host.round_trip_nanoseconds", "chip.clock_hz")
    )


def _round_trip(machine: Machine) -> int:
    return cycles_of_nanoseconds(machine, machine.host.round_trip_nanoseconds)


def remote_transfer(machine: Machine, bytes_of_ipu: int, *, write: bool) -> Charge:
    """Return the charge of moving bytes between an IPU and the memory beside it: access + rate."""
    if bytes_of_ipu <= 0:
        return NOTHING
    remote = machine.remote
    rate, key = (
        (remote.write_bytes_per_second, "remote.write_bytes_per_second")
        if write
        else (remote.read_bytes_per_second, "remote.read_bytes_per_second")
    )
    access = cycles_of_nanoseconds(machine, remote.access_nanoseconds)
    return charge_of(
        machine,
        (access, "remote.access_nanoseconds", "chip.clock_hz"),
        (cycles_at_rate(machine, bytes_of_ipu, rate), key, "chip.clock_hz"),
    )
