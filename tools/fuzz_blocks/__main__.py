"""Draw blocks of networks at real sizes, and compile, prove and price each.

    python -m tools.fuzz_blocks [--cases N] [--seed S] [--workers N] [--case SEED] [--keep FOLDER]

Projections, attention, mixtures of experts, norms, embeddings, losses, caches, convolutions and
loops over layers, with gradients and as training steps, for every machine. A block is a valid
program: a program that is not proved, an untyped exception and a typed refusal are all failures.
Each is printed with its seed, and its text is kept. Ends with 1 where there is any.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from tools.fuzz_blocks.cases import case
from tools.fuzz_blocks.draws import SCALES
from tools.fuzz_blocks.trial import FAILURES, LATE, Outcome, judged, lost
from tools.mapping import add_where, mapped, positive, where_of

SECONDS = 30
"""Longest that one case may take; the usual one takes less than one."""


def reported(found: Iterable[Outcome], folder: Path, scale: str) -> int:
    """Print failures as they come, keep their texts, and sum up; return how many there are."""
    counts: Counter[str] = Counter()
    times: list[float] = []
    for x in found:
        counts[x.kind] += 1
        times.append(x.seconds)
        if x.failed or x.kind == LATE:
            print(f"{x.kind}: {x.name} ({x.seconds:.1f} s): {x.detail[:400]}", flush=True)
        if x.failed:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{scale}_{x.seed}.hlo"
            text = case(x.seed, SCALES[scale]).text
            path.write_text(f"// {x.name}\n{text}", encoding="utf-8")
    times.sort()
    middle = times[len(times) // 2] if times else 0.0
    print(f"{len(times)} cases, {middle:.2f} s in the middle, {sum(times):.0f} s in all")
    print(", ".join(f"{k}: {v}" for k, v in counts.most_common()))
    return sum(counts[k] for k in counts if k in FAILURES)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="tools.fuzz_blocks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    add_where(parser, workers=0)
    parser.add_argument("--case", type=int, action="append", help="only this one; repeatable")
    parser.add_argument("--scale", choices=sorted(SCALES), default="real")
    parser.add_argument("--seconds", type=positive, default=SECONDS, help="longest of one case")
    parser.add_argument("--keep", type=Path, default=Path("out/blocks"), help="failures go here")
    parser.add_argument("--text", action="store_true", help="print the text of --case, and stop")
    asked = parser.parse_args(arguments)
    seeds = asked.case or range(asked.seed, asked.seed + asked.cases)
    if asked.text:
        for made in (case(seed, SCALES[asked.scale]) for seed in seeds):
            print(f"// {made.name}\n{made.text}")
        return 0
    judge = partial(judged, scale=asked.scale, seconds=asked.seconds)
    found = mapped(judge, seeds, partial(lost, scale=asked.scale), where_of(asked))
    return 1 if reported(found, asked.keep, asked.scale) else 0


if __name__ == "__main__":
    sys.exit(main())
