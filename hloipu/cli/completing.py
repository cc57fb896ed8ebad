"""Shell completion of option values."""

import os
from collections.abc import Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from hloipu.options.composite_kinds import Files, Pairs, Settings
from hloipu.options.kinds import Choice, CountOrWord, Location, Target
from hloipu.options.table import Option
from hloipu_runtime.errors import HloipuError

_MOST_BYTES = 1 << 20
"""Of a module that is read for its parameters' names: larger ones would keep the shell waiting."""


def offered(row: Option, context: click.Context, begun: str) -> list[CompletionItem]:
    """Return what may stand for the text that is begun."""
    if row.name == "passes":
        ahead, comma, last = begun.rpartition(",")
        return [CompletionItem(ahead + comma + name) for name in _passes() if name.startswith(last)]
    kind = row.kind
    items = [CompletionItem(word) for word in _words(row, context) if word.startswith(begun)]
    if isinstance(kind, Location | Files):
        items.append(CompletionItem(begun, type="file"))
    return items


def _words(row: Option, context: click.Context) -> Iterable[str]:
    match row.kind:
        case Choice(words):
            return words
        case CountOrWord():
            return (row.kind.word,)
        case Target():
            from hloipu_runtime.machine.load import MACHINE_NAMES

            return MACHINE_NAMES
        case Settings():
            return (f"{key}=" for key in _numbers(context))
        case Pairs("PARAMETER", Choice(words)):
            # An option without its value keeps click from telling words that are no options apart.
            files = (context.params.get("file"), *context.args)
            names = _parameters(next(filter(None, files), None))
            return (f"{name}={word}" for name in names for word in words)
        case _:
            return ()


def _passes() -> list[str]:
    from hloipu_compiler.passes.framework.registry import passes
    from hloipu_compiler.passes.pipelines import PIPELINES

    return sorted({*PIPELINES, *(one.name for one in passes())})


def _numbers(context: click.Context) -> list[str]:
    """Return the keys of the machine's numbers, without sections."""
    from hloipu_runtime.machine.load import load_machine

    try:
        machine = load_machine(context.params.get("option_target") or "gc200")
    except HloipuError:
        return []
    return sorted(number.key.rpartition(".")[2] for number in machine.numbers())


def _parameters(file: object) -> list[str]:
    """Return the names of a module's parameters, if it is at hand and small."""
    from hloipu_compiler.hlo.parse import parse
    from hloipu_compiler.plan.entry_arrays import parameter_arrays

    try:
        if not isinstance(file, str) or os.stat(file).st_size > _MOST_BYTES:
            return []
        module = parse(Path(file).read_text(encoding="utf-8"))
        return [array.name for array in parameter_arrays(module)]
    except (HloipuError, OSError, ValueError):
        return []
