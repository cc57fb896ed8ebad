"""Repeat every fault of host streams on a busy processor, then soak bounded queues.

    python -m tools.stress_streams [--times N] [--soak ELEMENTS] [--burners N] [--seed S]

Cases are those of the tests, in a new order each time. Ends with 1 if any ended late, with another
error, or left a thread or a file, or if the soak's memory grew by more than 20 MiB.
"""

import argparse
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence

from tests.support.heartbeat import Heartbeat
from tests.support.stream_cases import CASES
from tests.support.stream_trial import repeat_case
from tools.stress_streams.soak import GROWTH_LIMIT_BYTES, soak

BURN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"
"""Keeps a core busy until whoever started it is gone."""


def repeated(times: int, seed: int) -> Counter[str]:
    """Run all cases; return the failures, counted."""
    with Heartbeat() as heart:
        return _repeated(times, seed, heart)


def _repeated(times: int, seed: int, heart: Heartbeat) -> Counter[str]:
    failures: Counter[str] = Counter()
    order = list(CASES)
    draw = random.Random(seed)
    began = time.monotonic()
    for number in range(times):
        draw.shuffle(order)
        for case in order:
            try:
                repeat_case(case, heart.stalled_since)
            except AssertionError as error:
                failures[str(error)] += 1
                print(f"round {number}: {error}", flush=True)
        if (number + 1) % 10 == 0 or number + 1 == times:
            seconds = time.monotonic() - began
            print(
                f"{number + 1} of {times} rounds of {len(CASES)} cases, "
                f"{failures.total()} failures, {seconds:.0f} s; {heart}",
                flush=True,
            )
    return failures


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print what happened."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--soak", type=int, default=100_000)
    parser.add_argument("--burners", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    # A shell starts jobs in the background with interrupts ignored; some cases are interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    burners = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(asked.burners)]
    try:
        failures = repeated(asked.times, asked.seed)
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    growth = soak(asked.soak)
    print(
        f"soak: {asked.soak} elements through bounded queues, memory grew {growth / 2**20:.1f} MiB"
    )
    return 1 if failures or growth > GROWTH_LIMIT_BYTES else 0


if __name__ == "__main__":
    sys.exit(main())
