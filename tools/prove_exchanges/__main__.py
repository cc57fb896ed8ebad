"""Tamper with compiled programs, and count who finds out.

    python -m tools.prove_exchanges [--programs N] [--mutants M] [--seed S] [--workers W]
                                    [--scheduler ADDRESS]

Mutants are drawn uniformly over the kinds of `tools.prove_exchanges.kinds`. Each is given to the
static proof, and run tile by tile with poisoned memories against its original: results first, then
everything that tiles compute, on more inputs and with another poison. What still agrees is given to
a referee that follows every element. Ends with 1 if the static proof lets a mutant pass that the
referee does not find equivalent.

Columns: `fault`, the engine refuses; `poison`, results show it; `values` and `inner values`,
results or what tiles compute on the way differ; `endless`, a loop does not end; `error`, a codelet
refuses. `equivalent`, the referee finds nothing misread that a result is computed from; `same
data`, what is misread is equal on all inputs; `unused`, nothing changes whatever it is replaced
with; `masked`, it changes nothing that any tile computes on any of the inputs; `not run`, it is in
types, roles, barriers or a stage's IPUs, which no run shows, and the static proof refused it.
"""

import argparse
import sys
import time
from collections.abc import Sequence

from tools.mapping import add_where, where_of
from tools.prove_exchanges.table import failures, remaining, rules, table
from tools.prove_exchanges.trial import MASKED
from tools.prove_exchanges.workers import Wanted, in_parallel


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool; returns the exit code."""
    parser = argparse.ArgumentParser(prog="tools.prove_exchanges", description=__doc__)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--mutants", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    add_where(parser)
    options = parser.parse_args(arguments)
    start = time.monotonic()
    wanted = Wanted(options.programs, options.mutants, options.seed)
    programs, verdicts = in_parallel(wanted, where_of(options))
    print(table(verdicts))
    print(f"\nrules of the static proof: {rules(verdicts)}")
    print(remaining(verdicts))
    for verdict in verdicts:
        if verdict.exact == MASKED:
            print(f"masked: {verdict.kind} in {verdict.subject}: {verdict.detail}")
    passed = failures(verdicts)
    for verdict in passed:
        print(f"NOT CAUGHT {verdict}")
    seconds = time.monotonic() - start
    print(f"{programs} programs, {len(verdicts)} mutants, {len(passed)} passed, {seconds:.0f} s")
    return 1 if passed else 0


if __name__ == "__main__":
    sys.exit(main())
