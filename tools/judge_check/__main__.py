"""`python -m tools.judge_check`: tables of planted faults found, and of real models that agree."""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence

from hloipu.xla_cpu.runner import XlaCpu
from tools.judge_check.benign import Row, benign
from tools.judge_check.measure import (
    SECONDS_OF_XLA,
    Oracle,
    Outcome,
    judged,
    results_of,
    truth_for,
)
from tools.judge_check.models import TYPES, models


def main() -> int:
    """Print the tables; return 1 where a fault was missed or a right model differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", help="modules, or folders of them")
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--each", type=int, default=3, help="mutants of a kind in a model; 0: none")
    parser.add_argument("--no-benign", action="store_true", help="plant faults only")
    parser.add_argument("--seconds", type=float, help="begin no model after so long")
    given = parser.parse_args()
    began = time.monotonic()
    rows: list[Row] = []
    outcomes: list[Outcome] = []
    with XlaCpu(SECONDS_OF_XLA) as xla:
        oracle = Oracle(xla)
        for model in models(given.paths, given.types.split(","), given.seed):
            if given.seconds is not None and time.monotonic() - began > given.seconds:
                print(f"{model.name} {model.kind} and all after it: no time left")
                break
            truth = truth_for(model, oracle)
            if isinstance(truth, str):
                print(f"{model.name} {model.kind}: not judged, {truth}", flush=True)
                continue
            theirs = results_of(model, oracle)
            if not given.no_benign:
                for row in benign(model, theirs, truth):
                    print(_row_text(row), flush=True)
                    rows.append(row)
            if given.each:
                mine = judged(model, theirs, truth, given.seed, given.each)
                _print_outcomes(mine)
                outcomes += mine
    _print_tables(rows, outcomes)
    missed = any(x.state.startswith("MISSED") for x in outcomes)
    return int(missed or any(row.state == "DIFFERS" for row in rows))


def _row_text(row: Row) -> str:
    said = f" ({row.said})" if row.said else ""
    return f"{row.model} {row.kind} {row.implementation}: {row.state}, {row.seconds:.1f} s{said}"


def _print_outcomes(mine: Sequence[Outcome]) -> None:
    if not mine:
        return
    states = Counter(x.state.partition(":")[0].partition(",")[0] for x in mine)
    print(f"{mine[0].model} {mine[0].kind} faults: {dict(states)}", flush=True)
    for x in mine:
        if x.state not in ("found", "does not end"):
            print(f"    {x.mutation}, {x.place}: {x.state}", flush=True)


def _print_tables(rows: Sequence[Row], outcomes: Sequence[Outcome]) -> None:
    if rows:
        print("\nright implementations")
    for name in dict.fromkeys(row.implementation for row in rows):
        of_name = [row for row in rows if row.implementation == name]
        states = Counter(row.state for row in of_name)
        longest = max(of_name, key=lambda row: row.seconds)
        others = {state: n for state, n in states.items() if state != "agrees"}
        print(
            f"{name}: {states['agrees']} of {len(of_name)} agree{f', {others}' if others else ''}; "
            f"longest {longest.seconds:.1f} s ({longest.model} {longest.kind})"
        )
    if outcomes:
        print("\nplanted faults")
    for kind in dict.fromkeys(x.kind for x in outcomes):
        of_kind = [x for x in outcomes if x.kind == kind]
        caught = sum(x.state in ("found", "does not end") for x in of_kind)
        equal = sum(x.state.startswith("equivalent") for x in of_kind)
        within = sum(x.state.startswith("within") for x in of_kind)
        print(
            f"{kind}: {caught} of {len(of_kind) - equal - within} found, {within} within budgets, "
            f"{equal} equivalent or not known"
        )


if __name__ == "__main__":
    sys.exit(main())
