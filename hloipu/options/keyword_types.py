"""Write hloipu/options/keywords.py from the option table: `python -m hloipu.options.keyword_types`.

Editors and type checkers complete and check what that file declares, which a table that is read at
run time cannot tell them.
"""

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
from hloipu.options.table import OPTIONS, Option

OF_LOOPS = ("loop", "feed", "outfeed", "role")
"""Options that functions for JAX take in a form of their own."""

_HEAD = '''\
"""Options as typed keywords; `python -m hloipu.options.keyword_types` writes this file."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict

'''


def text() -> str:
    """Return the file."""
    rows = [row for row in OPTIONS.values() if "compile" in row.about.commands]
    plain = "".join(map(_field, (row for row in rows if row.name not in OF_LOOPS)))
    loops = "".join(map(_field, (row for row in rows if row.name in OF_LOOPS)))
    return (
        f"{_HEAD}\n"
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


if __name__ == "__main__":
    Path(__file__).with_name("keywords.py").write_text(text(), encoding="utf-8")
