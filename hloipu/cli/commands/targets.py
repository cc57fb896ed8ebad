"""`hloipu targets [NAME]`: the machines, and the numbers of one with their sources."""

import json

import click

from hloipu.cli.saying import say
from hloipu.cli.table import readable_bytes, table
from hloipu_runtime.errors import MachineError
from hloipu_runtime.machine.devices import ORDERS, devices_of, in_order
from hloipu_runtime.machine.load import MACHINE_NAMES, load_machine, machine_file
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.machine.schema import shown


@click.command("targets")
@click.argument("name", required=False)
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a number; repeatable."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--toml", "as_toml", is_flag=True, help="Print the file of NAME, to start one of your own from."
)
def command(name: str | None, settings: tuple[str, ...], as_json: bool, as_toml: bool) -> None:
    """Show every number of the machine NAME with its unit and source; without NAME, list them.

    NAME is a built-in machine or the path of a .toml file of the same form.
    """
    if as_toml:
        if name not in MACHINE_NAMES or settings or as_json:
            raise MachineError(
                "E3209",
                "--toml prints the file of one built-in machine, as it is",
                hint="hloipu targets gc200 --toml > mine.toml",
            )
        click.echo(machine_file(name), nl=False)
        return
    if name is None:
        if settings:
            raise MachineError(
                "E3209", "--set without a machine", hint="hloipu targets gc200 --set …"
            )
        machines = [load_machine(known) for known in MACHINE_NAMES]
        say(_dumped(list_record(machines)) if as_json else list_text(machines))
        return
    machine = load_machine(name, split_settings(settings))
    say(_dumped(machine_record(machine)) if as_json else machine_text(machine))


def split_settings(settings: tuple[str, ...]) -> dict[str, str]:
    """Return `KEY=VALUE` texts as a dictionary; raises MachineError E3209 for any other form."""
    value_by_key: dict[str, str] = {}
    for setting in settings:
        key, mark, value = setting.partition("=")
        if not mark or not key.strip() or not value.strip():
            raise MachineError(
                "E3209",
                f"--set takes KEY=VALUE, not {shown(setting)}",
                hint="for example --set tiles_per_ipu=64",
            )
        if key.strip() in value_by_key:
            raise MachineError("E3209", f"{shown(key.strip())} is set twice", place="--set")
        value_by_key[key.strip()] = value
    return value_by_key


def list_text(machines: list[Machine]) -> str:
    """Return the list of machines as a table."""
    rows = [
        (
            machine.name,
            str(machine.chip.tiles_per_ipu),
            readable_bytes(machine.memory.bytes_per_tile),
            f"{machine.chip.clock_hz / 1e9:g} GHz",
            str(machine.links.max_ipus),
            f"{len(machine.assumed)} of {len(machine.sources)}",
            machine.description,
        )
        for machine in machines
    ]
    head = ("machine", "tiles", "tile memory", "clock", "IPUs", "assumed", "what it is")
    return table(head, rows, left=7)


def machine_text(machine: Machine) -> str:
    """Return one machine: its numbers by section, each with unit and source."""
    parts = [f"{machine.name}: {machine.description}"]
    numbers = list(machine.numbers())
    for section in dict.fromkeys(number.key.partition(".")[0] for number in numbers):
        rows = [
            (number.key.partition(".")[2], str(number.value), number.unit, number.source)
            for number in numbers
            if number.key.startswith(f"{section}.")
        ]
        parts.append(table((f"[{section}]", "value", "unit", "source"), rows, left=4))
    parts.append(_devices_text(machine))
    parts.append(f"{len(machine.assumed)} of {len(numbers)} numbers are assumed")
    return "\n\n".join(parts)


def _devices_text(machine: Machine) -> str:
    """Return the ids of devices of several IPUs, and their IPUs in each order."""
    rows = []
    for device in devices_of(machine):
        orders = [
            ",".join(str(device.ipus[n]) for n in in_order(order, len(device.ipus)))
            for order in ORDERS
        ]
        if len(device.ipus) > 1:
            rows.append((str(device.id), str(len(device.ipus)), *orders))
    return table(("[devices]", "IPUs", *ORDERS), rows, left=5)


def list_record(machines: list[Machine]) -> dict[str, object]:
    """Return the list of machines as JSON data."""
    return {
        "schema": "hloipu.targets/1",
        "machines": [
            {
                "name": machine.name,
                "description": machine.description,
                "tiles_per_ipu": machine.chip.tiles_per_ipu,
                "bytes_per_tile": machine.memory.bytes_per_tile,
                "clock_hz": machine.chip.clock_hz,
                "max_ipus": machine.links.max_ipus,
                "numbers": len(machine.sources),
                "assumed": len(machine.assumed),
            }
            for machine in machines
        ],
    }


def machine_record(machine: Machine) -> dict[str, object]:
    """Return one machine as JSON data."""
    return {
        "schema": "hloipu.target/1",
        "name": machine.name,
        "description": machine.description,
        "numbers": [number._asdict() for number in machine.numbers()],
        "devices": [{"id": device.id, "ipus": list(device.ipus)} for device in devices_of(machine)],
    }


def _dumped(record: dict[str, object]) -> str:
    return json.dumps(record, ensure_ascii=False)
