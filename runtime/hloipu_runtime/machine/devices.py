"""Devices of a system: the IPUs of an id, and their order.

Graphcore's tools number a system's single IPUs first, then its pairs, fours and so on up to all of
it: 0 to 30 in a system of 16 (docs.graphcore.ai: Targeting the IPU from TensorFlow, multi-IPU
devices). In pods the single ones are numbered along the links (docs.graphcore.ai: IPU command line
tools, gc-info --list-devices of a pod); in a server of PCIe cards, which has no gateways, they are
not, so that device 24 is IPUs 4 to 7 there. A program's IPUs are the device's in one of three
orders (graphcore/tensorflow: tensorflow/compiler/plugin/poplar/driver/poplar_compiler.cc).

A *place* is where an IPU is along the links; the number of an IPU is the id of its device.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hloipu_runtime.errors import MachineError
from hloipu_runtime.machine.model import Machine

ZIGZAG, SNAKE, HOOF = "zigzag", "snake", "hoof"
ORDERS = (ZIGZAG, SNAKE, HOOF)
_FOUR = (0, 1, 3, 2)
"""Round two rungs of a ladder."""

_CARDS = (5, 7, 4, 6, 3, 1, 2, 0, 13, 15, 12, 14, 9, 11, 10, 8)
"""IPUs of a server of eight C2 cards along its links: device 30 of the listing in
graphcore/tensorflow: tensorflow/python/ipu/utils.py, select_ipus."""


class Device(NamedTuple):
    """A group of IPUs that can be taken as one."""

    id: int
    places: range
    ipus: tuple[int, ...]
    """Numbers of the IPUs at these places."""


def devices_of(machine: Machine) -> Iterator[Device]:
    """Yield the devices of a machine's system, by id."""
    along = ipus_along_links(machine)
    system = len(along)
    for ipu in range(system):
        place = along.index(ipu)
        yield Device(ipu, range(place, place + 1), (ipu,))
    number, size = system, 2
    while size <= system:
        for first in range(0, system, size):
            yield Device(number, range(first, first + size), along[first : first + size])
            number += 1
        size *= 2


def ipus_along_links(machine: Machine) -> tuple[int, ...]:
    """Return the numbers of the IPUs of a machine's system, by their places.

    A server of fewer cards than the listing has its first ones, numbered without gaps; in a larger
    system each sixteen are such a server (both assumed).
    """
    links = machine.links
    if links.gateway_links_per_machine:
        return tuple(range(links.system_ipus))
    cards = _CARDS[: links.system_ipus]
    ranks = [sorted(cards).index(card) for card in cards]
    return tuple(
        first + rank for first in range(0, links.system_ipus, len(cards)) for rank in ranks
    )


def places_of(machine: Machine, ids: Sequence[int]) -> tuple[int, ...]:
    """Return the places of the IPUs that ids of devices name, one device after the other.

    Raises MachineError E0554 for an id that the system has not, or IPUs that two devices share.
    """
    known = list(devices_of(machine))
    places: list[int] = []
    for number in ids:
        if not 0 <= number < len(known):
            raise MachineError(
                "E0554",
                f"a system of {machine.links.system_ipus} IPUs has devices 0 to {len(known) - 1}, "
                f"not {number}",
                key="links.system_ipus",
                hint="`hloipu targets MACHINE` lists them; --set system_ipus=N counts in another",
            )
        places += known[number].places
    if len(set(places)) < len(places):
        shared = next(place for place in places if places.count(place) > 1)
        ipu = ipus_along_links(machine)[shared]
        raise MachineError(
            "E0554",
            f"IPU {ipu} is in two of the devices {', '.join(map(str, ids))}",
            hint="name devices that are apart",
        )
    return tuple(places)


def in_order(order: str, ipus: int) -> tuple[int, ...]:
    """Return which of a device's IPUs each IPU of a program is.

    ZIGZAG goes from rung to rung; SNAKE turns back on every second one, so that each IPU is next to
    the one before; HOOF goes up one rail and down the other, so that the last is next to the first.
    """
    if order == SNAKE:
        snake_ipus = ipus - ipus % 4
        return (*(n - n % 4 + _FOUR[n % 4] for n in range(snake_ipus)), *range(snake_ipus, ipus))
    if order == HOOF:
        return (*range(0, ipus, 2), *reversed(range(1, ipus, 2)))
    return tuple(range(ipus))
