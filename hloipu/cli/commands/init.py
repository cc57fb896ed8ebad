"""`hloipu init`: an hloipu.toml with every option, its help and its default."""

import json
from collections.abc import Mapping
from pathlib import Path

import click

from hloipu.cli.options import Asked, GroupedCommand, option_group
from hloipu.cli.saying import say
from hloipu.options.composite_kinds import DeviceMap, Pairs
from hloipu.options.config_file import FILE_NAME
from hloipu.options.groups import GROUPS
from hloipu.options.table import OPTIONS, Option
from hloipu_runtime.atomic_file import replacing
from hloipu_runtime.errors import UsageError


@click.command("init", cls=GroupedCommand)
@click.argument("folder", type=click.Path(file_okay=False, exists=True), default=".")
@option_group("compile")
def command(folder: str, asked: Asked) -> None:
    """Write FOLDER/hloipu.toml: all options with their help, those given here set.

    Commands read the file in this folder and in folders below it. A file that is there stays.

    \b
      hloipu init --target bow --ipus 4
    """
    path = Path(folder) / FILE_NAME
    if path.exists() or path.is_symlink():
        raise UsageError(
            "E3213", f"{path} is there already", hint="edit it, or move it away and call again"
        )
    refused = [name for name in asked.given if not OPTIONS[name].about.in_file]
    if refused:
        raise UsageError(
            "E3014",
            f"a file may not state {refused[0]}, which runs code",
            hint=f"give {OPTIONS[refused[0]].flag} with each command",
        )
    with replacing(path) as stream:
        stream.write(text(asked.given).encode())
    say(f"wrote {path}", err=True)


def text(stated: Mapping[str, object]) -> str:
    """Return the file: options that are given set, others as comments with their defaults."""
    lines = ["# Options of hloipu; the command line and HLOIPU_FLAGS win over them.", ""]
    tables: list[str] = []
    for heading, names in GROUPS.items():
        lines += [f"## {heading}", ""]
        for name in names:
            row = OPTIONS[name]
            if not row.about.in_file:
                continue
            value = stated.get(name)
            if isinstance(row.kind, Pairs) and isinstance(value, tuple):
                pairs = [f"{_toml(key)} = {_toml(part)}" for key, part in value]
                tables += [f"# {row.about.help}", f"[{name}]", *pairs, ""]
            else:
                lines += [f"# {row.about.help}", _line(row, value), ""]
    return "\n".join([*lines, *tables])


def _line(row: Option, value: object) -> str:
    if value is not None:
        written = row.kind.write(value) if isinstance(row.kind, DeviceMap) else value
        return f"{row.name} = {_toml(written)}"
    if isinstance(row.kind, Pairs):
        return f"# {row.name}.{row.kind.key} = {row.kind.value.metavar}"
    if row.default is None or row.default == ():
        return f"# {row.name} = {row.kind.metavar}"
    return f"# {row.name} = {_toml(row.default)}"


def _toml(value: object) -> str:
    """Return a value in TOML, whose strings are JSON's."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=True)
