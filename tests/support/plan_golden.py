"""Tables of plans: one op a case, and under it what the planner chose, the next best, and its cost.

A line that begins with `$` gives options for the cases below it. A case is a row as those of
`texts_rows`, or `NAME.hlo`: a module of several ops among the programs, whose cost alone is shown.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from hloipu_runtime.compiled import CompiledProgram
from tests.support.program_golden import COMMAND, compiled_as_asked
from tests.support.texts_rows import row

PROGRAMS = Path(__file__).parents[1] / "goldens" / "programs"


class Case(NamedTuple):
    """An op of a table."""

    options: str
    op: str
    lines: tuple[str, ...]
    """What the table holds under it."""


def cases_of(table: str) -> list[Case]:
    """Return the cases of a table, in order."""
    cases: list[Case] = []
    options = ""
    for line in table.splitlines():
        if line.startswith(COMMAND):
            options = line.removeprefix(COMMAND)
        elif line.startswith(" "):
            cases[-1] = cases[-1]._replace(lines=(*cases[-1].lines, line))
        else:
            cases.append(Case(options, line, ()))
    return cases


def with_lines(table: str, number: int, lines: Sequence[str]) -> str:
    """Return a table with other lines under one of its cases."""
    rows: list[str] = []
    before = -1
    for line in table.splitlines():
        before += not line.startswith((COMMAND, " "))
        if before != number or not line.startswith(" "):
            rows.append(line)
        if before == number and not line.startswith((COMMAND, " ")):
            rows += lines
    return "\n".join(rows) + "\n"


def lines_of(case: Case) -> tuple[str, ...]:
    """Return what a table should hold under a case."""
    return tuple(_results(case.op, case.options))


def _results(op: str, options: str) -> Iterator[str]:
    plans, program = compiled_as_asked(_module(op), options)
    if not op.endswith(".hlo"):
        yield from _plan_rows(plans)
    yield from _cost_rows(program)


def _plan_rows(plans: str) -> Iterator[str]:
    """Yield what was chosen for each op and the next best, and where values lie."""
    planned, _, placed = plans.strip().partition("values placed for their users\n")
    for record in planned.strip().split("\n\n"):
        rows = record.split("\n")[1:5]
        for words, price in zip(rows[::2], rows[1::2], strict=True):
            yield f"{words}; {price.strip()}"
    yield from placed.splitlines()


def _cost_rows(program: CompiledProgram) -> Iterator[str]:
    """Yield the cycles of the program but for the host's, and the bytes of the fullest tile."""
    steps: Counter[str] = Counter()
    cycles: Counter[str] = Counter()
    for step in program.profile().steps:
        name = step.codelet or step.kind
        steps[name] += step.executions
        cycles[name] += step.cycles
    of_device = [name for name in steps if not name.startswith(("stream", "sync"))]
    parts = (f"{steps[x]} {x} {cycles[x]:,}" for x in of_device)
    yield f"  steps and cycles: {', '.join(parts)}"
    peak, code = program.memory.peak, program.memory.code_bytes
    yield f"  bytes: {peak.total_bytes:,} on tile {peak.tile}, code {code:,}"
    for use in program.memory.ipus:
        if use.remote_bytes:
            parts = (f"{name.value} {size:,}" for name, size in use.remote.items() if size)
            yield f"  remote bytes beside IPU {use.ipu}: {', '.join(parts)}"


def _module(op: str) -> str:
    return (PROGRAMS / op).read_text() if op.endswith(".hlo") else row(op).text()
