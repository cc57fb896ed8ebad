"""Parse, print, parse again: the same module, and the same to XLA."""

import re
from collections.abc import Iterator
from typing import Any

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.hlo.printing.print_options import CANONICAL, FULL, SHORT
from hloipu_compiler.hlo.printing.printer import print_module
from hloipu_compiler.ir.graph import Module
from tests.support.xla_oracle import Oracle, OracleError

FORMS = {"full": FULL, "short": SHORT, "canonical": CANONICAL}
LOSSLESS = ("full",)
_VALUES = re.compile(r"constant\(\{.*?\}\)")


def content(module: Module) -> tuple[Any, ...]:
    """Return all that a module says, without places in the source text."""
    computations = tuple(
        (
            c.name,
            c.root,
            c.execution_thread,
            tuple(i._replace(start=-1, end=-1) for i in c.instructions),
        )
        for c in module.computations
    )
    return (
        module.name, module.entry_position, module.attributes, module.stack_tables, computations,
    )  # fmt: skip


def faults(text: str, module: Module, oracle: Oracle | None) -> Iterator[str]:
    """Yield what a module loses on its way through the printer; nothing when all is well."""
    for name, options in FORMS.items():
        printed = print_module(module, options)
        again = parse(printed)
        if name in LOSSLESS and content(again) != content(module):
            yield f"{name}: parsing the print gives another module"
        if print_module(again, options) != printed:
            yield f"{name}: printing again gives another text"
        if oracle is not None:
            verdict = oracle.parse(printed)
            if not verdict.accepted:
                yield f"{name}: XLA refuses the print: {' '.join(verdict.message.split())[:300]}"
    if oracle is not None:
        try:
            before = _comparable(oracle.reprint(text), text)
            after = _comparable(oracle.reprint(print_module(module)), text)
        except OracleError as error:
            yield f"XLA does not print: {error}"
        else:
            if before != after:
                yield f"XLA reads another module: {first_difference(before, after)}"


def _comparable(printed: str, text: str) -> str:
    """Return XLA's print without what XLA invents: a missing header, values of elided constants."""
    if "HloModule" not in text:
        printed = printed.partition("\n")[2]
    return _VALUES.sub("constant({...})", printed) if "..." in text else printed


def first_difference(before: str, after: str) -> str:
    """Return the first lines in which two texts differ."""
    for old, new in zip(before.splitlines(), after.splitlines(), strict=False):
        if old != new:
            return f"{old.strip()[:300]!r} became {new.strip()[:300]!r}"
    return "one text ends before the other"
