"""The table, the record of values, the click options and the page agree."""

import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import click
import pytest

from hloipu.cli.options import Asked, TableOption, option_group
from hloipu.options.ipu_keys import KEYS
from hloipu.options.poplar_keys import ENGINE, POPLAR_FLAGS
from hloipu.options.table import COMMANDS, OPTIONS, Options
from hloipu_runtime.errors import UsageError
from tools.make_options import document, names_document

PAGE = Path(__file__).resolve().parents[3] / "docs" / "options.md"


def click_options(command: str) -> dict[str, TableOption]:
    @click.command(command)
    @option_group(command)
    def made(asked: Asked) -> None:
        pass

    return {x.row.name: x for x in made.params if isinstance(x, TableOption)}


def test_rows_are_the_fields_of_the_record() -> None:
    assert list(OPTIONS) == [field.name for field in fields(Options)]


@pytest.mark.parametrize("name", OPTIONS)
def test_a_default_is_of_its_kind(name: str) -> None:
    option = OPTIONS[name]
    if option.default is not None:
        assert option.kind.check(option.default) == option.default
    assert getattr(Options(), name) == option.default


@pytest.mark.parametrize("name", OPTIONS)
def test_a_help_is_one_sentence(name: str) -> None:
    about = OPTIONS[name].about
    assert re.fullmatch(r"[A-Z][^.]*\.", about.help)
    assert about.commands
    assert set(about.commands) <= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_takes_the_options_that_the_table_gives_it(command: str) -> None:
    made = click_options(command)
    assert list(made) == [x.name for x in OPTIONS.values() if command in x.about.commands]
    for name, option in made.items():
        assert option.opts == [f"--{name.replace('_', '-')}"]
        assert OPTIONS[name].about.help in str(option.help)


def page_rows(text: str) -> Iterator[str]:
    table = text.split("## Graphcore")[0]
    yield from re.findall(r"^\| `(\w+)` \| `", table, re.MULTILINE)


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == document()


def test_the_page_lists_every_option_once() -> None:
    assert list(page_rows(document())) == list(OPTIONS)


def test_the_page_says_what_every_key_of_ipu_config_is() -> None:
    assert PAGE.with_name("poplar-names.md").read_text(encoding="utf-8") == names_document()
    sections = names_document().split("\n## ")
    for keys, section in zip((KEYS, POPLAR_FLAGS, ENGINE), sections[1:], strict=False):
        mapped, idle = section.split("Without effect:")
        for name, key in keys.items():
            assert (f"| `{name}` |" in mapped) == bool(key.option), name
            assert (f"`{name}`" in idle) == (not key.option), name


def test_values_are_checked_where_they_are_assigned() -> None:
    with pytest.raises(UsageError, match=r"ipus is an integer from 1 to 65536, not '4'") as caught:
        Options(ipus="4")  # type: ignore[arg-type]
    assert caught.value.code == "E3011"
    with pytest.raises(UsageError, match=r"mode is one of functional, exact, estimate, not 'fast'"):
        replace(Options(), mode="fast")
    with pytest.raises(UsageError, match=r"target is .*, not None"):
        Options(target=None)  # type: ignore[arg-type]


def test_lists_become_tuples() -> None:
    options = Options(plugin=["a.py"], set={"tiles_per_ipu": 4})  # type: ignore[arg-type]
    assert options.plugin == ("a.py",)
    assert options.set == (("tiles_per_ipu", "4"),)
    assert hash(options) == hash(replace(options))
