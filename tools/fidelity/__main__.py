"""Compare predicted with published measured times, and write docs/fidelity.md.

    python -m tools.fidelity [--class TEXT] [--json FILE] [--document FILE]

With --class only classes or measurements whose names contain the text are compared, and no document
is written. Ends with 0 whatever comes out: the document says which bounds hold.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from tools.fidelity import predictions
from tools.fidelity.cases import Kind, Row, case_of, compared, judged
from tools.fidelity.document import as_json, document
from tools.fidelity.measurements import Measurement, read_measurements

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare all measurements, or one class of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--class", dest="only", default="")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--document", type=Path, default=ROOT / "docs" / "fidelity.md")
    options = parser.parse_args(arguments)
    rows = [compared(x) for x in read_measurements() if options.only in _named(x)]
    full = [_in_full(row) for row in rows if row.measurement.dtype == "fp16"]
    for row in rows:
        if row.prediction is not None and row.case.kind is Kind.JUDGED:
            print(f"{row.measurement.id:<40} {row.ratio:6.3f}  {row.prediction.parts}")
    for x in judged(rows):
        verdict = "holds" if x.holds else "does not hold"
        print(
            f"{x.of.name}: {x.count}, geometric mean {x.mean_ratio:.3f}, {x.outside} outside, "
            f"worst {x.worst.ratio:.3f} ({x.worst.measurement.id}): {verdict}"
        )
    if options.json:
        text = json.dumps(as_json(rows, full), indent=1) + "\n"
        options.json.write_text(text, encoding="utf-8")
    if not options.only:
        options.document.write_text(document(rows, full), encoding="utf-8")
    return 0


def _named(x: Measurement) -> str:
    of = case_of(x).of
    return f"{x.id} {of.name if of else ''}"


def _in_full(row: Row) -> Row:
    return Row(row.measurement, row.case, predictions.product(row.measurement, "f32"))


if __name__ == "__main__":
    raise SystemExit(main())
