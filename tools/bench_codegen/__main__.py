"""Compare compiled kernels with the machine's limits, and plans with the best that a search finds.

    python -m tools.bench_codegen [--target M] [--only WORDS] [--json FILE]

For each kernel: simulated cycles without the host's, and which share of the most binding limit (AMP,
load and store path, exchange; `limits.py`) they reach. Ends with 1 where a target is missed.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hloipu_runtime.machine.load import load_machine
from tools.bench_codegen.kernels import Kernel, kernels
from tools.bench_codegen.limits import limit_of
from tools.bench_codegen.measuring import measured


def row_of(kernel: Kernel, target: str) -> dict[str, Any]:
    """Compile one kernel and return its figures."""
    found = measured(kernel.text, target)
    limit = limit_of(load_machine(target), kernel.needs)
    share = limit.cycles / found.total if found.total else 1.0
    met = found.total == 0 if kernel.free else share >= kernel.target
    return {
        "family": kernel.family,
        "kernel": kernel.name,
        **asdict(found),
        "cycles": found.total,
        "limit": limit.kind if limit.cycles else "none",
        "limit_cycles": round(limit.cycles),
        "because": kernel.needs.because,
        "share": round(share, 4),
        "target": kernel.target,
        "free": kernel.free,
        "met": met,
    }


HEADER = (
    f"{'kernel':42}{'compute':>11}{'exchange':>11}{'sync':>8}{'cycles':>12}{'limit':>12}"
    f"{'share':>8}  bound by"
)


def line(row: dict[str, Any]) -> str:
    """Return a row of the table."""
    text = f"{row['family'][:11] + ' ' + row['kernel']:42.42}"
    text += f"{row['compute']:>11,}{row['exchange']:>11,}{row['sync']:>8,}{row['cycles']:>12,}"
    text += f"{row['limit_cycles']:>12,}{row['share']:>8.3f}  {row['limit']}"
    if row["free"] or row["target"]:
        wish = "0 cycles" if row["free"] else f"{row['target']:.2f}"
        text += f" ({wish}: {'met' if row['met'] else 'MISSED'})"
    return text


def main() -> int:
    """Print the table; 1 where a target is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--target", default="bow")
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    rows = []
    print(HEADER)
    for kernel in kernels():
        words = asked.only.split(",")
        if not any(w in f"{kernel.family} {kernel.name}" for w in words):
            continue
        row = row_of(kernel, asked.target)
        rows.append(row)
        print(line(row), flush=True)
    if asked.json is not None:
        record = {"schema": "hloipu.bench-codegen/1", "target": asked.target, "kernels": rows}
        asked.json.write_text(json.dumps(record, indent=1), encoding="utf-8")
    return 0 if all(row["met"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
