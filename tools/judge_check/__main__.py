"""`python -m tools.judge_check`: tables of planted faults found, and of real models that agree."""

import argparse
import sys
import time
from collections import Counter

from tools.judge_check.measure import Outcome, judged, truth_for
from tools.judge_check.models import TYPES, models


def main() -> int:
    """Print the tables; return 1 where a fault was missed or a model refused."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", help="modules, or folders of them")
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--each", type=int, default=3, help="mutants of a kind in a model")
    given = parser.parse_args()
    outcomes: list[Outcome] = []
    for model in models(given.paths, given.types.split(","), given.seed):
        began = time.monotonic()
        truth = truth_for(model)
        if truth is None:
            print(f"{model.name} {model.kind}: XLA:CPU does not compute it", flush=True)
            continue
        mine = judged(model, truth, given.seed, given.each)
        outcomes += mine
        states = Counter(x.state.partition(":")[0].partition(",")[0] for x in mine)
        print(
            f"{model.name} {model.kind}: {dict(states)}, {time.monotonic() - began:.0f} s",
            flush=True,
        )
        for x in mine:
            if x.state not in ("found", "does not end"):
                print(f"    {x.mutation}, {x.place}: {x.state}", flush=True)
    missed = sum(x.state.startswith("MISSED") for x in outcomes)
    for kind in dict.fromkeys(x.kind for x in outcomes):
        of_kind = [x for x in outcomes if x.kind == kind]
        found = sum(x.state in ("found", "does not end") for x in of_kind)
        equal = sum(x.state.startswith("equivalent") for x in of_kind)
        print(f"{kind}: {found} of {len(of_kind) - equal} found, {equal} equivalent")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
