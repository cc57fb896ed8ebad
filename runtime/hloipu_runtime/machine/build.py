"""Builds a machine from a file's tables, and checks every number, which knows its place in it."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeGuard

from hloipu_runtime.errors import MachineError
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.machine.schema import SCHEMA, shown, unknown_key
from hloipu_runtime.machine.sections import SECTIONS
from hloipu_runtime.nearest import did_you_mean

_HEADER = re.compile(r"\[\s*([\w.-]+)\s*\]")
_KEY = re.compile(r"([\w-]+)\s*=")


class Given(NamedTuple):
    """One number as it was given: value, source, and the place it stands at."""

    value: int
    source: str
    place: str


class Places:
    """Finds the line of a key of one file, for messages: `tomllib` does not tell lines."""

    def __init__(self, file: str, text: str) -> None:
        self._file = file
        self._headers: dict[str, int] = {}
        """The last line at which a section begins."""
        self._keys: dict[tuple[str, str], int] = {}
        """The first line of each key of a section; before the first section that is ""."""
        section = ""
        for number, line in enumerate(text.splitlines(), 1):
            stripped = line.strip()
            if header := _HEADER.match(stripped):
                section = header[1]
                self._headers[section] = number
            elif key := _KEY.match(stripped):
                self._keys.setdefault((section, key[1]), number)

    def of(self, section: str, name: str = "") -> str:
        """Return `file:line` of a section, or of a key in it.

        Only the usual form is found, a `[section]` with one key a line; else the file alone is
        named, or the section's line.
        """
        line = self._keys.get(("", section)) or self._keys.get((section, name))
        line = line or self._headers.get(section)
        return f"{self._file}:{line}" if line else self._file


ASSUMED = re.compile(r"assumed(?::|$)")
"""How the source of a number starts that nobody published."""

_LONGEST_TEXT = 400


def build(
    name: str, tables: Mapping[str, Any], places: Places, overrides: Mapping[str, Given]
) -> Machine:
    """Return the machine that the tables of a TOML file and the overrides describe.

    Raises MachineError: E3203 unknown key, E3204 missing key, E3205 wrong type, E3206 out of range,
    E3207 no source, E3208 numbers that contradict each other.
    """
    for section_name in tables:
        if section_name not in SECTIONS and section_name != "description":
            raise MachineError(
                "E3203",
                f"a machine has no section {shown(section_name)}",
                key=section_name[:64],
                place=places.of(section_name),
                hint=did_you_mean(
                    section_name, [*SECTIONS, "description"], f"its sections: {', '.join(SECTIONS)}"
                ),
            )
    description = tables.get("description")
    if not _is_line(description):
        raise MachineError(
            "E3204",
            "the machine has no description",
            key="description",
            place=places.of("description"),
            hint='start the file with description = "…", one line of text',
        )
    numbers = {**dict(_numbers(tables, places)), **overrides}
    for key, given_number in numbers.items():
        check_range(key, given_number)
    sections = {
        section: record(
            **{
                key.partition(".")[2]: numbers[key].value
                for key in SCHEMA
                if key.startswith(f"{section}.")
            }
        )
        for section, record in SECTIONS.items()
    }
    machine = Machine(
        name=name,
        description=description,
        sources=tuple((key, numbers[key].source) for key in SCHEMA),
        assumed=frozenset(key for key in SCHEMA if ASSUMED.match(numbers[key].source)),
        **sections,  # type: ignore[arg-type]  # each is the record that SECTIONS has for it
    )
    check_agreement(machine, numbers)
    return machine


def _numbers(tables: Mapping[str, Any], places: Places) -> Iterator[tuple[str, Given]]:
    """Yield every key of the schema with what the file gives for it."""
    for section in SECTIONS:
        table = tables.get(section, {})
        if not isinstance(table, dict):
            raise MachineError(
                "E3205", f"{section} is a table", key=section, place=places.of(section)
            )
        for name in table:
            if f"{section}.{name}" not in SCHEMA:
                raise unknown_key(f"{section}.{name}", place=places.of(section, name))
    for key in SCHEMA:
        section, name = key.split(".")
        table = tables.get(section, {})
        if name not in table:
            raise MachineError(
                "E3204",
                f"{key} is missing",
                key=key,
                place=places.of(section),
                hint=f'add {name} = {{ value = …, source = "…" }} to [{section}]: '
                "machines have no defaults",
            )
        yield key, _number_entry(key, table[name], places.of(section, name))


def _number_entry(key: str, entry: object, place: str) -> Given:
    """Return one entry `{ value = …, source = "…" }`, its types checked."""
    if not isinstance(entry, dict) or "value" not in entry:
        raise MachineError(
            "E3205", f'{key} is not of the form {{ value = …, source = "…" }}', key=key, place=place
        )
    for word in entry:
        if word not in ("value", "source"):
            raise MachineError(
                "E3203",
                f"{key} has a value and a source, no {shown(word)}",
                key=key,
                place=place,
                hint=did_you_mean(word, ["value", "source"]),
            )
    value, source = entry["value"], entry.get("source")
    if not isinstance(value, int) or isinstance(value, bool):
        raise MachineError(
            "E3205",
            f"{key} is an integer, not {shown(str(value))}",
            key=key,
            place=place,
            hint="all numbers are integers, in the unit that the key names",
        )
    if not _is_line(source):
        raise MachineError(
            "E3207",
            f"{key} has no source",
            key=key,
            place=place,
            hint='say where it was published, or "assumed: why this value"',
        )
    return Given(value, source.strip(), place)


def _is_line(text: object) -> TypeGuard[str]:
    return isinstance(text, str) and 0 < len(text.strip()) <= _LONGEST_TEXT and text.isprintable()


def check_range(key: str, number: Given) -> None:
    """Raise MachineError E3206 where a number is too small or too large for its kind."""
    quantity = SCHEMA[key]
    if not quantity.least <= number.value <= quantity.most:
        unit = f" {quantity.unit}" if quantity.unit else ""
        text = str(number.value) if abs(number.value) < 10**30 else "a number of over 30 digits"
        raise MachineError(
            "E3206",
            f"{key} is {quantity.least} to {quantity.most}{unit}, not {text}",
            key=key,
            place=number.place,
        )


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
