"""Machines: built-in ones load, and every way a file or an override can be wrong is named."""

import os
from importlib.resources import files
from pathlib import Path

import pytest

from hloipu_runtime.errors import MachineError
from hloipu_runtime.machine.load import MACHINE_NAMES, MOST_FILE_BYTES, load_machine
from hloipu_runtime.machine.schema import SCHEMA


def text_of(name: str) -> str:
    return (files("hloipu_runtime.machine") / "data" / f"{name}.toml").read_text(encoding="utf-8")


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def refused(tmp_path: Path, text: str) -> MachineError:
    with pytest.raises(MachineError) as caught:
        load_machine(written(tmp_path, text))
    return caught.value


def line_of(text: str, start: str) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if line.startswith(start))


@pytest.mark.parametrize("name", MACHINE_NAMES)
def test_built_in_machines_load_and_equal_a_copy_of_their_file(name: str, tmp_path: Path) -> None:
    machine = load_machine(name)
    assert machine.name == name
    assert [key for key, _ in machine.sources] == list(SCHEMA)
    path = tmp_path / f"{name}.toml"
    path.write_text(text_of(name), encoding="utf-8")
    assert load_machine(str(path)) == machine
    assert hash(load_machine(str(path))) == hash(machine)


def test_numbers_come_with_unit_and_source() -> None:
    machine = load_machine("gc200")
    number = next(n for n in machine.numbers() if n.key == "sync.sync_cycles")
    assert (number.value, number.unit, number.assumed) == (126, "cycles", False)
    assert machine.source_of("sync_cycles") == machine.source_of("sync.sync_cycles")
    assert machine.source_of("sync_cycles") == number.source
    assert machine.value_of("sync_cycles") == 126
    assert machine.rests_on_assumption("sync.sync_cycles", "exchange.setup_cycles")
    assert not machine.rests_on_assumption("sync.sync_cycles")


def test_an_unknown_source_is_refused_with_the_nearest_key() -> None:
    with pytest.raises(MachineError, match="no number 'sync_cycle'") as caught:
        load_machine("gc200").source_of("sync_cycle")
    assert (caught.value.code, caught.value.hint) == ("E3203", "did you mean sync_cycles?")


def test_units_are_in_the_keys() -> None:
    for key, quantity in SCHEMA.items():
        name = key.partition(".")[2]
        assert quantity.suffix in name, key
        if not quantity.unit:
            assert not name.endswith(("bytes", "cycles", "slots", "_second", "nanoseconds")), key


def test_last_parts_of_keys_are_unique_so_that_they_can_stand_alone() -> None:
    short = [key.partition(".")[2] for key in SCHEMA]
    assert len(set(short)) == len(short)


def test_overrides_by_short_and_by_dotted_key() -> None:
    machine = load_machine("gc200", {"tiles_per_ipu": "64", "sync.sync_cycles": " 1_0 "})
    assert (machine.chip.tiles_per_ipu, machine.sync.sync_cycles) == (64, 10)
    assert machine.source_of("tiles_per_ipu") == "assumed: set to 64 by the user"
    assert machine.rests_on_assumption("sync.sync_cycles")
    assert load_machine("gc200").chip.tiles_per_ipu == 1472


@pytest.mark.parametrize(
    ("overrides", "code", "message", "hint"),
    [
        ({"tiles_per_ipus": "64"}, "E3203", "--set: a machine has no number 'tiles_per_ipus'",
         "did you mean tiles_per_ipu?"),
        ({"x\x1b[31m" * 40: "1"}, "E3203", "\\x1b[31m", "shows every key"),
        ({"tiles_per_ipu": "many"}, "E3205", "chip.tiles_per_ipu is an integer, not 'many'",
         "--set tiles_per_ipu=64"),
        ({"tiles_per_ipu": "6.5"}, "E3205", "is an integer, not '6.5'", ""),
        ({"tiles_per_ipu": "9" * 5000}, "E3205", "is an integer", ""),
        ({"tiles_per_ipu": "٣"}, "E3205", "is an integer", ""),
        ({"tiles_per_ipu": "0"}, "E3206", "chip.tiles_per_ipu is 1 to 1000000, not 0", ""),
        ({"sync_cycles": "-1"}, "E3206", "sync.sync_cycles is 0 to 1000000000 cycles, not -1", ""),
        ({"bytes_per_tile": "65536"}, "E3208",
         "--set: memory.executable_bytes = 212992 does not go with memory.bytes_per_tile = 65536",
         "set both"),
        ({"sync_cycles": "1", "sync.sync_cycles": "2"}, "E3209", "sync.sync_cycles is set twice",
         ""),
    ],
)  # fmt: skip
def test_wrong_overrides(overrides: dict[str, str], code: str, message: str, hint: str) -> None:
    with pytest.raises(MachineError) as caught:
        load_machine("gc200", overrides)
    assert caught.value.code == code
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert len(str(caught.value)) < 600
    assert caught.value.exit_code == 2


