"""Write docs/options.md from the option table: `python -m hloipu.options.document FILE`.

docs/poplar-names.md is written beside it, from the tables of Graphcore's names.
"""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from textwrap import fill

from hloipu.options.flags import UNREAD
from hloipu.options.ipu_keys import KEYS, Key
from hloipu.options.poplar_keys import ARGUMENTS, DICTIONARIES, POPLAR_FLAGS
from hloipu.options.table import COMMANDS, OPTIONS, Option

_HEAD = """\
# Options

Every option of hloipu with its values and default, and the places where you can set it.

One table serves the command line (`--over-memory allow`), Python's keywords
(`hloipu.compile("m.hlo", over_memory="allow")`), `hloipu.toml`, the environment variable
`HLOIPU_FLAGS`, and a module's own `ipu_*` attributes. Where several say something, the first of
these wins:

1. the command line, or a keyword;
2. `HLOIPU_FLAGS="--target=bow --set=tiles_per_ipu=64 --no-cache"`: words as on the command line,
   with `=` before each value;
3. `TF_POPLAR_FLAGS` and `POPLAR_ENGINE_OPTIONS`, as far as they mean something here: what Graphcore
   calls options is in [poplar-names.md](poplar-names.md);
4. `hloipu.toml` in the current folder or the nearest folder above it, or the file that
   `--config FILE` names; relative paths in it are taken from its folder;
5. `frontend_attributes={ipu_target="bow"}` of the module, for the options marked *module* below;
   a module can name no file, and parts what it gives several times by `;`;
6. the default.

`set` is put together key by key from all of them. `--print-config` prints each value and where it
came from (`--json`: as `hloipu.config/1`). An unknown name, a value of the wrong type, an option
said twice in one place or one that its place may not state is an error (exit 2) with file and line.

    # hloipu.toml
    target = "bow"
    cache_size_bytes = "4GiB"

    [set]
    tiles_per_ipu = 64

    [ipu_config]
    ipu_model.compile_ipu_code = false

[waiting.md](waiting.md) tells how shells complete options, and what ends a search early.
"""

_NAMES = """\
# Poplar's names

What the options of Graphcore's IPUConfig, of Poplar's engine and libraries, and the environment
variables of its stack mean to hloipu, and what to say here for those that mean nothing.

A configuration written for IPUs can be used as it is:

* keys of IPUConfig stand in the table `[ipu_config]` of `hloipu.toml`, those of an engine under
  `compilation_poplar_options` (`{"debug.allowOutOfMemory" = "true"}`);
* `TF_POPLAR_FLAGS="--executable_cache_path=/tmp/cache --use_ipu_model"` and
  `POPLAR_ENGINE_OPTIONS='{"debug.allowOutOfMemory": "true"}'` are read, and go before
  `hloipu.toml`;
* `HLOIPU_FLAGS` takes all these names as words, `--ipu_model.tiles_per_ipu=64`, and goes before
  both.

What has a meaning here sets the option. What has none is accepted with a warning that tells what
serves instead, unless it asks for what is so anyway; from Python the warning is a
`hloipu.OptionWarning`. A key that IPUConfig does not have is refused, with the nearest one; an
option of an engine or a library that is not in the tables below is warned of, since each release
has others. On the command line and among keywords these names are refused, and the error says what
they are here. [placement.md](placement.md#places-in-a-system) explains ids of devices.
"""

_EQUAL = {
    "allow_recompute": "`auto` or `none`",
    "auto_select_ipus": "of several devices a program takes the first",
    "select_ipus": "of several devices a program takes the first",
    "device_connection.version": "`ipu1` is `gc2`, `ipu2` is `gc200`",
    "ipu_model.tiles_per_ipu": "`tiles_per_ipu`; 0 is the machine's own",
    "ipu_model_tiles": "`tiles_per_ipu`; 0 is the machine's own",
    "ipu_model.version": "`ipu1` is `gc2`, `ipu2` is `gc200`",
    "optimizations.enable_graph_outlining": "`auto` or `off`",
    "partialsType": "`half` is `f16`, `float` `f32`",
    "debug.allowOutOfMemory": "`allow` or `refuse`",
    "target.workerStackSizeInBytes": "`stack_bytes`: those of six workers and a supervisor",
}
"""What goes with a key's option, where it is not the same value."""


def document() -> str:
    """Return the page of options."""
    return f"{_HEAD}\n## Available\n\n{_table(OPTIONS.values())}"


def names_document() -> str:
    """Return the page of Poplar's names."""
    libraries = list(dict.fromkeys(map(id, DICTIONARIES.values())))
    titles = [
        " and ".join(name for name, table in DICTIONARIES.items() if id(table) == library)
        for library in libraries
    ]
    tables = [
        ("IPUConfig", KEYS),
        ("Words of TF_POPLAR_FLAGS", POPLAR_FLAGS),
        *((title, DICTIONARIES[title.partition(" ")[0]]) for title in titles),
    ]
    parts = [_NAMES, *(_names_table(title, table) for title, table in tables)]
    arguments = ", ".join(f"`{name}` is `{option}`" for name, option in ARGUMENTS.items())
    parts.append(f"\n## Arguments of Graphcore's functions\n\n{_filled(f'{arguments}.')}\n")
    unread = "".join(f"| `{name}` | {instead} |\n" for name, instead in UNREAD.items())
    parts.append(f"\n## Variables that are not read\n\n| variable | instead |\n|---|---|\n{unread}")
    return "".join(parts)


def _names_table(title: str, keys: Mapping[str, Key]) -> str:
    head = f"\n## {title}\n\n"
    rows = "".join(
        f"| `{name}` | `{key.option}`{_EQUAL.get(name, '') and ': ' + _EQUAL[name]} |\n"
        for name, key in keys.items()
        if key.option
    )
    idle: dict[str, list[str]] = {}
    for name, key in keys.items():
        if not key.option:
            idle.setdefault(key.instead, []).append(f"`{name}`")
    lines = [
        f"{', '.join(sorted(names))}: {instead}." if instead else f"{', '.join(sorted(names))}."
        for instead, names in idle.items()
    ]
    texts = [_filled(f"* {line}", "  ") for line in lines]
    table = f"| key | option |\n|---|---|\n{rows}\n" if rows else ""
    return head + table + "Without effect:\n\n" + "\n".join(texts) + "\n"


def _filled(text: str, indent: str = "") -> str:
    return fill(text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _table(rows: Iterable[Option]) -> str:
    head = "| option | value | default | commands | what it is |\n|---|---|---|---|---|\n"
    return head + "".join(map(_row, rows))


def _row(row: Option) -> str:
    about, kind = row.about, row.kind
    default = "" if row.default in (None, ()) else f"`{kind.write(row.default)}`"
    commands = "all" if about.commands == COMMANDS else ", ".join(about.commands)
    marks = (" *module*" if about.in_module else "") + ("" if about.in_file else " *not in a file*")
    metavar = kind.metavar.replace("|", r"\|")
    return f"| `{row.name}` | `{metavar}` | {default} | {commands} | {about.help}{marks} |\n"


def main() -> None:
    """Write the page of options to the file that is named, that of Poplar's names beside it."""
    page = Path(sys.argv[1])
    page.write_text(document(), encoding="utf-8")
    page.with_name("poplar-names.md").write_text(names_document(), encoding="utf-8")


if __name__ == "__main__":
    main()
