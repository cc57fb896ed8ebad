"""Load and run forged executables; report every traceback, hang, crash and slow case.

    python -m tools.fuzz_ipux [--count N] [--seed S] [--workers W] [--scheduler ADDRESS]

Files are made from compiled samples by changing their content and putting the digest right. Each is
loaded, proved, planned, estimated and run in a process of 2 GiB. Ends with 1 if any case failed;
failing files are saved under out/fuzz.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tools.fuzz_ipux import cases
from tools.fuzz_ipux.judge import FOLDERS, MEMORY_BYTES, SECONDS, judged
from tools.fuzzing import pool
from tools.mapping import add_where, mapped, where_of

OUT = Path("out/fuzz")


def save(result: pool.Result, files: cases.Cases, folder: Path) -> Path:
    """Write a failing file."""
    folder.mkdir(parents=True, exist_ok=True)
    number = int(result.case.split()[1])
    path = folder / f"{result.outcome.kind}-{number}.ipux"
    path.write_bytes(files.data(number))
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases and print what happened."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    add_where(parser)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(arguments)
    files = cases.read(options.seed, FOLDERS)
    start, kinds, details = time.monotonic(), Counter[str](), Counter[str]()
    names = [f"forged {number}" for number in range(options.count)]
    judge = partial(judged, seed=options.seed)
    where = where_of(options, seconds=SECONDS, memory_bytes=MEMORY_BYTES)
    for result in mapped(judge, names, pool.lost, where):
        outcome = result.outcome
        kinds[outcome.kind] += 1
        key = f"{outcome.kind}: {outcome.detail.partition(': ')[0]}"
        details[key] += 1
        if outcome.failed and details[key] <= 3:
            path = save(result, files, options.out)
            print(f"{outcome.kind} {result.case}: {outcome.detail}\n  {path}", flush=True)
    print(", ".join(f"{count} {kind}" for kind, count in kinds.most_common()))
    for detail, count in details.most_common():
        print(f"  {count:>7} {detail}")
    print(f"{time.monotonic() - start:.0f} s")
    return 1 if set(kinds) - {"accepted", "refused"} else 0


if __name__ == "__main__":
    sys.exit(main())
