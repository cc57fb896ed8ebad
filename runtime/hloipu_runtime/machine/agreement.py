"""Consistency rules between a machine's numbers."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from hloipu_runtime.errors import MachineError
from hloipu_runtime.machine.given import Given
from hloipu_runtime.machine.model import Machine


class Rule(NamedTuple):
    """Two numbers, whether they go together, and why they might not."""

    key: str
    other: str
    holds: bool
    reason: str


def check_agreement(machine: Machine, numbers: Mapping[str, Given]) -> None:
    """Raise MachineError E3208 where two numbers cannot both be true."""
    for rule in _rules(machine):
        if rule.holds:
            continue
        first, second = numbers[rule.key], numbers[rule.other]
        raise MachineError(
            "E3208",
            f"{rule.key} = {first.value} does not go with {rule.other} = {second.value}",
            key=rule.key,
            # What the user set just now is likelier wrong than the file.
            place=second.place if second.place == "--set" else first.place,
            hint=rule.reason,
        )


def _rules(machine: Machine) -> Iterator[Rule]:
    memory, tile, amp = machine.memory, machine.tile, machine.amp
    for key, part_bytes in (
        ("memory.executable_bytes", memory.executable_bytes),
        ("memory.element_bytes", memory.element_bytes),
        ("memory.reserved_bytes", memory.reserved_bytes + 1),
    ):
        holds = part_bytes <= memory.bytes_per_tile
        reason = "it is a part of the tile's memory; set both"
        yield Rule(key, "memory.bytes_per_tile", holds, reason)
    yield Rule(
        "tile.interleaved_load_bytes_per_cycle",
        "tile.load_bytes_per_cycle",
        tile.interleaved_load_bytes_per_cycle >= tile.load_bytes_per_cycle,
        "interleaved memory is never slower; set both",
    )
    yield Rule(
        "amp.interleaved_weight_load_bytes_per_cycle",
        "amp.weight_load_bytes_per_cycle",
        amp.interleaved_weight_load_bytes_per_cycle >= amp.weight_load_bytes_per_cycle,
        "interleaved memory is never slower; set both",
    )
    yield Rule(
        "exchange.paired_receive_bytes_per_cycle",
        "exchange.receive_bytes_per_cycle",
        machine.exchange.paired_receive_bytes_per_cycle >= machine.exchange.receive_bytes_per_cycle,
        "a shared bus is never slower; set both",
    )
    yield from _link_rules(machine)


def _link_rules(machine: Machine) -> Iterator[Rule]:
    links = machine.links
    yield Rule(
        "links.max_ipus",
        "links.ipus_per_link_domain",
        links.gateway_links_per_machine > 0 or links.max_ipus <= links.ipus_per_link_domain,
        "without gateways there are no more IPUs than links connect",
    )
    yield Rule(
        "links.system_ipus",
        "links.max_ipus",
        links.system_ipus <= links.max_ipus and links.system_ipus & (links.system_ipus - 1) == 0,
        "a system is a power of two of IPUs, and no larger than there are",
    )
    yield Rule(
        "links.ipus_per_link_domain",
        "links.ipus_per_machine",
        links.ipus_per_link_domain % links.ipus_per_machine == 0,
        "a link domain consists of whole machines",
    )
