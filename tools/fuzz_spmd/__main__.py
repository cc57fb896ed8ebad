"""Run random sharded programs on the blocks of all devices, and whole on one.

    python -m tools.fuzz_spmd [--count N] [--first N] [--seconds S] [--out FOLDER]
                              [--workers N] [--scheduler ADDRESS]

Half of the modules state shardings in Shardy's words, along axes, parts of axes and open
dimensions, of parameters and on the way; the others are programs of `tools.fuzz_programs` with tile
assignments. Meshes have devices in any order, sizes need not divide, and paddings of parameters are
nan. Each device has to have its blocks of what the evaluator computes on whole arrays. What differs
or cannot be partitioned is saved under out/fuzz_spmd; ends with 1 if there is any.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from hloipu_compiler.hlo.printing.printer import print_module
from tools.fuzz_spmd.judging import Outcome, drawn, judged
from tools.mapping import add_where, mapped, positive, where_of

OUT = Path("out/fuzz_spmd")
HANGING = 12
"""Times the allowed processor time, by the clock: its worker is then ended. *Assumed.*"""


def _lost(seed: int, said: str) -> Outcome:
    return Outcome(seed, Counter(), said)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the programs and print what happened."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=positive, default=5, help="longest that one may take")
    parser.add_argument("--out", type=Path, default=OUT)
    add_where(parser)
    options = parser.parse_args(arguments)
    wrong, meetings = 0, Counter[str]()
    judge = partial(judged, seconds=options.seconds)
    seeds = range(options.first, options.first + options.count)
    where = where_of(options, seconds=HANGING * options.seconds)
    for outcome in mapped(judge, seeds, _lost, where):
        meetings += outcome.meetings
        if outcome.wrong:
            wrong += 1
            options.out.mkdir(parents=True, exist_ok=True)
            path = options.out / f"{outcome.seed}.hlo"
            path.write_text(print_module(drawn(outcome.seed)[0]), encoding="utf-8")
            print(f"{outcome.seed}: {outcome.wrong}\n  {path}", flush=True)
    print(f"{options.count - wrong} right, {wrong} wrong; {dict(meetings.most_common())}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