def test_a_machine_that_does_not_exist() -> None:
    with pytest.raises(MachineError, match="no machine 'gc20'") as caught:
        load_machine("gc20")
    assert (caught.value.code, caught.value.hint) == ("E3201", "did you mean gc200?")


@pytest.mark.parametrize("key", SCHEMA)
def test_every_key_must_be_there(key: str, tmp_path: Path) -> None:
    text = text_of("unit")
    section, name = key.split(".")
    kept = [line for line in text.splitlines() if not line.startswith(f"{name} = ")]
    error = refused(tmp_path, "\n".join(kept))
    assert (error.code, error.key) == ("E3204", key)
    assert error.message.startswith(f"{tmp_path}/mine.toml:{line_of(text, f'[{section}]')}: ")


@pytest.mark.parametrize(
    ("entry", "code", "message"),
    [
        ("126", "E3205", "is not of the form"),
        ('{ source = "assumed" }', "E3205", "is not of the form"),
        ("{ value = 126 }", "E3207", "has no source"),
        ('{ value = 126, source = "  " }', "E3207", "has no source"),
        ('{ value = 126, source = "a\\u001b[31m" }', "E3207", "has no source"),
        ('{ value = 1.5, source = "assumed" }', "E3205", "is an integer, not '1.5'"),
        ('{ value = true, source = "assumed" }', "E3205", "is an integer, not 'True'"),
        ('{ value = "1", source = "assumed" }', "E3205", "is an integer, not '1'"),
        ('{ value = -1, source = "assumed" }', "E3206", "is 0 to 1000000000 cycles, not -1"),
        ('{ value = 1, sauce = "assumed" }', "E3203", "has a value and a source, no 'sauce'"),
    ],
)
def test_wrong_entries_are_shown_at_their_line(
    entry: str, code: str, message: str, tmp_path: Path
) -> None:
    text = text_of("unit")
    line = line_of(text, "sync_cycles")
    lines = text.splitlines()
    lines[line - 1] = f"sync_cycles = {entry}"
    error = refused(tmp_path, "\n".join(lines))
    assert (error.code, error.key) == (code, "sync.sync_cycles")
    assert error.message.startswith(f"{tmp_path}/mine.toml:{line}: sync.sync_cycles {message}")


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("[sync]\nsink_cycles = 1", "E3203", "no number 'sync.sink_cycles'"),
        ("[synch]\n", "E3203", "no section 'synch'"),
        ("sync = 1", "E3205", "sync is a table"),
    ],
)
def test_unknown_keys_and_sections(text: str, code: str, message: str, tmp_path: Path) -> None:
    error = refused(tmp_path, f'description = "mine"\n{text}')
    assert error.code == code
    assert message in error.message


@pytest.mark.parametrize(
    "text",
    [
        "[chip",
        "a = " + "[" * 100_000,
        "a = " + "9" * 10_000,
        "\x00",
        "# " + "x" * MOST_FILE_BYTES,
    ],
    ids=["unclosed", "deep", "digits", "nul", "long"],
)
def test_what_is_not_toml(text: str, tmp_path: Path) -> None:
    assert refused(tmp_path, text).code == "E3202"


def test_files_that_are_not_text(tmp_path: Path) -> None:
    path = tmp_path / "latin.toml"
    path.write_bytes(b'description = "\xff"')
    with pytest.raises(MachineError) as caught:
        load_machine(str(path))
    assert caught.value.code == "E3202"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    for path in (tmp_path, tmp_path / "pipe.toml", tmp_path / "missing.toml", "a/\0.toml"):
        with pytest.raises(MachineError) as caught:
            load_machine(f"{path}")
        assert caught.value.code in ("E3201",), path
