"""Parse, print, parse again: the same module, and the same to XLA."""

from collections.abc import Iterator
from typing import Any

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.hlo.print_options import CANONICAL, FULL, SHORT
from hloipu_compiler.hlo.printer import print_module
from hloipu_compiler.ir.graph import Module
from tests.support.xla_oracle import Oracle, OracleError

FORMS = {"full": FULL, "short": SHORT, "canonical": CANONICAL}
LOSSLESS = ("full",)


def content(module: Module) -> tuple[Any, ...]:
    """Return all that a module says, without places in the source text."""
    computations = tuple(
        (c.name, c.root, c.execution_thread, tuple(i._replace(start=-1, end=-1) for i in c.instructions))
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
            # XLA fills an elided constant with whatever number comes next.
            constants = "..." not in text
            before = _comparable(oracle.reprint(text, constants=constants), text)
            after = _comparable(oracle.reprint(print_module(module), constants=constants), text)
        except OracleError as error:
            yield f"XLA does not print: {error}"
        else:
            if before != after:
                yield f"XLA reads another module: {first_difference(before, after)}"


def _comparable(printed: str, text: str) -> str:
    """Return XLA's print without the header that XLA invents where the text has none."""
    return printed if "HloModule" in text else printed.partition("\n")[2]


def first_difference(before: str, after: str) -> str:
    """Return the first lines in which two texts differ."""
    for old, new in zip(before.splitlines(), after.splitlines(), strict=False):
        if old != new:
            return f"{old.strip()[:300]!r} became {new.strip()[:300]!r}"
    return "one text ends before the other"
