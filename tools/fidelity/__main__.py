"""Compare predicted with published measured times, and write docs/fidelity.md.

    python -m tools.fidelity [--models] [--class TEXT] [--json FILE] [--document FILE]

With --models whole networks are compared, and docs/fidelity-models.md is written; without it,
all else, and the networks that are compiled quickly. With --class only classes or measurements
whose names contain the text are compared, and no document is written. Ends with 0 whatever comes
out: the document says which bounds hold. Outcomes of networks are kept, see `kept_outcomes.py`.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from tools.fidelity import predictions
from tools.fidelity.cases import Kind, Row, case_of, compared, judged
from tools.fidelity.document import as_json, document
from tools.fidelity.kept_outcomes import NotKept
from tools.fidelity.measurements import Measurement, read_measurements
from tools.fidelity.runs import capacities
from tools.fidelity.runs_document import runs_document

DOCS = Path(__file__).resolve().parents[2] / "docs"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare all measurements, or one class of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--class", dest="only", default="")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--models", action="store_true")
    parser.add_argument("--document", type=Path)
    options = parser.parse_args(arguments)
    chosen = [
        x
        for x in [*capacities(), *read_measurements()]
        if options.only in _named(x) and (bool(x.run) or not options.models)
    ]
    rows = []
    for x in chosen:
        try:
            row = compared(x, quickly=not options.models)
        except NotKept:
            continue
        rows.append(row)
        if row.prediction is not None and row.case.kind is Kind.JUDGED:
            print(f"{x.id:<40} {row.ratio:6.3f}  {row.prediction.parts}", flush=True)
    full = [_in_full(row) for row in rows if row.measurement.dtype == "fp16"]
    for found in judged(rows):
        verdict = "holds" if found.holds else "does not hold"
        print(
            f"{found.of.name}: {found.count}, geometric mean {found.mean_ratio:.3f}, "
            f"{found.outside} outside, worst {found.worst.ratio:.3f} "
            f"({found.worst.measurement.id}): {verdict}"
        )
    if options.json:
        text = json.dumps(as_json(rows, full), indent=1) + "\n"
        options.json.write_text(text, encoding="utf-8")
    if not options.only:
        path = options.document or DOCS / f"fidelity{'-models' if options.models else ''}.md"
        text = runs_document(rows) if options.models else document(rows, full)
        path.write_text(text, encoding="utf-8")
    return 0


def _named(x: Measurement) -> str:
    of = case_of(x).of
    return f"{x.id} {of.name if of else ''}"


def _in_full(row: Row) -> Row:
    return Row(row.measurement, row.case, predictions.product(row.measurement, "f32"))


if __name__ == "__main__":
    raise SystemExit(main())
