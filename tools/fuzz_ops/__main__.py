"""Every opcode with each dimension zero in turn, in every element type, through every way to run.

    python -m tools.fuzz_ops [--every N] [--scale N] [--target NAME] [--only TEXT] [--show N]
                             [--workers N] [--scheduler ADDRESS]

A module that is not valid is left out. What is compiled runs whole-tensor and tile by tile, and
gives the declared shapes and what the evaluator gives; what is refused is refused by a typed error
while it is compiled. Ends with 1 where that does not hold.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial

from hloipu_runtime.element_types import ELEMENT_TYPES
from tools.conformance.case import Case
from tools.fuzz_ops.form import case_of, drawn_sizes
from tools.fuzz_ops.forms import computing_forms
from tools.fuzz_ops.judge import AGREES, FAILED, INVALID, REFUSED, Verdict, judged
from tools.fuzz_ops.moving_forms import library_forms, moving_forms
from tools.mapping import add_where, mapped, where_of

TYPES = tuple(name for name, element in ELEMENT_TYPES.items() if element.is_array)
LIBRARY_TYPES = ("f32", "f64", "c64", "c128", "s32", "bf16")
"""Of LAPACK's routines: their own four, and two that are refused."""


def all_cases(scale: int = 1) -> Iterator[Case]:
    """Yield every form in every element type with every choice of sizes."""
    rows = [(form, TYPES) for form in (*computing_forms(), *moving_forms())]
    for form, types in (*rows, *((form, LIBRARY_TYPES) for form in library_forms())):
        for element_type in types:
            for sizes in drawn_sizes(form, scale):
                yield case_of(form, element_type, sizes)


def chosen_cases(every: int, only: str = "", scale: int = 1) -> list[Case]:
    """Return one of every so many cases, of those whose names hold a text."""
    return [case for case in all_cases(scale) if only in case.name][::every]


def class_of(verdict: Verdict) -> str:
    """Return a failure without the numbers that differ between modules of one cause."""
    opcode = verdict.name.partition("/")[0]
    said = verdict.said.partition(" is ")[0] if " is " in verdict.said else verdict.said
    return f"{opcode}: {said}"


def _lost(case: Case, said: str) -> Verdict:
    return Verdict(case.name, FAILED, said)


def main(arguments: list[str] | None = None) -> int:
    """Run the tool; returns the exit code."""
    parser = argparse.ArgumentParser(prog="tools.fuzz_ops", description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="one of every N modules")
    parser.add_argument("--scale", type=int, default=1, help="sizes are so many times larger")
    parser.add_argument("--target", default="tiny", help="the machine to compile for")
    parser.add_argument("--only", default="", help="the modules whose name holds this text")
    add_where(parser)
    parser.add_argument("--show", type=int, default=3, help="most failures to print of a class")
    options = parser.parse_args(arguments)
    start = time.monotonic()
    cases = chosen_cases(options.every, options.only, options.scale)
    judge = partial(judged, target=options.target)
    verdicts = list(mapped(judge, cases, _lost, where_of(options)))
    counts = Counter(verdict.status for verdict in verdicts)
    refusals = Counter(verdict.said for verdict in verdicts if verdict.status == REFUSED)
    failed: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        if verdict.status == FAILED:
            failed.setdefault(class_of(verdict), []).append(verdict)
    for kind, of_kind in sorted(failed.items(), key=lambda item: -len(item[1])):
        print(f"FAIL {len(of_kind)} of {kind}")
        for verdict in of_kind[: options.show]:
            print(f"     {verdict.name}: {verdict.said}")
    print(
        f"{len(cases)} modules: {counts[INVALID]} not valid, {counts[REFUSED]} refused "
        f"{dict(refusals)}, {counts[AGREES]} agree, {counts[FAILED]} fail in {len(failed)} "
        f"classes; {time.monotonic() - start:.0f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
