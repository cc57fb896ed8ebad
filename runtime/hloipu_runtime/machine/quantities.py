"""Units and ranges: what kind of number a machine's field holds.

All numbers are integers, so that costs are exact and equal on every computer.
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
