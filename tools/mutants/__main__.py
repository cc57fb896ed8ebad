"""Command line of `tools.mutants`."""

import argparse
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from tools.mapping import add_where, where_of
from tools.mutants.choosing import ReachingTests, at_place, drawn, equivalent, source
from tools.mutants.reach import is_current, tests_of
from tools.mutants.rooms import ROOMS, ROOT
from tools.mutants.trial import KILLED, NOT_REACHED, SURVIVED, TIMED_OUT, Outcome, try_all

FLOOR_PERCENT = 92
TEST_FOLDERS = (
    "tests/compiler",
    "tests/runtime",
    "tests/end_to_end",
    "tests/hloipu",
    "tests/goldens",
)
NEAREST_FOLDERS = tuple(folder for room in ROOMS.values() for folder in room.tests)
FILES_AT_ONCE = 4
"""Files of tests that one process records."""


def record(files: Sequence[Path], seconds: float) -> None:
    """Find out what tests reach, where no record of their present text is kept.

    The nearest come first. After `seconds` nothing more is recorded, and what is half done is lost.
    """
    end = time.monotonic() + seconds
    missing = [file for file in files if not is_current(file)]
    near = tuple(f"{ROOT / folder}/" for folder in NEAREST_FOLDERS)
    missing.sort(key=lambda file: not str(file).startswith(near))
    for start in range(0, len(missing), FILES_AT_ONCE):
        left = end - time.monotonic()
        if left <= 0:
            return
        some = [str(file.relative_to(ROOT)) for file in missing[start : start + FILES_AT_ONCE]]
        print(f"recording {start + len(some)} of {len(missing)} files of tests", file=sys.stderr)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tools.mutants.reach", *some]
        try:
            subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False, timeout=left)
        except subprocess.TimeoutExpired:
            return


def told(outcome: Outcome) -> None:
    """Print how a mutant ended, with its change if it lives."""
    mutant = outcome.case.mutant
    text = f"{outcome.verdict:11} {outcome.seconds:5.1f} s  {mutant.file}:{mutant.line}"
    if outcome.verdict in (SURVIVED, NOT_REACHED):
        old, new = mutant.lines(source(mutant.file))
        text += f"  ({len(outcome.case.tests)} tests)\n    - {old}\n    + {new}"
    print(text, flush=True)


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the score of each room, and of all."""
    by_room: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        by_room[outcome.case.mutant.room][outcome.verdict] += 1
        by_room["all"][outcome.verdict] += 1
    rows = [f"{'room':10} {'planted':>8} {'found':>6} {'of them late':>13} {'not':>4} {'score':>7}"]
    for room in (*ROOMS, "all"):
        counts = by_room.get(room)
        if counts:
            dead = counts[KILLED] + counts[TIMED_OUT]
            rows.append(
                f"{room:10} {counts.total():8} {dead:6} {counts[TIMED_OUT]:13}"
                f" {counts.total() - dead:4} {dead / counts.total():7.1%}"
            )
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Plant mutants, print what became of them; 1: too many live."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--room", action="append", choices=[*ROOMS])
    parser.add_argument("--only", metavar="FILE:LINE", help="all mutants of one line")
    parser.add_argument(
        "--once", action="store_true", help="do not try survivors in a process of their own too"
    )
    parser.add_argument(
        "--record-minutes", type=float, default=120, help="limit of recording; 0: not at all"
    )
    parser.add_argument("--minutes", type=float, default=240, help="limit of trying mutants")
    add_where(parser)
    options = parser.parse_args(arguments)
    if options.only:
        file, _, line = options.only.rpartition(":")
        mutants = at_place(file, int(line))
    else:
        mutants = drawn(options.room or [*ROOMS], options.count, options.seed)
    files = sorted(file for folder in TEST_FOLDERS for file in (ROOT / folder).rglob("test_*.py"))
    record(files, 60 * options.record_minutes)
    recorded = {file: is_current(file) for file in files}
    tests = ReachingTests(
        (test for file in files if recorded[file] for test in tests_of(file)),
        (str(file.relative_to(ROOT)) for file in files if not recorded[file]),
    )
    outcomes: list[Outcome] = []

    def heard(outcome: Outcome) -> None:
        outcomes.append(outcome)
        told(outcome)

    try_all(
        [tests.case(mutant) for mutant in mutants if not equivalent(mutant)],
        heard,
        twice=not options.once,
        seconds=60 * options.minutes,
        where=where_of(options),
    )
    print(table(outcomes))
    dead = sum(o.verdict in (KILLED, TIMED_OUT) for o in outcomes)
    return int(100 * dead < FLOOR_PERCENT * len(outcomes))


if __name__ == "__main__":
    sys.exit(main())
