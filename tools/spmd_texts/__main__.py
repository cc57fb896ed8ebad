"""Divide the texts of a folder, such as XLA's tests of partitioning, and run them on all devices.

    python -m tools.spmd_texts FOLDER [--only TEXT] [--table FILE] [--show] [--bytes]
                               [--workers N] [--scheduler ADDRESS]

A folder has HLO texts (*.hlo, *.txt), MLIR files with shardings of Shardy (*.mlir: openxla/shardy
`shardy/dialect/sdy/transforms/`), whose functions are converted, and C++ tests (*.cc: openxla/xla
`spmd_partitioner_test.cc`, `sharding_propagation_test.cc`), whose raw strings are taken. Each
device has to have its blocks of what one device computes of whole arrays; large sizes are made
smaller alike everywhere. Shardings that a test of propagation expects (`EXPECT_THAT(…,
op::Sharding(…))`) are compared with ours, and with `--bytes` what a device sends with XLA's own
program of one device (up to 64 devices).
Prints a table, what is wrong or refused and, with `--show`, each sharding that differs; ends with 1
where a value is wrong or something failed.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from math import exp, fsum, log
from pathlib import Path

from tools.mapping import add_where, mapped, where_of
from tools.spmd_conformance.traffic import Traffic
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
    known = [each for each in outcomes if each.theirs]
    if known:
        mean = exp(fsum(log(each.ratio) for each in known) / len(known))
        lines.append(f"bytes: {len(known)} texts, geometric mean {mean:.2f} of XLA's; above 1.3:")
        dear = sorted((each for each in known if each.ratio > 1.3), key=lambda e: -e.ratio)
        lines += [f"  {e.ratio:.2f} {e.name}: {_sent(e.ours)}, XLA {_sent(e.theirs)}" for e in dear]
    for each in outcomes:
        if each.kind in (WRONG, FAILED, REFUSED):
            lines.append(f"{each.kind} {each.name}: {each.told}")
    if show:
        for name, claim in claims:
            if claim.kind in ("other", "order"):
                op = f"{claim.op} ({claim.opcode})"
                lines.append(f"{claim.kind} {name} {op}: {claim.ours}, theirs {claim.theirs}")
    return "\n".join(lines)


def _sent(traffic: Traffic | None) -> str:
    assert traffic is not None
    return f"{traffic.byte_count:,.0f} bytes in {traffic.meetings}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the texts and print what happened."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="texts whose names have this")
    parser.add_argument("--table", type=Path, help="write all outcomes to this file as JSON lines")
    parser.add_argument("--show", action="store_true", help="each sharding that differs")
    parser.add_argument("--bytes", action="store_true", help="against XLA's own programs")
    add_where(parser)
    asked = parser.parse_args(arguments)
    texts = [text for text in texts_in(asked.folder) if asked.only in text.name]
    judge = partial(judged, in_xla=asked.bytes)
    outcomes = list(mapped(judge, texts, _lost, where_of(asked, seconds=SECONDS)))
    order = {text.name: i for i, text in enumerate(texts)}
    outcomes.sort(key=lambda each: order[each.name])
    print(summary(outcomes, asked.show))
    if asked.table:
        rows = [json.dumps({**o._asdict(), "ratio": o.ratio}, default=vars) for o in outcomes]
        asked.table.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return int(any(each.kind in (WRONG, FAILED) for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())
