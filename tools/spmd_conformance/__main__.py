"""Divide sharded JAX programs, run them on as many participants, and count what they send.

    python -m tools.spmd_conformance [--only TEXT] [--dialect shardy|gspmd] [--worst N]
                                     [--table FILE] [--tiles N] [--workers N] [--scheduler ADDRESS]

Every program is lowered by JAX for virtual devices, with Shardy and without. hloipu's program of
one device runs on all of them in the evaluator, against what JAX computes on its devices; the bytes
that a device sends are compared with those of XLA's own program of one device. Of every so many,
`--tiles`, compiled programs run on tiles too, functional and exact.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import exp, fsum, log
from pathlib import Path
from typing import Any

from tests.support.xla_oracle import DEVICES
from tools.mapping import HERE, Where, add_where, mapped, where_of
from tools.spmd_conformance.judging import Judged, judged

ROOT = Path(__file__).parents[2]
DIALECTS = ("shardy", "gspmd")


def outcomes(
    dialect: str, names: Sequence[str] = (), where: Where = HERE, tiles: int = 0
) -> Iterator[Judged]:
    """Yield the judgement of each program in one dialect, as JAX lowers them in one child.

    `tiles`: of every so many, on tiles too; 0: of none.
    """
    judge, lost = partial(judged, dialect=dialect), partial(_lost, dialect=dialect)
    records = (
        {**record, "on_tiles": tiles > 0 and number % tiles == 0}
        for number, record in enumerate(_lowered(dialect, names))
    )
    yield from mapped(judge, records, lost, where)


def _lost(record: Mapping[str, Any], said: str, dialect: str) -> Judged:
    return Judged(record["name"], record["part"], dialect, said)


def _lowered(dialect: str, names: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"{DEVICES}=8 --xla_backend_optimization_level=0",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
    }
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tools.spmd_conformance.lowering", folder, dialect, *names]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
            assert child.stdout is not None
            for line in child.stdout:
                record = json.loads(line)
                if record.get("arrays"):  # the worker may be on another machine
                    path = Path(record["arrays"])
                    record["arrays"] = path.read_bytes()
                    path.unlink()
                yield record
        if child.returncode:
            raise RuntimeError(f"the child process of JAX ended with {child.returncode}")


def summary(judgements: Sequence[Judged], worst: int) -> str:
    """Return a table of all parts, the worst ratios and all faults, as lines."""
    lines = [
        "| dialect | programs | right | bytes, mean | worst | above 1.3 | collectives | XLA's |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for dialect in dict.fromkeys(each.dialect for each in judgements):
        own = [each for each in judgements if each.dialect == dialect]
        for part in dict.fromkeys(each.part for each in own):
            lines.append(_line(f"{dialect}, {part}", [e for e in own if e.part == part]))
        lines.append(_line(f"{dialect}, all", own))
    dearest = sorted(
        (e for e in judgements if (e.ratio or 0) > 1.02), key=lambda e: -(e.ratio or 0)
    )
    lines += [f"  {_row(each)}" for each in dearest[:worst]]
    lines += [f"  {e.dialect} {e.name}: {e.fault.strip()}" for e in judgements if e.fault]
    return "\n".join(lines)


def _line(title: str, own: Sequence[Judged]) -> str:
    ratios = [each.ratio for each in own if each.ratio is not None] or [1.0]
    mean = exp(fsum(map(log, ratios)) / len(ratios))
    ours = sum(each.ours.meetings for each in own if each.ours)
    theirs = sum(each.theirs.meetings for each in own if each.theirs)
    right, high = sum(not each.fault for each in own), sum(r > 1.3 for r in ratios)
    return (
        f"| {title} | {len(own)} | {right} | {mean:.2f} | {max(ratios):.2f} | {high} | {ours} "
        f"| {theirs} |"
    )


def _row(each: Judged) -> str:
    assert each.ours is not None
    assert each.theirs is not None
    return (
        f"{each.ratio:8.2f}  {each.dialect:6} {each.name}: {each.ours.byte_count:,.0f} bytes in "
        f"{each.ours.meetings}, XLA {each.theirs.byte_count:,.0f} in {each.theirs.meetings}"
    )


def main() -> int:
    """Judge what is asked for; return 1 where a value differs or an aim is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="programs whose names have this text")
    parser.add_argument("--dialect", choices=DIALECTS, help="one partitioner's texts alone")
    parser.add_argument("--worst", type=int, default=40, help="how many of the dearest to list")
    parser.add_argument("--table", type=Path, help="write all outcomes to this file as JSON")
    parser.add_argument("--tiles", type=int, default=0, help="every so many, on tiles too; 0: none")
    add_where(parser)
    asked = parser.parse_args()
    names: list[str] = []
    if asked.only:
        from tools.spmd_conformance.table import PARTS

        names = [p.name for part in PARTS.values() for p in part if asked.only in p.name]
    began, judgements = time.perf_counter(), []
    for dialect in (asked.dialect,) if asked.dialect else DIALECTS:
        judgements += list(outcomes(dialect, names, where_of(asked), asked.tiles))
    print(summary(judgements, asked.worst))
    print(f"{time.perf_counter() - began:.0f} s")
    if asked.table:
        records = [
            {"name": e.name, "dialect": e.dialect, "fault": e.fault, "ratio": e.ratio,
             "ours": vars(e.ours) if e.ours else None,
             "theirs": vars(e.theirs) if e.theirs else None}
            for e in judgements
        ]  # fmt: skip
        asked.table.write_text(json.dumps(records, indent=1), encoding="utf-8")
    return int(any(e.fault for e in judgements))


if __name__ == "__main__":
    sys.exit(main())
