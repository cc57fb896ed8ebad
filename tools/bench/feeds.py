"""Time a training job of many steps: with feeds and without, against XLA:CPU.

    python -m tools.bench feeds [--steps N] [--blocks N] [--json FILE]

The job is a perceptron of 784-128-10 under SGD, batches of 32. With feeds, the device does 10 steps
for each call of the host; without, the host hands over each batch with a call that does one step,
and takes the loss from it: no queues at all. A third way calls for each step as well, but feeds
from queues: against the first, what differs is the calls alone. XLA:CPU does the same with one
dispatch a step, and with `lax.scan` over 10 steps a dispatch. All sides run on one core of this
process and take turns, block by block; every side has its own copy of the weights and takes the
same batches. Losses are read on the host in all five. Compilation is left out of the figures, and
printed; ratios are medians over the blocks of processor time.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import hloipu.jax as on_device
from hloipu import compile as compile_hlo
from hloipu.cli.commands.compare import comparison
from hloipu_runtime.machine.transfers import host_call
from hloipu_runtime.session.queues import spec_of_queue
from hloipu_runtime.session.session import Session
from hloipu_runtime.streams.arrays import from_arrays
from hloipu_runtime.streams.host import StreamHost
from hloipu_runtime.streams.infeed import InfeedQueue
from hloipu_runtime.streams.outfeed import OutfeedQueue
from hloipu_runtime.streams.source import Source

BATCH = 32
BATCHES = 200
"""Different ones; they come again and again."""
STEPS_PER_EXECUTION = 10
DISPATCH_TARGET, SCAN_TARGET = 1.5, 3.0
"""Most times of XLA's that the job with feeds may take."""
QUEUE_TARGET = 0.05
"""Most of a step that the queues may take."""
Weights = dict[str, Any]


@dataclass
class SideOfJob:
    """One way to do the job."""

    name: str
    block: Callable[[int], None]
    """Does so many steps."""
    compile_seconds: float = 0.0
    seconds: list[float] = field(default_factory=list)
    """Of each block."""
    processor_seconds: list[float] = field(default_factory=list)


def step(weights: Weights, images: Any, labels: Any) -> tuple[Weights, Any]:
    """Return the weights after one step, and the loss."""

    def loss_of(weights: Weights) -> Any:
        hidden = jax.nn.relu(images @ weights["w1"] + weights["b1"])
        scores = jax.nn.log_softmax(hidden @ weights["w2"] + weights["b2"])
        return -jnp.mean(jnp.take_along_axis(scores, labels[:, None], 1))

    loss, gradients = jax.value_and_grad(loss_of)(weights)
    return jax.tree.map(lambda w, g: w - 0.05 * g, weights, gradients), loss


def first_weights() -> Weights:
    """Return weights to begin with."""
    rng = np.random.default_rng(0)
    return {
        "w1": rng.normal(0, 0.05, (784, 128)).astype(np.float32),
        "b1": np.zeros(128, np.float32),
        "w2": rng.normal(0, 0.1, (128, 10)).astype(np.float32),
        "b2": np.zeros(10, np.float32),
    }


def made_up_data() -> tuple[Any, Any]:
    """Return images and labels."""
    rng = np.random.default_rng(1)
    count = BATCH * BATCHES
    images = rng.random((count, 784), np.float32)
    return images, rng.integers(0, 10, count).astype(np.int32)


def batches() -> Source:
    """Return the batches without an end."""
    return from_arrays(made_up_data()).batch(BATCH).wrap()


