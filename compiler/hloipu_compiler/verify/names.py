"""Names: unique within a computation, and computations unique within the module."""

from collections.abc import Iterator
from typing import Protocol, TypeVar

from hloipu_compiler.errors import Note
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.source import Span
from hloipu_compiler.verify.places import computation_span, name_span
from hloipu_compiler.verify.report import Report


class Named(Protocol):
    """Anything with a name."""

    @property
    def name(self) -> str:
        """The name."""


T = TypeVar("T", bound=Named)


def check_names(module: Module, report: Report) -> None:
    """Report every repeated name.

    XLA renames the repeats of an instruction's name in other computations while reading, so its
    rule (unique in the whole module) never meets them; nor does ours.
    """
    if len({c.name for c in module.computations}) != len(module.computations):
        for first, again in _repeats(module.computations):
            _report(
                report,
                f"the computation {again.name} is defined twice",
                computation_span(module, again),
                computation_span(module, first),
            )
    for computation in module.computations:
        instructions = computation.instructions
        if len({x.name for x in instructions}) == len(instructions):
            continue
        for earlier, later in _repeats(instructions):
            _report(
                report,
                f"the instruction {later.name} is defined twice in {computation.name}",
                name_span(module, later),
                name_span(module, earlier),
            )


def _repeats(items: tuple[T, ...]) -> Iterator[tuple[T, T]]:
    first: dict[str, T] = {}
    for item in items:
        known = first.setdefault(item.name, item)
        if known is not item:
            yield known, item


def _report(report: Report, message: str, at: Span | None, before: Span | None) -> None:
    notes = [Note(before, "first defined here")] if before else []
    report.add("E0302", message, at, expected="a new name", notes=notes)
