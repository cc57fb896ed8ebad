"""Compile divided programs for 2 to 64 IPUs and tabulate what they cost.

    python -m tools.sharding_table [--only TEXT] [--ipus N,N] [--page FILE]

JAX lowers every program for an abstract mesh, hloipu divides and compiles it for GC200s. Bytes that
an IPU sends are held against the least that theory has for them.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import hloipu
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.ir.ops import COLLECTIVES
from hloipu_compiler.partition.spmd.partitioning import partitioned
from tools.sharding_table.programs import COUNTS, Row, rows
from tools.spmd_conformance.traffic import traffic_of

_SHORT = {
    "all-reduce": "AR", "all-gather": "AG", "reduce-scatter": "RS", "all-to-all": "A2A",
    "collective-permute": "CP",
}  # fmt: skip
_PAGE = """# What divided programs cost

`make sharding-table` writes this page: programs of one size, divided by their annotations over 2
to 64 GC200s, as [partitioning](partitioning.md) tells, and compiled.

* **sent**: bytes of one IPU, by rings, and over those that theory has for large arrays;
* **cycles**: of the device, without its host, and the share of those on links between IPUs;
* **scaling**: time on 2 IPUs over that on N, of N / 2. Work and memory of an IPU shrink with N,
  what it sends does not, and a rail carries a byte while its tiles do 9,200 operations in f16;
* **fullest**: bytes on the fullest tile, of 637,808;
* AR: all-reduce, AG: all-gather, RS: reduce-scatter, A2A: all-to-all, CP: collective-permute; one
  in a loop counts once.
"""


@dataclass(frozen=True)
class Cost:
    """What a program costs on so many IPUs."""

    ipus: int
    collectives: str
    sent_bytes: float
    theory_bytes: float
    cycles: int
    link_cycles: int
    fullest_bytes: int
    seconds: float


def cost(row: Row, ipus: int) -> Cost:
    """Return what a program costs on so many IPUs."""
    text = row.text(ipus)
    began = time.process_time()
    program = hloipu.compile(text, over_memory="allow", cache=False)
    seconds = time.process_time() - began
    module = partitioned(parse(text)).module
    profile = program.profile()
    return Cost(
        ipus,
        _collectives(module),
        traffic_of(module, ipus).byte_count,
        row.sent_bytes(ipus),
        profile.device_cycles,
        sum(profile.links.values()),
        int(max(ipu.needed_bytes.max() for ipu in program.memory_plan.ipus)),
        seconds,
    )


def _collectives(module: Module) -> str:
    counts = Counter(
        instruction.opcode
        for c in module.computations
        for instruction in c.instructions
        if instruction.opcode in COLLECTIVES
    )
    return ", ".join(f"{n} {_SHORT.get(name, name)}" for name, n in sorted(counts.items())) or "-"


def lines(row: Row, costs: list[Cost]) -> Iterator[str]:
    """Yield a program's table."""
    yield f"## {row.name}"
    yield ""
    yield f"{row.what[0].upper()}{row.what[1:]}. To send: {row.why}."
    yield ""
    yield "| IPUs | collectives | sent | of theory | cycles | links | scaling | fullest |"
    yield "|---|---|---|---|---|---|---|---|"
    first = costs[0]
    for each in costs:
        theory = f"{each.sent_bytes / each.theory_bytes:.2f}" if each.theory_bytes else "-"
        scaling = first.cycles * first.ipus / (each.cycles * each.ipus)
        yield (
            f"| {each.ipus} | {each.collectives} | {each.sent_bytes:,.0f} | {theory} "
            f"| {each.cycles:,} | {each.link_cycles / each.cycles:.0%} | {scaling:.0%} "
            f"| {each.fullest_bytes:,} |"
        )
    yield ""


def main() -> int:
    """Print the tables that are asked for, or write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="programs whose names have this text")
    parser.add_argument("--ipus", default=",".join(map(str, COUNTS)))
    parser.add_argument("--page", type=Path, help="write the page to this file")
    asked = parser.parse_args()
    page = [_PAGE]
    for row in rows():
        if asked.only in row.name:
            costs = [cost(row, int(n)) for n in asked.ipus.split(",")]
            page += lines(row, costs)
            print("\n".join(lines(row, costs)), flush=True)
            print(f"{sum(each.seconds for each in costs):.0f} s")
    if asked.page:
        asked.page.write_text("\n".join(page).rstrip() + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
