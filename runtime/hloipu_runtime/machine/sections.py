"""The sections of a machine: frozen records of numbers, each with its unit in its name.

They are the sections of the TOML files in `data/`, field for field. `docs/machine-model.md` tells
what the numbers mean together and what is not modelled.
"""

from typing import Annotated

from hloipu_runtime.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Quantity:
    """Unit of a number, how a key of this unit ends, and the smallest and largest value."""

    unit: str
    suffix: str
    least: int
    most: int


_MOST_CYCLES = 10**9
_MOST_BYTES = 2**50
_MOST_RATE = 10**15

Number = Annotated[int, Quantity("", "", 1, 10**6)]
"""A count of parts, at least one; the key says of what."""

NumberOrNone = Annotated[int, Quantity("", "", 0, 10**6)]
"""A count of parts that may be absent."""

Factor = Annotated[int, Quantity("times", "_factor", 1, 10**6)]
"""How many times the native cost an emulated operation takes."""

Percent = Annotated[int, Quantity("%", "_percent", 1, 100)]

Hertz = Annotated[int, Quantity("Hz", "_hz", 1, 10**12)]

Nanoseconds = Annotated[int, Quantity("ns", "_nanoseconds", 0, 10**12)]

Cycles = Annotated[int, Quantity("cycles", "_cycles", 0, _MOST_CYCLES)]
"""Tile cycles: one instruction bundle of one of the workers or of the supervisor each."""

Slots = Annotated[int, Quantity("slots", "_slots", 0, _MOST_CYCLES)]
"""Issue slots of one worker; a worker gets one tile cycle in `worker_contexts`."""

CyclesPerFragment = Annotated[
    int, Quantity("cycles/fragment", "_cycles_per_fragment", 0, _MOST_CYCLES)
]

CyclesPerPacket = Annotated[int, Quantity("cycles/packet", "_cycles_per_packet", 0, _MOST_CYCLES)]

MillicyclesPerByte = Annotated[
    int, Quantity("millicycles/byte", "_millicycles_per_byte", 0, _MOST_CYCLES)
]

Bytes = Annotated[int, Quantity("bytes", "bytes", 1, _MOST_BYTES)]

BytesOrNone = Annotated[int, Quantity("bytes", "bytes", 0, _MOST_BYTES)]

BytesPerCycle = Annotated[int, Quantity("bytes/cycle", "bytes_per_cycle", 1, 10**6)]

BytesPerSecond = Annotated[int, Quantity("bytes/s", "bytes_per_second", 1, _MOST_RATE)]


@dataclass(frozen=True, slots=True)
class Chip:
    """One IPU: how many tiles, and how fast their clock runs."""

    tiles_per_ipu: Number
    tiles_per_exchange_bus: Number
    """Consecutive tiles that share a bus: 2 on Mk2, where both may take the same data at once."""
    clock_hz: Hertz


@dataclass(frozen=True, slots=True)
class Tile:
    """Issue, load and store rates of a tile, and the cost of starting its workers."""

    worker_contexts: Number
    """Workers that take turns; each gets one issue slot in this many cycles."""
    load_bytes_per_cycle: BytesPerCycle
    interleaved_load_bytes_per_cycle: BytesPerCycle
    """From memory whose neighbouring elements answer in the same cycle."""
    store_bytes_per_cycle: BytesPerCycle
    copy_bytes_per_cycle: BytesPerCycle
    copy_call_cycles: Cycles
    """Fixed price of one copy by all workers, start and end included."""
    load_use_cycles: Cycles
    """From a supervisor's load to the first use of the value; workers never see it."""
    supervisor_vertex_cycles: Cycles
    """Supervisor's part of a vertex that all workers share, before and after they run."""
    supervisor_branch_cycles: Cycles
    run_workers_cycles: Cycles
    rearrange_call_cycles: Cycles
    """Fixed price of a copy that changes the order of elements."""
    rearrange_2_byte_runs_millicycles_per_byte: MillicyclesPerByte
    rearrange_4_byte_runs_millicycles_per_byte: MillicyclesPerByte
    rearrange_8_byte_runs_millicycles_per_byte: MillicyclesPerByte


@dataclass(frozen=True, slots=True)
class Memory:
    """A tile's memory and what a program takes of it besides its data."""

    bytes_per_tile: Bytes
    executable_bytes: Bytes
    """First part: not interleaved, the only one that code may lie in."""
    element_bytes: Bytes
    """Two accesses to one element in one cycle collide."""
    reserved_bytes: BytesOrNone
    """End of the memory that a program cannot be loaded into."""
    prefetch_slack_bytes: BytesOrNone
    """Left free after code and data, since the tile fetches ahead."""
    allocation_grain_bytes: Bytes
    instruction_bytes: Bytes
    stack_bytes: BytesOrNone
    """Of the supervisor and all workers together."""
    vertex_fixed_bytes: BytesOrNone
    """State of a vertex without its edges: entry in the list, code pointer."""
    edge_pointer_bytes: BytesOrNone
    edge_length_bytes: BytesOrNone
    """Of the length that a vertex keeps, which its edges share."""
    step_code_bytes: BytesOrNone
    """Supervisor code that starts one compute set, one exchange or one sync."""
    exchange_fragment_code_bytes: BytesOrNone
    """Exchange code of one contiguous piece that a tile sends or receives."""


