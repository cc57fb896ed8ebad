"""Outfeeds of every mode, in steps cut in every way, against what numpy makes of the elements.

    python -m tools.fuzz_outfeeds [--every N] [--commands N] [--show N] [--workers N]
                                  [--scheduler ADDRESS]

Each program has twelve outfeeds: all modes, of micro-batches and of updates. One in sixteen of
those with few turns runs tile by tile as well. One of every `--commands` goes through the trainer
and the command line too. Ends with 1 where an element differs.
"""

import argparse
import sys
import time

from tools.fuzz_outfeeds.case import Case, all_cases
from tools.fuzz_outfeeds.judge import Verdict, judged
from tools.fuzz_outfeeds.trainers import judged_command, judged_trainer
from tools.mapping import add_where, mapped, where_of


def _lost(case: Case, said: str) -> Verdict:
    return Verdict(case, 0, (said,))


def main(arguments: list[str] | None = None) -> int:
    """Run the tool; returns the exit code."""
    parser = argparse.ArgumentParser(prog="tools.fuzz_outfeeds", description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="one of every N programs")
    parser.add_argument("--commands", type=int, default=10, metavar="N",
                        help="one of every N of these by trainer and command line")  # fmt: skip
    add_where(parser)
    parser.add_argument("--show", type=int, default=20, help="most faults to print")
    options = parser.parse_args(arguments)
    start = time.monotonic()
    cases = list(all_cases())[:: options.every]
    chosen = [case for case in cases if case.mode == "functional"][:: options.commands]
    faulty = shown = 0
    for name, judge, given in (
        ("outfeeds", judged, cases),
        ("trainers", judged_trainer, chosen),
        ("commands", judged_command, chosen),
    ):
        compared = failed = 0
        for verdict in mapped(judge, given, _lost, where_of(options)):
            compared += verdict.compared
            failed += bool(verdict.faults)
            for fault in verdict.faults[: options.show - shown]:
                print(f"FAIL {name} {verdict.case}: {fault}")
                shown += 1
        print(
            f"{name}: {len(given)} programs, {compared} elements or metrics compared, "
            f"{failed} programs fail; {time.monotonic() - start:.0f} s",
            flush=True,
        )
        faulty += failed
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main())
