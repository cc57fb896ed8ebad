"""Devices of a system: the IPUs of an id, and their order.

Graphcore's tools number a system's single IPUs first, then its pairs, fours and so on up to all of
it: 0 to 30 in a system of 16 (docs.graphcore.ai: Targeting the IPU from TensorFlow, multi-IPU
devices). A program's IPUs are the device's in one of three orders (graphcore/tensorflow:
tensorflow/compiler/plugin/poplar/driver/poplar_compiler.cc).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hloipu_runtime.errors import MachineError
from hloipu_runtime.machine.model import Machine

ZIGZAG, SNAKE, HOOF = "zigzag", "snake", "hoof"
ORDERS = (ZIGZAG, SNAKE, HOOF)
_FOUR = (0, 1, 3, 2)
"""Round two rungs of a ladder."""


class Device(NamedTuple):
    """A group of IPUs that can be taken as one."""

    id: int
    ipus: range
    """Places in the system."""


def devices_of(machine: Machine) -> Iterator[Device]:
    """Yield the devices of a machine's system, by id."""
    number, size = 0, 1
    system = machine.links.system_ipus
    while size <= system:
        for first in range(0, system, size):
            yield Device(number, range(first, first + size))
            number += 1
        size *= 2


def places_of(machine: Machine, ids: Sequence[int]) -> tuple[int, ...]:
    """Return the IPUs that ids of devices name, one device after the other.

    Raises MachineError E0554 for an id that the system has not, or IPUs that two devices share.
    """
    known = list(devices_of(machine))
    found: list[int] = []
    for number in ids:
        if not 0 <= number < len(known):
            raise MachineError(
                "E0554",
                f"a system of {machine.links.system_ipus} IPUs has devices 0 to {len(known) - 1}, "
                f"not {number}",
                key="links.system_ipus",
                hint="`hloipu targets MACHINE` lists them; --set system_ipus=N counts in another",
            )
        found += known[number].ipus
    if len(set(found)) < len(found):
        shared = next(ipu for ipu in found if found.count(ipu) > 1)
        raise MachineError(
            "E0554",
            f"IPU {shared} is in two of the devices {', '.join(map(str, ids))}",
            hint="name devices that are apart",
        )
    return tuple(found)


def in_order(order: str, ipus: int) -> tuple[int, ...]:
    """Return which of a device's IPUs each IPU of a program is.

    ZIGZAG goes from rung to rung; SNAKE turns back on every second one, so that each IPU is next to
    the one before; HOOF goes up one rail and down the other, so that the last is next to the first.
    """
    if order == SNAKE:
        whole = ipus - ipus % 4
        return (*(n - n % 4 + _FOUR[n % 4] for n in range(whole)), *range(whole, ipus))
    if order == HOOF:
        return (*range(0, ipus, 2), *reversed(range(1, ipus, 2)))
    return tuple(range(ipus))
