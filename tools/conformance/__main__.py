"""Compare every op's values with XLA:CPU's.

    python -m tools.conformance [--sample N] [--only TEXT] [--show N]
                                [--workers N] [--scheduler ADDRESS]

Prints a table per opcode, then the unexplained failures; writes each of these as a module with its
inputs to out/conformance/failures/, and ends with 1 where there is one. Needs the dependency group
`oracle`.
"""

import argparse
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tests.support.xla_oracle import available
from tools.conformance.case import Case
from tools.conformance.outcome import EXACT, FAILED, LISTED, UNCARRIED, WITHIN, Outcome
from tools.conformance.values import inputs_of
from tools.conformance.workers import chosen_cases, outcomes
from tools.mapping import add_where, where_of

FAILURES = Path("out/conformance/failures")
PROGRESS = 1000
"""Cases between two lines of progress on the standard error."""

COLUMNS = (EXACT, WITHIN, LISTED, UNCARRIED, FAILED)


def table(outcomes: Iterable[Outcome]) -> list[str]:
    """Return the lines of the table: one for each opcode, and the totals."""
    rows: dict[str, Counter[str]] = {}
    types: dict[str, set[str]] = {}
    worst: dict[str, float] = {}
    for outcome in outcomes:
        rows.setdefault(outcome.opcode, Counter())[outcome.status] += 1
        types.setdefault(outcome.opcode, set()).add(outcome.element_type)
        worst[outcome.opcode] = max(worst.get(outcome.opcode, 0.0), outcome.worst)
    head = f"{'opcode':28}{'types':>6}{'modules':>9}" + "".join(f"{c:>18}" for c in COLUMNS)
    lines = [f"{head}{'worst':>9}"]
    for opcode, counts in sorted(rows.items()):
        cells = "".join(f"{counts[c] or '':>18}" for c in COLUMNS)
        start = f"{opcode:28}{len(types[opcode]):>6}{counts.total():>9}"
        lines.append(f"{start}{cells}{worst[opcode]:>9.3g}")
    total: Counter[str] = sum(rows.values(), Counter())
    cells = "".join(f"{total[c]:>18}" for c in COLUMNS)
    lines.append(f"{'all':28}{len(set().union(*types.values())):>6}{total.total():>9}{cells}")
    return lines


def write_failure(case: Case, outcome: Outcome) -> None:
    """Write a failing module, its inputs (raw bits where numpy has no such type) and the reason."""
    stem = FAILURES / re.sub(r"[^\w.=-]+", "_", case.name)[:120]
    stem.parent.mkdir(parents=True, exist_ok=True)
    said = "".join(f"// {line}\n" for line in f"{case.name}\n{outcome.said}".splitlines())
    stem.with_name(stem.name + ".hlo").write_text(said + case.text, encoding="utf-8")
    arrays = {
        f"in_{i}_{j}": x.view(f"u{x.dtype.itemsize}") if x.dtype.kind == "V" else x
        for i in range(case.participants)
        for j, x in enumerate(inputs_of(case, i))
    }
    np.savez(stem.with_name(stem.name + ".npz"), **arrays)  # type: ignore[arg-type]


def main(arguments: list[str] | None = None) -> int:
    """Run the tool; returns the exit code."""
    parser = argparse.ArgumentParser(prog="tools.conformance", description=__doc__)
    parser.add_argument("--sample", type=int, help="run a fixed subset of about N modules")
    parser.add_argument("--only", default="", help="run the cases whose name contains this text")
    add_where(parser)
    parser.add_argument("--show", type=int, default=40, help="most failures to print")
    options = parser.parse_args(arguments)
    if not available():
        print("jaxlib is not installed: install the dependency group `oracle`", file=sys.stderr)
        return 2
    start = time.monotonic()
    shutil.rmtree(FAILURES, ignore_errors=True)
    cases = {case.name: case for case in chosen_cases(options.sample, options.only)}
    judged = []
    for outcome in outcomes([*cases.values()], where_of(options)):
        judged.append(outcome)
        if len(judged) % PROGRESS == 0:
            passed = time.monotonic() - start
            print(f"{len(judged)} of {len(cases)}, {passed:.0f} s", file=sys.stderr, flush=True)
    print("\n".join(table(judged)))
    listed = Counter(name for outcome in judged for name in outcome.deviations)
    for name, count in sorted(listed.items()):
        print(f"listed deviation: {name}: {count} modules")
    print(f"{len({c.text for c in cases.values()})} distinct modules, "
          f"{time.monotonic() - start:.0f} s")  # fmt: skip
    failed = sorted((o for o in judged if o.status == FAILED), key=lambda o: o.name)
    for outcome in failed:
        write_failure(cases[outcome.name], outcome)
    for outcome in failed[: options.show]:
        print(f"FAIL {outcome.name}: {outcome.said}")
    if failed:
        print(f"{len(failed)} unexplained failures, written to {FAILURES}/")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
