"""The tables of `docs/numerics*.md`, made from the budgets and the deviations.

python -m tools.conformance.document          # writes them between their markers
"""

import re
from collections.abc import Callable
from pathlib import Path

from hloipu_compiler.interpret.budgets import (
    FACTORS,
    ULPS_COMPLEX,
    ULPS_F32,
    ULPS_F64,
    ULPS_NARROW,
    budget_of,
)
from tools.conformance.deviations import Deviation, read
from tools.conformance.uncarried import UNCARRIED

_DOCS = Path(__file__).resolve().parents[2] / "docs"
DOCUMENTS = (_DOCS / "numerics.md", _DOCS / "numerics-deviations.md")


def elementwise_table() -> str:
    """Return ULP budgets, a row for each op that is not exact."""
    lines = ["| op | f64 | f32 | f16, bf16, f8, f4 | c64, c128 |", "|---|---|---|---|---|"]
    for name in sorted({*ULPS_F32, *ULPS_COMPLEX}):
        real = name in ULPS_F32
        cells = [ULPS_F64.get(name), ULPS_F32.get(name), ULPS_NARROW if real else None]
        shown = " | ".join("exact" if x is None else f"{x:g}" for x in cells)
        complex_budget = ULPS_COMPLEX.get(name)
        shown += f" | {complex_budget:g}" if complex_budget is not None else " | -"
        lines.append(f"| `{name}` | {shown} |")
    return "\n".join(lines)


def sums_table() -> str:
    """Return the factor c of each op that adds up."""
    lines = ["| op | c | f32, n = 1024 |", "|---|---|---|"]
    for name, factor in FACTORS.items():
        relative = budget_of(name, "f32", terms=1024).relative
        lines.append(f"| `{name}` | {factor:g} | {relative:.2g} * sum of absolute terms |")
    return "\n".join(lines)


def deviations_table() -> str:
    """Return the listed deviations with their proofs and reasons."""
    lines = ["| deviation | ops | types | proof | reason |", "|---|---|---|---|---|"]
    lines += [_deviation_row(entry) for entry in read()]
    return "\n".join(lines)


def _deviation_row(entry: Deviation) -> str:
    opcodes = ", ".join(f"`{x}`" for x in sorted(entry.opcodes)) or "any"
    types = ", ".join(sorted(entry.element_types)) or "any"
    return f"| {entry.name} | {opcodes} | {types} | `{entry.explained_by}` | {entry.reason} |"


def uncarried_table() -> str:
    """Return what XLA:CPU cannot judge, and what judges it instead."""
    lines = ["| op | types | why | judged by |", "|---|---|---|---|"]
    lines += [f"| {x.opcodes} | {x.types} | {x.why} | {x.judged_by} |" for x in UNCARRIED]
    return "\n".join(lines)


TABLES: dict[str, Callable[[], str]] = {
    "elementwise budgets": elementwise_table,
    "budgets of sums": sums_table,
    "deviations": deviations_table,
    "not carried": uncarried_table,
}


def with_tables(text: str) -> str:
    """Return the document with every marked table made anew."""
    for name, make in TABLES.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text = pattern.sub(lambda m, make=make: m[1] + make() + "\n" + m[2], text)  # type: ignore[misc]
    return text


if __name__ == "__main__":
    for page in DOCUMENTS:
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
