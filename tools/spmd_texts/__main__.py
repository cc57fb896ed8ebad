"""Divide the texts of a folder, such as XLA's tests of partitioning, and run them on all devices.

    python -m tools.spmd_texts FOLDER [--only TEXT] [--table FILE] [--show]
                               [--workers N] [--scheduler ADDRESS]

A folder has HLO texts (*.hlo, *.txt) and C++ tests (*.cc: openxla/xla `spmd_partitioner_test.cc`,
`sharding_propagation_test.cc`), whose raw strings are taken. Each device has to have its blocks of
what one device computes of whole arrays; large sizes are made smaller alike everywhere. Shardings
that a test of propagation expects (`EXPECT_THAT(…, op::Sharding(…))`) are compared with ours.
Prints a table, what is wrong or refused and, with `--show`, each sharding that differs; ends with 1
where a value is wrong or something failed.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tools.mapping import add_where, mapped, where_of
from tools.spmd_texts.judging import FAILED, REFUSED, WRONG, Outcome, judged
from tools.spmd_texts.texts import Text, texts_in

SECONDS = 90.0
"""That one text may take by the clock (assumed)."""


def _lost(text: Text, said: str) -> Outcome:
    return Outcome(text.name, FAILED, said)


def summary(outcomes: Sequence[Outcome], show: bool) -> str:
    """Return the outcomes as a table, and what is to be looked at."""
    kinds = Counter(each.kind for each in outcomes)
    lines = [f"| {kind} | {count} |" for kind, count in kinds.most_common()]
    claims = [(each.name, claim) for each in outcomes for claim in each.claims]
    agreeing = Counter(claim.kind for _, claim in claims)
    lines.append(f"shardings expected: {len(claims)}; {dict(agreeing.most_common())}")
    for each in outcomes:
        if each.kind in (WRONG, FAILED, REFUSED):
            lines.append(f"{each.kind} {each.name}: {each.told}")
    if show:
        for name, claim in claims:
            if claim.kind in ("other", "order"):
                op = f"{claim.op} ({claim.opcode})"
                lines.append(f"{claim.kind} {name} {op}: {claim.ours}, theirs {claim.theirs}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the texts and print what happened."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="texts whose names have this")
    parser.add_argument("--table", type=Path, help="write all outcomes to this file as JSON lines")
    parser.add_argument("--show", action="store_true", help="each sharding that differs")
    add_where(parser)
    asked = parser.parse_args(arguments)
    texts = [text for text in texts_in(asked.folder) if asked.only in text.name]
    outcomes = list(mapped(judged, texts, _lost, where_of(asked, seconds=SECONDS)))
    order = {text.name: i for i, text in enumerate(texts)}
    outcomes.sort(key=lambda each: order[each.name])
    print(summary(outcomes, asked.show))
    if asked.table:
        rows = [
            json.dumps({**o._asdict(), "claims": [c._asdict() for c in o.claims]}) for o in outcomes
        ]
        asked.table.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return int(any(each.kind in (WRONG, FAILED) for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())
