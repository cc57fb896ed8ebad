"""One executable run in many threads, with sessions beside it: bits are those of runs alone.

    python -m tools.stress_threads [--threads N] [--runs N] [--sessions N]

Each thread does so many runs. Ends with 1 where a bit differs.
"""

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import hloipu
from hloipu_compiler.interpret.random_inputs import random_arguments

SAMPLES = Path(__file__).parents[1] / "hlo_samples"
NAMES = ("mnist_train_step", "transformer_block_bf16")
LOOPED = SAMPLES / "mnist_train_step.hlo"
INPUTS = 4
"""Different arguments of runs."""


def bits(arrays: Any) -> list[bytes]:
    """Return the bytes of arrays."""
    return [np.asarray(x).tobytes() for x in arrays]


def session_bits(seed: int) -> list[bytes]:
    """Return the bits of the state after a session's 20 steps on data drawn by a seed."""
    arguments = random_arguments(hloipu.verify(LOOPED), seed)
    program = hloipu.compile(LOOPED, loop=4, feed={"data": (4, 5)}, cache=False)
    element = tuple(np.asarray(x) for x in arguments[4:6])
    with program.session(state=arguments[:4], infeeds={"data": lambda _: element}) as session:
        session.run(20)
        return bits(session.state().values())


def differing(name: str, threads: int, runs: int, sessions: int) -> int:
    """Return how many of all runs and sessions give other bits than alone."""
    path = SAMPLES / f"{name}.hlo"
    program = hloipu.compile(path, cache=False)
    given = [random_arguments(hloipu.verify(path), seed) for seed in range(INPUTS)]
    alone = [bits(program.run(*arguments).outputs) for arguments in given]
    states = [session_bits(seed) for seed in range(sessions)]

    def run(thread: int) -> int:
        numbers = [(thread + n) % INPUTS for n in range(runs)]
        return sum(bits(program.run(*given[n]).outputs) != alone[n] for n in numbers)

    with ThreadPoolExecutor(threads) as pool, ThreadPoolExecutor(sessions) as beside:
        kept = [beside.submit(session_bits, seed) for seed in range(sessions)]
        wrong = sum(pool.map(run, range(threads)))
        return wrong + sum(each.result() != states[n] for n, each in enumerate(kept))


def main(arguments: list[str] | None = None) -> int:
    """Run the tool; returns the exit code."""
    parser = argparse.ArgumentParser(prog="tools.stress_threads", description=__doc__)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--runs", type=int, default=200, help="of each thread")
    parser.add_argument("--sessions", type=int, default=4)
    options = parser.parse_args(arguments)
    failed = 0
    for name in NAMES:
        start = time.monotonic()
        wrong = differing(name, options.threads, options.runs, options.sessions)
        failed += wrong
        print(
            f"{name}: {options.threads} threads x {options.runs} runs, {options.sessions} sessions "
            f"beside them: {wrong} differ from runs alone; {time.monotonic() - start:.0f} s",
            flush=True,
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
