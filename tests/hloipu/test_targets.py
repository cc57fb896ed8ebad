"""`hloipu targets`: the list, one machine, overrides, JSON, and errors with their exit codes."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hloipu.cli.application import application
from hloipu_runtime.errors import MachineError
from hloipu_runtime.machine.load import MACHINE_NAMES, load_machine
from hloipu_runtime.machine.schema import SCHEMA


def targets(*arguments: str) -> Result:
    return CliRunner().invoke(application, ["targets", *arguments])


def output(*arguments: str) -> str:
    result = targets(*arguments)
    assert result.exception is None, result.exception
    return result.stdout


def refusal(*arguments: str) -> MachineError:
    error = targets(*arguments).exception
    assert isinstance(error, MachineError)
    assert error.exit_code == 2
    return error


def test_the_list() -> None:
    head, *rows = output().splitlines()
    assert head.split()[:3] == ["machine", "tiles", "tile"]
    assert tuple(row.split()[0] for row in rows) == MACHINE_NAMES
    assert "1472" in rows[1]
    assert "624 KiB" in rows[1]
    assert "1.33 GHz" in rows[1]


def test_the_list_as_json() -> None:
    record = json.loads(output("--json"))
    assert record["schema"] == "hloipu.targets/1"
    gc200 = record["machines"][1]
    assert (gc200["name"], gc200["bytes_per_tile"]) == ("gc200", 638_976)
    assert gc200["numbers"] == len(SCHEMA)


def test_one_machine_shows_every_number_with_unit_and_source() -> None:
    text = output("gc200")
    lines = [line.split(maxsplit=3) for line in text.splitlines()]
    assert ["sync_cycles", "126", "cycles"] in [line[:3] for line in lines]
    for key in SCHEMA:
        name = key.partition(".")[2]
        assert sum(line[:1] == [name] for line in lines) == 1, key
    assert text.splitlines()[-1].endswith(f"of {len(SCHEMA)} numbers are assumed")


def test_one_machine_as_json_with_overrides() -> None:
    record = json.loads(output("gc200", "--set", "tiles_per_ipu=64", "--json"))
    assert record["schema"] == "hloipu.target/1"
    assert [number["key"] for number in record["numbers"]] == list(SCHEMA)
    assert record["numbers"][0] == {
        "key": "chip.tiles_per_ipu",
        "value": 64,
        "unit": "",
        "source": "assumed: set to 64 by the user",
        "assumed": True,
    }


@pytest.mark.parametrize("name", MACHINE_NAMES)
def test_the_file_of_a_machine_is_one_to_start_from(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.toml"
    path.write_text(output(name, "--toml"), encoding="utf-8")
    assert load_machine(str(path)) == load_machine(name)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("gc201",), "E3201", "there is no machine 'gc201'"),
        (("nowhere/mine.toml",), "E3201", "No such file"),
        (("gc200", "--set", "tiles_per_ipus=64"), "E3203", "no number 'tiles_per_ipus'"),
        (("gc200", "--set", "tiles_per_ipu"), "E3209", "takes KEY=VALUE"),
        (("gc200", "--set", "=64"), "E3209", "takes KEY=VALUE"),
        (("gc200", "--set", "sync_cycles=1", "--set", "sync_cycles=2"), "E3209", "set twice"),
        (("--set", "tiles_per_ipu=64"), "E3209", "without a machine"),
        (("gc200", "--toml", "--json"), "E3209", "as it is"),
        (("mine.toml", "--toml"), "E3209", "one built-in machine"),
        (("gc200", "--set", "tiles_per_ipu=0"), "E3206", "1 to 1000000, not 0"),
    ],
)
def test_refusals(arguments: tuple[str, ...], code: str, message: str) -> None:
    error = refusal(*arguments)
    assert error.code == code
    assert message in error.message
