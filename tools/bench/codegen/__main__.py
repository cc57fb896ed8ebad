"""Compare compiled kernels with the machine's limits, and plans with the best that a search finds.

    python -m tools.bench codegen [--target M] [--only WORDS] [--no-search] [--json FILE]

For each kernel: simulated cycles without the host's, and which share of the most binding limit
(AMP, load and store path, exchange; `limits.py`) they reach. For each view, cycles on top of those
of the same kernel without it. For each small op on `tiny`: cycles, and how many times those of the
best of all mappings (`search.py`). Ends with 1 where a target is missed.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hloipu_runtime.machine.load import load_machine
from tools.bench.codegen.kernel import Kernel
from tools.bench.codegen.kernels import kernels
from tools.bench.codegen.limits import limit_of
from tools.bench.codegen.measuring import measured
from tools.bench.codegen.small import MOST, Compared, compared


def row_of(kernel: Kernel, target: str) -> dict[str, Any]:
    """Compile one kernel and return its figures."""
    found = measured(kernel.text, target, kernel.options)
    limit = limit_of(load_machine(target), kernel.needs)
    row = {
        "family": kernel.family,
        "kernel": kernel.name,
        **asdict(found),
        "cycles": found.total,
        "options": dict(kernel.options),
    }
    if kernel.plain:
        added = max(0, found.total - measured(kernel.plain, target).total)
        return {**row, "added_cycles": added, "met": added == 0}
    share = limit.cycles / found.total if found.total else 1.0
    return {
        **row,
        "limit": limit.kind,
        "limit_cycles": round(limit.cycles),
        "because": kernel.needs.because,
        "share": round(share, 4),
        "target": kernel.target,
        "met": share >= kernel.target,
    }


HEADER = (
    f"{'kernel':44}{'compute':>11}{'exchange':>11}{'sync':>8}{'cycles':>12}{'limit':>11}"
    f"{'share':>8}  bound by"
)


def line(row: dict[str, Any]) -> str:
    """Return a row of the table."""
    text = f"{row['family'] + ' ' + row['kernel']:44.44}"
    text += f"{row['compute']:>11,}{row['exchange']:>11,}{row['sync']:>8,}{row['cycles']:>12,}"
    verdict = "met" if row["met"] else "MISSED"
    if "added_cycles" in row:
        return f"{text}{'':19}  {row['added_cycles']:,} cycles for the view (0: {verdict})"
    text += f"{row['limit_cycles']:>11,}{row['share']:>8.3f}  {row['limit']}"
    return f"{text} ({row['target']:.2f}: {verdict})" if row["target"] else text


def small_line(found: Compared) -> str:
    """Return a row of the table of small ops."""
    verdict = "" if found.times <= MOST else "  MISSED"
    return (
        f"{found.name:44.44}{found.ours:>11,}{found.best:>11,}{found.times:>8.3f}{found.tried:>8,}"
        f"  {found.best_mapping}{verdict}"
    )


def main() -> int:
    """Print the tables; 1 where a target is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--target", default="bow")
    parser.add_argument("--only", default="")
    parser.add_argument("--no-search", action="store_true")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    words = asked.only.split(",")
    rows = []
    print(HEADER)
    for kernel in kernels():
        if any(w in f"{kernel.family} {kernel.name}" for w in words):
            rows.append(row_of(kernel, asked.target))
            print(line(rows[-1]), flush=True)
    small = []
    if not asked.no_search:
        names = f"{'on tiny':44}{'cycles':>11}{'best':>11}{'times':>8}{'tried':>8}  best mapping"
        print(f"\n{names}")
        for found in compared(words):
            small.append(found)
            print(small_line(found), flush=True)
    if asked.json is not None:
        record = {
            "schema": "hloipu.bench-codegen/1",
            "target": asked.target,
            "kernels": rows,
            "small": [{**asdict(x), "times": round(x.times, 4)} for x in small],
        }
        asked.json.write_text(json.dumps(record, indent=1), encoding="utf-8")
    met = all(row["met"] for row in rows) and all(x.times <= MOST for x in small)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
