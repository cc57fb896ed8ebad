"""A child process that times our own reading: `OPERATION PATH` a line, seconds back.

It imports nothing but the compiler, so that its heap is that of a user who reads one dump.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.verify.verifier import verify


def _verified(text: str) -> None:
    verify(parse(text))


def _graph(text: str) -> None:
    for computation in parse(text).computations:
        _ = computation.dataflow


def peak_bytes() -> int:
    """Return the most memory this process has had; `ru_maxrss` would count its parent's."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


OPERATIONS: dict[str, Callable[[str], object]] = {
    "parse": parse,
    "verified": _verified,
    "grammar": lambda text: parse(text, fast=False),
    "graph": _graph,
    "nothing": len,
}


def main() -> int:
    """Serve; `count PATH` and `peak OPERATION PATH` answer with a number of their own."""
    for line in sys.stdin:
        operation, path = line.split(maxsplit=1)
        text = Path(path.strip()).read_text(encoding="utf-8")
        if operation == "count":
            print(parse(text).instruction_count, flush=True)
            continue
        run = OPERATIONS[operation]
        start = time.process_time()
        kept = run(text)
        seconds = time.process_time() - start
        del kept
        print(f"{seconds:.9f} {peak_bytes()}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
