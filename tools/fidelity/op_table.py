"""Compare classes of ops with the machine's limits and with poplibs's formulas; write docs.

    python -m tools.fidelity.op_table [--only TEXT] [--document FILE]

Each is compiled alone for a GC200, with partials of f16. With --only those whose names contain the
text are printed, and no document is written.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hloipu.jax import lower
from hloipu_runtime.machine.load import load_machine
from tools.bench.codegen.limits import Limit, limit_of
from tools.bench.codegen.measuring import Cycles, measured
from tools.fidelity.op_class import TILES, OpClass
from tools.fidelity.op_classes import op_classes
from tools.fidelity.op_reasons import LEAST_SHARE, REASONS

DOCS = Path(__file__).resolve().parents[2] / "docs"
_TARGET = "bow"
_MACHINE = load_machine(_TARGET)


class Row(NamedTuple):
    """A class with what it takes, and its tightest limit."""

    of: OpClass
    spent: Cycles
    limit: Limit

    @property
    def bound(self) -> Limit:
        """The tighter of the machine's limit and of poplibs's estimate."""
        poplibs = self.of.poplibs
        if poplibs is None or poplibs.cycles <= self.limit.cycles:
            return self.limit
        return Limit("poplibs", poplibs.cycles)

    @property
    def share(self) -> float:
        """The bound over the cycles of the whole step."""
        return self.bound.cycles / max(1, self.spent.total)

    @property
    def needs_a_reason(self) -> bool:
        """Whether it is far from its bound."""
        return self.share < LEAST_SHARE

    def text(self) -> str:
        """Return the row of the table."""
        poplibs, spent = self.of.poplibs, self.spent
        estimate = f"{poplibs.cycles:,}" if poplibs else "-"
        cells = (
            f"{self.of.name} | {self.of.size}",
            f"{spent.compute:,} | {spent.exchange:,} | {spent.sync:,}",
            f"{self.limit.kind} {self.limit.cycles:,.0f} | {estimate}",
            f"{self.share:.2f}",
        )
        return f"| {' | '.join(cells)} |"


def row_of(op_class: OpClass) -> Row:
    """Compile one class, and return its cycles and its tightest limit."""
    text = lower(op_class.function, *op_class.arguments).text
    spent = measured(text, _TARGET, (("partials_type", "f16"),))
    limit = limit_of(_MACHINE, op_class.needs)
    floats = Limit("float ops", op_class.float_slots / TILES)
    return Row(op_class, spent, max(limit, floats, key=lambda x: x.cycles))


HEADER = """\
| class | type, size | compute | exchange | sync | limit | poplibs | ratio |
|---|---|---:|---:|---:|---|---:|---:|"""

_DOCUMENT = """\
# Fidelity: classes of ops

What networks are made of, each class compiled alone at a real size, beside the tightest of the
machine's limits and the estimate of Graphcore's own library. `make fidelity-ops` writes this
document; [fidelity.md](fidelity.md) compares with measurements.

* **Compute** is the sum over compute sets of the slowest tile's cycles on one Bow; exchange and
  sync are the rest of a step, without the host. Partial sums of f16 are f16. Functions are written
  as jax.nn and flax have them, and lowered by JAX; operands lie where the compiler wants them.
* A **limit** is closed form, spread over all tiles, without overhead: operands loaded once and
  results stored once, 8 bytes a cycle each (load, store); multiply-adds at the AMP's rate (AMP);
  4 bytes a cycle received, of what is moved (exchange); vector instructions on floats, one a cycle
  (float ops).
* **poplibs** is the estimate for one tile's share by the vertices that popnn, poplin and popops put
  together, each op for itself, in [graphcore/poplibs](https://github.com/graphcore/poplibs)
  7eac0f26, file and line below; of products and convolutions that of the cheapest plan, exchange of
  operands and partial sums included (`tools/fidelity/product_formulas.py`). Its estimate of gelu (5
  slots a vector, "should be verified") is below the 8 bundles that its own loop has (its
  `NonLinearityLoop_gelu.S`), which are the limit here.
* The **ratio** is the bound, the larger of both, over all cycles of ours: above 1 where ops are
  fused and so load and store less than poplibs's, each for itself.

{table}

## Why some classes take more than twice their bound

{reasons}

## Where the estimates come from

{sources}
"""


def document(rows: Sequence[Row]) -> str:
    """Return the document."""
    table = "\n".join([HEADER, *(row.text() for row in rows)])
    return _DOCUMENT.format(table=table, reasons=_reasons(rows), sources=_sources(rows))


def _sources(rows: Sequence[Row]) -> str:
    """Return the formulas that estimates are made of, by file and line, each with its classes."""
    files: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        for source in row.of.poplibs.source.split("; ") if row.of.poplibs else ():
            file, _, place = source.partition(":")
            files.setdefault(file, {}).setdefault(place, []).append(row.of.name)
    return "\n".join(
        f"* {file}: "
        + "; ".join(
            f"{place + ' ' if place else ''}{', '.join(dict.fromkeys(names))}"
            for place, names in places.items()
        )
        for file, places in files.items()
    )


def _reasons(rows: Sequence[Row]) -> str:
    """Return the classes that need a reason, by reason; one without any is a KeyError."""
    classes: dict[tuple[str, ...], list[str]] = {}
    for name in dict.fromkeys(row.of.name for row in rows if row.needs_a_reason):
        classes.setdefault(REASONS[name], []).append(name)
    return "\n".join(
        f"* **{'; '.join(names)}**: {' '.join(reasons)}" for reasons, names in classes.items()
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare all classes, or some."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default="")
    parser.add_argument("--document", type=Path, default=DOCS / "fidelity-ops.md")
    options = parser.parse_args(arguments)
    rows = []
    print(HEADER)
    for op_class in op_classes():
        if options.only in op_class.name:
            rows.append(row_of(op_class))
            print(rows[-1].text(), flush=True)
    if not options.only:
        options.document.write_text(document(rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