@dataclass(frozen=True, slots=True)
class Pointers:
    """Worker slots to unpack one compressed pointer of a vertex's state."""

    short_span_slots: Slots
    scaled_pointer_32_slots: Slots
    scaled_pointer_64_slots: Slots
    delta_n_slots: Slots
    delta_n_elements_slots: Slots


@dataclass(frozen=True, slots=True)
class Amp:
    """The accumulating matrix product unit; position and load costs are for all its units."""

    f16_to_f16_conv_units: Number
    f16_to_f32_conv_units: Number
    f32_conv_units: Number
    f16_channels_per_group: Number
    f32_channels_per_group: Number
    f16_position_slots: Slots
    """Worker slots to take one position through one group of input channels."""
    f32_position_slots: Slots
    weights_per_unit_bytes: Bytes
    weight_load_bytes_per_cycle: BytesPerCycle
    interleaved_weight_load_bytes_per_cycle: BytesPerCycle


@dataclass(frozen=True, slots=True)
class Exchange:
    """The copy between the tiles of one IPU, scheduled when the program is compiled."""

    send_bytes_per_cycle: BytesPerCycle
    receive_bytes_per_cycle: BytesPerCycle
    paired_receive_bytes_per_cycle: BytesPerCycle
    """Where all tiles of one bus take in the same data."""
    setup_cycles: Cycles
    route_cycles: Cycles
    """From the sender's first word to its arrival."""
    control_cycles_per_fragment: CyclesPerFragment
    """Instructions for each contiguous piece that a tile receives."""
    transfer_bytes: Bytes
    """Most data of one transfer."""


@dataclass(frozen=True, slots=True)
class Sync:
    """Barriers: time from the last tile's arrival to the release of all."""

    sync_cycles: Cycles
    """Between the tiles of one IPU."""
    global_sync_cycles: Cycles
    """Between several IPUs."""


@dataclass(frozen=True, slots=True)
class Links:
    """Wires between IPUs: a ladder with two IPUs a rung, and gateways between ladders.

    Rates are of one link in one direction.
    """

    max_ipus: Number
    system_ipus: Number
    """IPUs of the system that ids of devices are counted in; a power of two."""
    ipus_per_link_domain: Number
    """IPUs that links alone connect; beyond, traffic takes the gateways."""
    torus_ipus: NumberOrNone
    """A system of this many IPUs or more closes its ladder into a ring; 0: never."""
    link_bytes_per_second: BytesPerSecond
    link_efficiency_percent: Percent
    rung_links: Number
    """Between the IPUs of a rung, for what stays on the rung."""
    crossing_links: Number
    """Between the IPUs of a rung, for what goes on to another rung."""
    rail_links: Number
    """From an IPU to its neighbour on the next rung, and as many to the one before."""
    hop_nanoseconds: Nanoseconds
    ipus_per_machine: Number
    """IPUs of one chassis, which share its gateways and its line to the host."""
    gateway_links_per_machine: NumberOrNone
    gateway_link_bytes_per_second: BytesPerSecond
    gateway_nanoseconds: Nanoseconds


@dataclass(frozen=True, slots=True)
class Host:
    """The line of one chassis to its host; packets are what one tile sends or takes at a time."""

    ipus_per_host: Number
    """IPUs whose lines a host takes all of; more of them on one host share these lines."""
    to_device_bytes_per_second: BytesPerSecond
    from_device_bytes_per_second: BytesPerSecond
    round_trip_nanoseconds: Nanoseconds
    """From the request of a transfer to its first byte, the host's own part included."""
    command_cycles: Cycles
    to_device_packet_bytes: Bytes
    from_device_packet_bytes: Bytes
    to_device_control_cycles_per_packet: CyclesPerPacket
    from_device_control_cycles_per_packet: CyclesPerPacket


@dataclass(frozen=True, slots=True)
class Remote:
    """Remote buffers in the memory beside each IPU."""

    remote_bytes: BytesOrNone
    """For each IPU; 0: no remote buffers."""
    read_bytes_per_second: BytesPerSecond
    write_bytes_per_second: BytesPerSecond
    access_nanoseconds: Nanoseconds


@dataclass(frozen=True, slots=True)
class Emulation:
    """Element types that the chip lacks: how much dearer than the type that stands in for them."""

    f64_factor: Factor
    """Over f32."""
    c64_factor: Factor
    """Over f32."""
    c128_factor: Factor
    """Over f32."""
    integer_64_factor: Factor
    """s64 and u64 over s32."""
    bf16_convert_slots: Slots
    """To or from f32, one element; bf16 is computed in f32."""
    f8_convert_slots: Slots
    """To or from f16, one element; 8-bit floats are computed in f16."""
    sub_byte_convert_slots: Slots
    """Packing or unpacking one element of less than 8 bits."""


Section = (
    Chip | Tile | Memory | Pointers | Amp | Exchange | Sync | Links | Host | Remote | Emulation
)

SECTIONS: dict[str, type[Section]] = {
    "chip": Chip,
    "tile": Tile,
    "memory": Memory,
    "pointers": Pointers,
    "amp": Amp,
    "exchange": Exchange,
    "sync": Sync,
    "links": Links,
    "host": Host,
    "remote": Remote,
    "emulation": Emulation,
}
"""Name of a section -> its record."""
