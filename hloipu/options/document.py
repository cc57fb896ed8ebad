"""Write docs/options.md from the option table: `python -m hloipu.options.document FILE`."""

import sys
from collections.abc import Iterable
from pathlib import Path
from textwrap import fill

from hloipu.options.ipu_keys import DICTIONARIES, KEYS
from hloipu.options.table import COMMANDS, OPTIONS, Option

_HEAD = """\
# Options

Every option of hloipu with its values and default, and the five places where you can set it.

One table serves the command line (`--over-memory allow`), Python's keywords
(`hloipu.compile("m.hlo", over_memory="allow")`), `hloipu.toml`, the environment variable
`HLOIPU_FLAGS`, and a module's own `ipu_*` attributes. Where several say something, the first of
these wins:

1. the command line, or a keyword;
2. `HLOIPU_FLAGS="--target=bow --set=tiles_per_ipu=64 --no-cache"`: words as on the command line,
   with `=` before each value;
3. `hloipu.toml` in the current folder or the nearest folder above it, or the file that
   `--config FILE` names; relative paths in it are taken from its folder;
4. `frontend_attributes={ipu_target="bow"}` of the module, for the options marked *module* below;
   a module can name no file, and parts what it gives several times by `;`;
5. the default.

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

_IPU_CONFIG = """
## Graphcore's IPUConfig

Its keys are accepted in the table `[ipu_config]` of `hloipu.toml` and in `HLOIPU_FLAGS`
(`--ipu_model.tiles_per_ipu=64`). Those below mean an option of hloipu. The others are accepted with
a warning where they ask for something, since they have no effect here. Keys that IPUConfig does not
have are refused. `HLOIPU_FLAGS` takes the words of TF_POPLAR_FLAGS likewise:
`--executable_cache_path` is `cache_dir`, `--ipu_model_tiles` sets `tiles_per_ipu`.

| key | option |
|---|---|
"""

_EQUAL = {
    "allow_recompute": "`recompute`: `auto` or `none`",
    "auto_select_ipus": "`ipus`; a list of several devices is refused",
    "select_ipus": "`ipu_ids`",
    "selection_order": "`selection_order`",
    "device_connection.version": "`target`: `ipu1` is `gc2`, `ipu2` is `gc200`",
    "io_tiles.num_io_tiles": "`io_tiles`",
    "ipu_model.compile_ipu_code": "`code_memory`",
    "ipu_model.tiles_per_ipu": "`set`: `tiles_per_ipu`; 0 is the machine's own",
    "ipu_model.version": "`target`: `ipu1` is `gc2`, `ipu2` is `gc200`",
    "convolutions.poplar_options.availableMemoryProportion": "`available_memory_proportion`",
    "convolutions.poplar_options.partialsType": "`partials_type`: `half` is `f16`, `float` `f32`",
    "matmuls.poplar_options.availableMemoryProportion": "`available_memory_proportion`",
    "matmuls.poplar_options.partialsType": "`partials_type`: `half` is `f16`, `float` `f32`",
    "optimizations.enable_graph_outlining": "`outline`: `auto` or `off`",
}


def document() -> str:
    """Return the page."""
    rows = list(OPTIONS.values())
    keys = ", ".join(f"`{key}`" for key in _without_effect())
    idle = f"Without effect: {keys}."
    parts = [
        f"{_HEAD}\n## Available\n\n{_table(rows)}",
        _IPU_CONFIG + "".join(f"| `{key}` | {text} |\n" for key, text in _EQUAL.items()),
        f"\n{fill(idle, 100, break_long_words=False, break_on_hyphens=False)}\n",
    ]
    return "".join(parts)


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


def _without_effect() -> list[str]:
    idle = [name for name, key in KEYS.items() if key.meaning is None]
    return sorted([*idle, *(f"{name}.*" for name in DICTIONARIES)])


def main() -> None:
    """Write the page to the file that the command line names."""
    Path(sys.argv[1]).write_text(document(), encoding="utf-8")


if __name__ == "__main__":
    main()