def ours(name: str, loop: int, opened: ExitStack) -> tuple[SideOfJob, Session]:
    """Return our side with so many steps in an execution."""
    began = time.perf_counter()
    images, labels = made_up_data()
    made = on_device.compile(
        step, first_weights(), images[:BATCH], labels[:BATCH], donate=0, loop=loop,
        outfeed=("loss",), cache=False,
    )  # fmt: skip
    session = opened.enter_context(made.session(infeeds={"data": batches()}))
    queue = session.stream("loss")

    def block(steps: int) -> None:
        for _ in range(steps // loop):
            session.run(loop)
            for arrived in queue.drain():
                float(arrived.element)

    side = SideOfJob(name, block)
    block(loop)
    side.compile_seconds = time.perf_counter() - began
    return side, session


def without_queues(name: str, opened: ExitStack) -> tuple[SideOfJob, Session]:
    """Return our side that is handed each batch by the host, one step a call."""
    began = time.perf_counter()
    images, labels = made_up_data()
    lowered = on_device.lower(step, first_weights(), images[:BATCH], labels[:BATCH], donate=0)
    given = [number for argument in (1, 2) for number in lowered.parameters[argument]]
    program = compile_hlo(lowered.text, role={str(n): "call" for n in given}, cache=False)
    session = opened.enter_context(program.session(state=lowered.state))
    data = _dispatches(1)

    def block(steps: int) -> None:
        for batch in islice(data, steps):
            (loss,) = session.run(inputs=dict(zip(given, batch, strict=True))).outputs
            float(loss)

    block(1)
    return SideOfJob(name, block, time.perf_counter() - began), session


def xla(name: str, per_dispatch: int) -> SideOfJob:
    """Return XLA's side; more than one step a dispatch are a `lax.scan`."""
    began = time.perf_counter()

    def scanned(weights: Weights, images: Any, labels: Any) -> Any:
        return lax.scan(lambda w, data: step(w, *data), weights, (images, labels))

    run = jax.jit(step if per_dispatch == 1 else scanned, donate_argnums=0)
    weights = jax.tree.map(jnp.asarray, first_weights())
    data = _dispatches(per_dispatch)

    def block(steps: int) -> None:
        nonlocal weights
        for images, labels in islice(data, steps // per_dispatch):
            weights, loss = run(weights, images, labels)
            np.asarray(loss)

    block(per_dispatch)
    return SideOfJob(name, block, time.perf_counter() - began)


def _dispatches(count: int) -> Iterator[tuple[Any, Any]]:
    images, labels = made_up_data()
    size = BATCH * count
    lead = (BATCH,) if count == 1 else (count, BATCH)
    return cycle(
        (images[at : at + size].reshape(*lead, 784), labels[at : at + size].reshape(lead))
        for at in range(0, len(images), size)
    )


def queue_seconds(session: Session, steps: int) -> float:
    """Return the time of the queues alone, for so many steps."""
    program = session.program
    made: list[Any] = []
    for queue in program.queues:
        streams = tuple(port.stream for port in queue.streams)
        spec = spec_of_queue(queue)
        if queue.to_device:
            made.append(InfeedQueue(queue.name, spec, batches(), streams=streams))
        else:
            made.append(OutfeedQueue(queue.name, "all", spec, streams=streams))
    loss = np.zeros((), np.float32)
    with StreamHost(made[:1], made[1:]) as host, host.running():
        began = time.process_time()
        for _ in range(steps):
            host.take("data.0")
            host.take("data.1")
            host.give("loss.0", loss)
        return time.process_time() - began


def measured(steps: int, blocks: int) -> dict[str, Any]:
    """Do the job on all sides; return the figures."""
    with ExitStack() as opened:
        fed, fed_session = ours("with feeds, 10 steps a call", STEPS_PER_EXECUTION, opened)
        given, given_session = without_queues("without, one step a call", opened)
        single, single_session = ours("from queues, one step a call", 1, opened)
        sessions = (fed_session, given_session, single_session)
        sides = [fed, given, single, xla("XLA, one dispatch a step", 1),
                 xla("XLA, lax.scan over 10 steps", STEPS_PER_EXECUTION)]  # fmt: skip
        before = [_cycles(session) for session in sessions]
        for _ in range(blocks):
            for side in sides:
                began, worked = time.perf_counter(), time.process_time()
                side.block(steps // blocks)
                side.seconds.append(time.perf_counter() - began)
                side.processor_seconds.append(time.process_time() - worked)
        after = [_cycles(session) for session in sessions]
        profiles = [session.profile() for session in sessions]
        machine = fed_session.costs.machine
        queues = queue_seconds(fed_session, min(steps, 2000)) / min(steps, 2000)
    cycles = [now[0] - then[0] for now, then in zip(after, before, strict=True)]
    host = [now[1] - then[1] for now, then in zip(after, before, strict=True)]
    calls = steps - steps // STEPS_PER_EXECUTION
    clock_hz = float(machine.chip.clock_hz)
    return {
        "schema": "hloipu.bench-feeds/2",
        "steps": steps,
        "load": os.getloadavg()[0],
        "sides": [asdict(side) | {"block": None} for side in sides],
        "cycles": cycles,
        "device_runs": [p.runs for p in profiles],
        "device_steps": [p.calls["steps"] for p in profiles],
        "loop_turns": [sum(loop.turns for loop in p.loops) for p in profiles],
        "simulated_seconds": [c / clock_hz for c in cycles],
        "calls_saved": calls,
        "round_trip_cycles": host_call(machine).cycles,
        "cycles_per_call": (cycles[2] - cycles[0]) / calls,
        "host_cycles_per_call": (host[2] - host[0]) / calls,
        "microseconds_per_host_call": 1e6 * (host[2] - host[0]) / calls / clock_hz,
        "over_dispatch": _ratio(fed, sides[3]),
        "over_scan": _ratio(fed, sides[4]),
        "without_over_with": _ratio(given, fed),
        "queue_share": queues * steps / sum(fed.processor_seconds),
        "profiles": [profile.record() for profile in profiles],
    }


def _cycles(session: Session) -> tuple[int, int]:
    """Return the simulated cycles so far, and those of the host among them."""
    return session.cycles, session.profile().by_bucket["host"]


def _ratio(first: SideOfJob, second: SideOfJob) -> float:
    """Return the median over blocks of processor time, which others' load changes least."""
    pairs = zip(first.processor_seconds, second.processor_seconds, strict=True)
    return statistics.median(a / b for a, b in pairs)


def shown(found: dict[str, Any]) -> str:
    """Return the figures as text."""
    heads = f"{'wall s':>10}{'processor s':>13}{'compile s':>11}{'simulated s':>13}"
    lines = [f"{found['steps']} steps, load {found['load']:.2f}", f"{'':<32}{heads}"]
    simulated = [f"{s:>13.4f}" for s in found["simulated_seconds"]] + ["", ""]
    round_trips = found["calls_saved"] * found["round_trip_cycles"]
    lines += [
        f"{side['name']:<32}{sum(side['seconds']):>10.2f}{sum(side['processor_seconds']):>13.2f}"
        f"{side['compile_seconds']:>11.2f}{time_}"
        for side, time_ in zip(found["sides"], simulated, strict=True)
    ]
    first, second, _ = found["simulated_seconds"]
    saved = found["cycles"][2] - found["cycles"][0]
    with_feeds, without, _ = found["profiles"]
    lines += [
        f"without feeds over with: {found['without_over_with']:.2f} in processor time, "
        f"{second / first:.2f} in simulated time",
        f"{found['calls_saved']:,} calls saved, the queues the same: {saved:,} cycles, which are "
        f"{'exactly' if saved == round_trips else 'NOT'} {found['calls_saved']:,} round trips of "
        f"{found['round_trip_cycles']:,} cycles ({found['microseconds_per_host_call']:g} us each)",
        "",
        "the profiles, one call before the measurement included:",
        comparison(with_feeds, without, names=("with feeds", "without"), most_rows=5),
        "",
        f"with feeds over XLA's dispatch: {found['over_dispatch']:.2f} (target {DISPATCH_TARGET})",
        f"with feeds over XLA's scan: {found['over_scan']:.2f} (target {SCAN_TARGET})",
        f"queues: {100 * found['queue_share']:.1f} % of a step (target {100 * QUEUE_TARGET:g} %)",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    options = parser.parse_args(arguments)
    unit = options.blocks * STEPS_PER_EXECUTION
    if options.steps < unit or options.steps % unit:
        print(f"--steps must be a multiple of {unit}", file=sys.stderr)
        return 2
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # before XLA counts cores for threads
    found = measured(options.steps, options.blocks)
    print(shown(found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
