"""Write what follows from the option table: `python -m tools.make_options`, then `ruff format`.

That is docs/options.md, docs/poplar-names.md from the tables of Graphcore's names, and
hloipu/options/keywords.py: editors and type checkers complete and check what that file declares,
which a table that is read at run time cannot tell them.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from textwrap import fill

from hloipu.options.composite_kinds import (
    DeviceMap,
    DimensionAxes,
    Files,
    FilesByName,
    Integers,
    MeshAxes,
    Names,
    Number,
    Pairs,
)
from hloipu.options.ipu_keys import KEYS, Key
from hloipu.options.kinds import (
    Choice,
    CountOrWord,
    Flag,
    Integer,
    Kind,
    Location,
    Proportion,
    Seconds,
    Size,
)
from hloipu.options.poplar_keys import ARGUMENTS, DICTIONARIES, POPLAR_FLAGS
from hloipu.options.resolve import UNREAD
from hloipu.options.table import COMMANDS, OPTIONS, Option

ROOT = Path(__file__).resolve().parents[1]
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


OF_LOOPS = ("loop", "feed", "outfeed", "role")
"""Options that functions for JAX take in a form of their own."""

_KEYWORDS_HEAD = '''\
"""Options as typed keywords; `python -m tools.make_options` writes this file."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict

'''


def keywords() -> str:
    """Return the text of hloipu/options/keywords.py."""
    rows = [row for row in OPTIONS.values() if "compile" in row.about.commands]
    plain = "".join(map(_field, (row for row in rows if row.name not in OF_LOOPS)))
    loops = "".join(map(_field, (row for row in rows if row.name in OF_LOOPS)))
    return (
        f"{_KEYWORDS_HEAD}\n"
        "class PlainOptions(TypedDict, total=False):\n"
        '    """Options of `hloipu.compile` but for those of loops on the device."""\n\n'
        f"{plain}\n\n"
        "class CompileOptions(PlainOptions, total=False):\n"
        f'    """Options of `hloipu.compile`; docs/options.md has them all."""\n\n{loops}'
    )


def _field(row: Option) -> str:
    kind = annotation(row.about.kind)
    field_type = f"{kind} | None" if row.default is None else kind
    line = f"    {row.name}: {field_type}\n"
    if len(line) > 100:
        line = f"    {row.name}: (\n        {field_type}\n    )\n"
    help_lines = fill(f'"""{row.about.help}"""', 96).replace("\n", "\n    ")
    return f"{line}    {help_lines}\n"


def annotation(kind: Kind) -> str:
    """Return the type of the Python values that a kind of option takes."""
    match kind:
        case Choice(words):
            return f"Literal[{', '.join(_quoted(word) for word in words)}]"
        case CountOrWord():
            return f"int | Literal[{_quoted(kind.word)}]"
        case Integer():
            return "int"
        case Proportion() | Seconds():
            return "float"
        case Flag():
            return "bool"
        case Size() | Number():
            return "int | str"
        case DeviceMap():
            return "str | Sequence[int | Sequence[int]]"
        case MeshAxes():
            return "str | Mapping[str, int]"
        case DimensionAxes():
            return "Any"  # jax.sharding.PartitionSpec, or tuples that look like it
        case Integers():
            return "int | Sequence[int]"
        case FilesByName():
            return "Mapping[str, Any]"
        case Pairs():
            # A dictionary of words has the type of texts unless its user declares it.
            value = "str" if isinstance(kind.value, Choice) else annotation(kind.value)
            return f"Mapping[str, {value}] | Sequence[str | tuple[str, {value}]]"
        case Files():
            return "Sequence[str | PathLike[str]]"
        case Names():
            return "Sequence[str]"
        case Location():
            return "str | PathLike[str]"
        case _:
            return "str"


def _quoted(word: str) -> str:
    return f'"{word}"'


def main() -> None:
    """Write the pages and the keywords."""
    docs = ROOT / "docs"
    docs.joinpath("options.md").write_text(document(), encoding="utf-8")
    docs.joinpath("poplar-names.md").write_text(names_document(), encoding="utf-8")
    ROOT.joinpath("hloipu/options/keywords.py").write_text(keywords(), encoding="utf-8")


if __name__ == "__main__":
    main()
