"""Compare what two commits make of the same programs; bit-identical is the only way to pass.

    python -m tools.referee A B [--dumps PLACE ...] [--ops N] [--only WORDS] [--json FILE]

A and B are commits of this repository; `.` is the tree as it stands. Samples, dumps and single ops
are compiled on two machines, plain and cut (loops, accumulation, stages, replicas, shards, offload,
search). Equal have to be: exit codes, the text of the verdict and of every finding and refusal,
cycles by class, the memory report, the program's text with all of its constants, and the values of
a run. Each side answers in a process of its own, on its own sources; case by case they take turns
at being first, so that their processor times can be compared. Ends with 1 where anything differs.
"""

import argparse
import difflib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from math import exp, log
from pathlib import Path
from typing import Any

from tools.referee import side
from tools.referee.cases import Case, dump_cases, op_cases, sample_cases

ROOT = Path(__file__).parents[2]
TIMES = ("compile_seconds", "run_seconds")
LEAST_SECONDS = 0.005
"""Shorter times are not compared: the clock of the processor has steps."""
SHOWN_LINES = 6
"""Of a difference of texts, as many lines are printed."""

Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What both sides made of one case."""

    name: str
    differences: dict[str, str]
    """What differs -> how, as text."""
    ratios: dict[str, float]
    """B's processor seconds over A's."""


@contextmanager
def sources(commit: str) -> Iterator[Path]:
    """Yield a folder with a commit's sources; `.` is the tree as it stands."""
    if commit == ".":
        yield ROOT
        return
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "archive", commit], cwd=ROOT, check=True, stdout=subprocess.PIPE
        )
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        yield Path(folder)


class Side:
    """A process that answers with one commit's sources."""

    def __init__(self, tree: Path) -> None:
        path = [str(tree), str(tree / "compiler"), str(tree / "runtime")]
        self._tree = tree
        self._process = subprocess.Popen(
            [sys.executable, side.__file__],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "HLOIPU_FLAGS": ""},
        )  # fmt: skip

    def answer(self, case: Case) -> Answer:
        """Return what this side makes of a case."""
        if self._process.stdin is None or self._process.stdout is None:
            raise BrokenPipeError("the process has no pipes")
        request = {"file": case.file, "flags": case.flags, "run_flags": case.run_flags}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise BrokenPipeError(f"the process of {self._tree} ended at {case.name}")
        answer: Answer = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        with self._process:  # waits, and closes its pipes
            pass


def compared(name: str, a: Answer, b: Answer) -> Comparison:
    """Return the differences of two answers, and their times' ratios."""
    differences = {
        key: difference(a.get(key), b.get(key))
        for key in sorted((a.keys() | b.keys()) - set(TIMES))
        if a.get(key) != b.get(key)
    }
    ratios = {
        key: b[key] / a[key]
        for key in TIMES
        if a.get(key, 0) >= LEAST_SECONDS and b.get(key, 0) >= LEAST_SECONDS
    }
    return Comparison(name, differences, ratios)


def difference(a: object, b: object) -> str:
    """Return how two values differ, in few lines."""
    left, right = (
        (value if isinstance(value, str) else json.dumps(value, indent=1)).splitlines()
        for value in (a, b)
    )
    lines = list(difflib.unified_diff(left, right, "A", "B", n=0, lineterm=""))[2:]
    more = len(lines) - SHOWN_LINES
    return "\n".join([*lines[:SHOWN_LINES], *([f"({more} more lines)"] if more > 0 else [])])


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of positive numbers; 1 of none."""
    return exp(sum(map(log, values)) / len(values)) if values else 1.0


def comparisons(cases: Sequence[Case], first: Side, second: Side) -> Iterator[Comparison]:
    """Yield the comparison of each case; the sides take turns at being first."""
    for number, case in enumerate(cases):
        if number % 2:
            b = second.answer(case)
            a = first.answer(case)
        else:
            a = first.answer(case)
            b = second.answer(case)
        yield compared(case.name, a, b)


def main() -> int:
    """Print what differs and how the times compare; 1 where anything differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("a")
    parser.add_argument("b")
    parser.add_argument("--dumps", nargs="*", type=Path, default=[])
    parser.add_argument("--ops", type=int, default=200)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    results: list[Comparison] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cases = sample_cases() + op_cases(asked.ops, folder) + dump_cases(asked.dumps)
        cases = [case for case in cases if asked.only in case.name]
        sides = [Side(stack.enter_context(sources(commit))) for commit in (asked.a, asked.b)]
        for each in sides:
            stack.callback(each.close)
        for comparison in comparisons(cases, *sides):
            results.append(comparison)
            for what, how in comparison.differences.items():
                print(f"{comparison.name}: {what} differs\n{how}", flush=True)
    different = [result for result in results if result.differences]
    print(f"{len(results)} cases, {len(results) - len(different)} identical, "
          f"{len(different)} different")  # fmt: skip
    for key in TIMES:
        ratios = sorted(r.ratios[key] for r in results if key in r.ratios)
        if ratios:
            print(
                f"{key} of B over A: geometric mean {geometric_mean(ratios):.3f}, "
                f"{ratios[0]:.2f} to {ratios[-1]:.2f} over {len(ratios)} cases"
            )
    if asked.json is not None:
        record = {"schema": "hloipu.referee/1", "cases": [asdict(result) for result in results]}
        asked.json.write_text(json.dumps(record, indent=1), encoding="utf-8")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
