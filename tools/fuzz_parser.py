"""Read mutants of real dumps and report every traceback, hang, slow case and unplaced error.

    python -m tools.fuzz_parser [--count N] [--whole N] [--seed S] [--dumps FOLDER]...
                                [--workers N] [--scheduler ADDRESS]

Each case is parsed, verified and printed in a process of 1 GiB, at most 2 s of processor time for
each MB. Failing texts are saved under out/fuzz, tracebacks reduced. Ends with 1 if any case failed.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tools.fuzzing import cases, pool
from tools.mapping import add_where, mapped, where_of

ROOT = Path(__file__).resolve().parents[1]
OUT = Path("out/fuzz")


def case_names(count: int, whole: int) -> list[str]:
    """Return the cases to run: `count` mutants of small texts, `whole` of whole dumps."""
    return [f"part {i}" for i in range(count)] + [f"whole {i}" for i in range(whole)]


def save(result: pool.Result, texts: cases.Cases, folder: Path) -> Path:
    """Write a failing text, reduced where it could be, and its case."""
    folder.mkdir(parents=True, exist_ok=True)
    kind, number = result.case.split()
    text = result.repro or texts.text(int(number), whole=kind == "whole")
    path = folder / f"{result.outcome.kind}-{kind}-{number}.hlo"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases and print what happened."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--whole", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    add_where(parser)
    parser.add_argument("--dumps", type=Path, action="append", default=[])
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(arguments)
    given = (ROOT / "hlo_samples", *options.dumps)
    folders = tuple(f.resolve() for f in given if f.is_dir())
    texts = cases.read(options.seed, folders)
    start, kinds, details = time.monotonic(), Counter[str](), Counter[str]()
    slowest: tuple[float, pool.Result | None] = (0.0, None)
    whole = options.whole if texts.dumps else 0
    judge = partial(pool.judged, seed=options.seed, folders=folders)
    where = where_of(options, memory_bytes=pool.MEMORY_BYTES)
    for result in mapped(judge, case_names(options.count, whole), pool.lost, where):
        outcome = result.outcome
        kinds[outcome.kind] += 1
        if outcome.failed:
            key = f"{outcome.kind}: {outcome.detail.partition(':')[0]}"
            details[key] += 1
            if details[key] <= 3:
                path = save(result, texts, options.out)
                print(f"{outcome.kind} {result.case}: {outcome.detail}\n  {path}", flush=True)
        elif outcome.kind == "refused":
            details[outcome.detail] += 1
        share = outcome.seconds / max(result.characters, 250_000) * 1e6
        slowest = max(slowest, (share, result), key=lambda pair: pair[0])
    print(", ".join(f"{count} {kind}" for kind, count in kinds.most_common()))
    for detail, count in details.most_common():
        print(f"  {count:>7} {detail}")
    if slowest[1] is not None:
        print(
            f"slowest: {slowest[0]:.2f} s/MB, {slowest[1].case}, {slowest[1].characters} characters"
        )
    print(f"{time.monotonic() - start:.0f} s")
    return 1 if set(kinds) - {"accepted", "refused"} else 0


if __name__ == "__main__":
    sys.exit(main())
