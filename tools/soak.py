"""Train for a long time through bounded queues, and weigh the memory.

    python -m tools.soak [--steps N] [--file STEP.hlo --feed 4,5] [--target NAME]

A step keeps its state on the simulated device. A generator makes every batch anew on the thread of
its infeed; another thread reads the losses from an outfeed that holds 64. Memory is what the system
says that the process holds, after each tenth of the steps. Exit status 1: memory grew by more than
20 MiB after the first tenth, threads or files were left, or losses are missing or no numbers.
"""

import argparse
import gc
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import hloipu
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.session.queues import spec_of_queue
from hloipu_runtime.streams.element import Array, ElementSpec
from hloipu_runtime.streams.infeed import InfeedQueue
from hloipu_runtime.streams.made import synthetic
from hloipu_runtime.streams.outfeed import OutfeedQueue
from tools.stress_streams.soak import GROWTH_LIMIT_BYTES, resident_bytes

STEP = Path(__file__).parents[1] / "hlo_samples" / "mnist_train_step.hlo"
STEPS_IN_A_RUN = 50
TENTHS = 10
KEPT_BATCHES = 64
"""Drawn once; each batch is a fresh copy of one of them, as drawing takes longer than a step."""


@dataclass
class Found:
    """What was seen of a run."""

    resident: list[int] = field(default_factory=list)
    """Bytes that the process held after each tenth."""
    seconds: list[float] = field(default_factory=list)
    """From the begin to the end of each tenth."""
    losses: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def growth_bytes(self) -> int:
        """Bytes by which memory grew after the first tenth, at most."""
        return max(self.resident) - self.resident[0]


def batches(spec: ElementSpec) -> Iterator[tuple[Array, ...]]:
    """Make a batch, again and again, each in memory of its own."""
    rows = synthetic(spec).elements()
    drawn = [next(rows) for _ in range(KEPT_BATCHES)]
    number = 0
    while True:
        yield tuple(array.copy() for array in drawn[number % KEPT_BATCHES])
        number += 1


def start_of(program: CompiledProgram) -> dict[str, Array]:
    """Return a state to begin with: small numbers."""
    draw = np.random.default_rng(0)
    variables = ((x.name, program.program.variables[x.variable]) for x in program.program.state)
    return {
        name: (0.05 * draw.standard_normal(each.shape)).astype(np.float32)
        for name, each in variables
    }


def soak(program: CompiledProgram, steps: int) -> Found:
    """Train, and look at what is left."""
    outcome = Found()
    threads, files = set(threading.enumerate()), open_files()
    train(program, steps, outcome)
    if outcome.losses != steps:
        outcome.faults.append(f"{steps} steps gave {outcome.losses} losses")
    left = [thread.name for thread in threading.enumerate() if thread not in threads]
    outcome.faults += [f"a thread is left: {name}" for name in left]
    gc.collect()
    # Fewer are no fault of the run: others' files may be closed meanwhile.
    if open_files() > files:
        outcome.faults.append(f"{files} files were open before and {open_files()} are")
    return outcome


def train(program: CompiledProgram, steps: int, outcome: Found) -> None:
    """Train, reading the losses on another thread."""
    data, loss = (spec_of_queue(queue) for queue in program.program.queues)
    infeed = InfeedQueue("data", data, batches(data), capacity=32)
    outfeed = OutfeedQueue("loss", spec=loss, capacity=64)

    def read() -> None:
        for arrived in outfeed.follow():
            if arrived.number != outcome.losses or not np.isfinite(arrived.element):
                outcome.faults.append(f"loss {outcome.losses} is {arrived}")
            outcome.losses += 1

    reader = threading.Thread(target=read)
    with program.session(
        state=start_of(program), infeeds={"data": infeed}, outfeeds={"loss": outfeed}
    ) as session:
        reader.start()
        began = time.monotonic()
        for tenth in range(TENTHS):
            session.run(steps // TENTHS)
            outcome.resident.append(resident_bytes())
            outcome.seconds.append(time.monotonic() - began)
            print(row(tenth, steps, outcome), flush=True)
    reader.join()


def open_files() -> int:
    """Return how many files the process holds open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def row(tenth: int, steps: int, outcome: Found) -> str:
    """Return the line of one tenth."""
    done, seconds = (tenth + 1) * (steps // TENTHS), outcome.seconds[tenth]
    grown = (outcome.resident[tenth] - outcome.resident[0]) / 2**20
    return (
        f"{done:>9,}  {seconds:>7.1f}  {done / seconds:>8,.0f}  "
        f"{outcome.resident[tenth] / 2**20:>7.1f}  {grown:>+7.1f}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Train and tell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--file", default=str(STEP))
    parser.add_argument("--feed", default="4,5", help="numbers of the parameters that are data")
    parser.add_argument("--target", default="gc200")
    asked = parser.parse_args(arguments)
    feed = tuple(int(number) for number in asked.feed.split(","))
    program = hloipu.compile(
        asked.file,
        loop=STEPS_IN_A_RUN,
        feed={"data": feed},
        outfeed=["loss"],
        target=asked.target,
    )
    whole = STEPS_IN_A_RUN * TENTHS
    print(f"{'steps':>9}  {'s':>7}  {'steps/s':>8}  {'MiB':>7}  {'grown':>7}")
    outcome = soak(program, max(1, asked.steps // whole) * whole)
    for fault in outcome.faults:
        print(fault)
    print(
        f"memory grew by {outcome.growth_bytes / 2**20:.1f} MiB after the first tenth "
        f"(allowed {GROWTH_LIMIT_BYTES / 2**20:.0f}); {len(outcome.faults)} other faults"
    )
    return 1 if outcome.faults or outcome.growth_bytes > GROWTH_LIMIT_BYTES else 0


if __name__ == "__main__":
    sys.exit(main())
