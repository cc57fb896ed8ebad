"""Kill training runs that keep checkpoints, and compare their ends with runs left alone.

    python -m tools.kill_resume [--kills N] [--steps N] [--seed S] [--kinds K,…] [--signals S,…]

The kinds of runs: `hloipu run` in a loop, with micro-batches, with stages, with replicas, with all
of them; and `Trainer.fit` with a callback that saves the state, plain and with stages. Each trial
starts with an empty folder and gets a signal (KILL, TERM, INT) at a moment drawn from the whole
run: one in five while it starts, the others a little after as many steps as were drawn, one in four
as soon as a checkpoint is being written. Then it is resumed to its end. All arrays of state and
results must be bit for bit those of the run that was left alone; the folder must hold the
checkpoint and nothing else. What the outfeed gives after the resumption must be the end of what it
gives without.
"""

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import hloipu
from hloipu_runtime.kernels.core.storage import user_dtype
from hloipu_runtime.session.host_parts import load_checkpoint

ROOT = Path(__file__).parents[1]
STEP = ROOT / "hlo_samples" / "mnist_train_step.hlo"
CHECKPOINT = "checkpoint.hloipu"
IN_A_RUN = 5
EVERY = 10
IN_STARTS = 5
"""One in so many signals comes while the run starts."""
LIMIT_SECONDS = 120.0

CUTS: Mapping[str, Mapping[str, int]] = {
    "run": {},
    "run-micro-batches": {"micro_batches": 3},
    "run-stages": {"stages": 2, "micro_batches": 2, "ipus": 2},
    "run-replicas": {"replicas": 2, "ipus": 2},
    "run-all": {"stages": 2, "micro_batches": 2, "replicas": 2, "ipus": 4},
    "fit": {},
    "fit-stages": {"stages": 2, "micro_batches": 2, "ipus": 2},
}
"""Kind of run -> how its step is cut."""
SIGNALS = {"KILL": signal.SIGKILL, "TERM": signal.SIGTERM, "INT": signal.SIGINT}

_CHILD = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start background jobs without
"""
_RUN = _CHILD + "from hloipu.cli import main\nmain()\n"
_FIT = _CHILD + "from tools.kill_resume import fit\nfit(sys.argv[1])\n"


@dataclass(frozen=True)
class Job:
    """Training runs of one kind."""

    folder: Path
    kind: str
    steps: int
    file: str = str(STEP)
    feed: tuple[int, ...] = (4, 5)
    target: str = "gc200"

    def command(self, out: Path, checkpoints: Path | None) -> list[str]:
        """Return the command; it goes on from a checkpoint if there is one."""
        losses, cache = str(out.with_suffix(".loss.npz")), str(self.folder / "cache")
        cut = CUTS[self.kind]
        if self.kind.startswith("fit"):
            given = FitRequest(
                self.file, self.feed, self.steps, str(out), losses,
                str(checkpoints / CHECKPOINT) if checkpoints else None,
                {"target": self.target, "cache_dir": cache, **cut},
            )  # fmt: skip
            return [sys.executable, "-c", _FIT, json.dumps(asdict(given))]
        kept = ["--checkpoint", str(checkpoints), "--every", str(EVERY), "--resume"]
        return [
            sys.executable, "-c", _RUN, "run", self.file, "--target", self.target,
            "--loop", str(IN_A_RUN), "--feed", f"data={','.join(map(str, self.feed))}",
            "--outfeed", "loss", "--random", "1", "--infeed", "data=synthetic",
            "--steps", str(self.steps), "--cache-dir", cache, "--no-progress",
            "-o", str(out), "--outfeed-to", f"loss={losses}",
            *(f"--{name.replace('_', '-')}={count}" for name, count in cut.items()),
            *(kept if checkpoints else []),
        ]  # fmt: skip

    def start(self, out: Path, checkpoints: Path | None) -> subprocess.Popen[str]:
        """Start a run."""
        return subprocess.Popen(
            self.command(out, checkpoints),
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )


@dataclass(frozen=True)
class FitRequest:
    """What `fit` is asked for, as data for another process."""

    file: str
    feed: tuple[int, ...]
    steps: int
    out: str
    losses: str
    checkpoint: str | None
    options: dict[str, Any]


class SaveState(hloipu.Callback):
    """Saves the trainer's state whenever the host has the device again."""

    def __init__(self, trainer: hloipu.Trainer, path: Path) -> None:
        self.trainer, self.path = trainer, path

    def on_execution_end(self, step: int, logs: Mapping[str, float]) -> None:
        """Write the checkpoint anew."""
        self.trainer.save_state(self.path)


def fit(asked: str) -> None:
    """Train to the end, from the state of a checkpoint if there is one; write state and losses."""
    request = FitRequest(**json.loads(asked))
    entry = hloipu.parse(Path(request.file)).entry
    shapes: list[Any] = [entry.instructions[at].shape for at in entry.parameters]

    def draw(seed: int, numbers: Sequence[int]) -> list[Any]:
        generator = np.random.default_rng(seed)
        return [
            np.float32(0.1) * generator.standard_normal(shape.dimensions).astype(np.float32)
            if shape.element_type.is_float
            else generator.integers(0, 10, shape.dimensions, user_dtype(shape.element_type.name))
            for shape in (shapes[n] for n in numbers)
        ]

    trainer = hloipu.Trainer(
        request.file,
        state=draw(0, [n for n in range(len(shapes)) if n not in request.feed]),
        feeds={"data": tuple(request.feed)},
        metrics=["loss"],
        **request.options,
    )
    saving: list[hloipu.Callback] = []
    if request.checkpoint:
        place = Path(request.checkpoint)
        place.parent.mkdir(exist_ok=True)
        if place.exists():
            trainer.load_state(place)
        saving = [SaveState(trainer, place)]
    given = trainer.steps * request.options.get("micro_batches", 1)
    losses: Any = []
    if left := request.steps - trainer.steps:
        losses = trainer.fit(
            lambda n: tuple(draw(1 + given + n, request.feed)),
            steps_per_epoch=left,
            steps_per_execution=IN_A_RUN,
            callbacks=saving,
            progress=False,
        ).steps["loss"]
    arrays: Any = trainer.state
    np.savez(request.out, **arrays)
    np.savez(request.losses, loss=np.asarray(losses))


def finish(job: Job, out: Path, checkpoints: Path | None) -> str:
    """Run to the end; return the digest of state and results."""
    with job.start(out, checkpoints) as run:
        _, said = run.communicate(timeout=LIMIT_SECONDS)
    if run.returncode:
        raise RuntimeError(f"{job.kind}: exit status {run.returncode}: {said[-500:]}")
    return digest(out)


def digest(path: Path) -> str:
    """Return the digest of all arrays of a file with their names and types."""
    sha256 = hashlib.sha256()
    with np.load(path) as arrays:
        for name in sorted(arrays.files):
            array = arrays[name]
            sha256.update(f"{name} {array.dtype} {array.shape} ".encode())
            sha256.update(np.ascontiguousarray(array).tobytes())
    return sha256.hexdigest()


@dataclass(frozen=True)
class Moment:
    """When a run gets which signal: after so many steps are kept, and then so many seconds."""

    signal: str
    steps: int
    seconds: float
    writing: bool
    """Wait for a checkpoint that is being written, besides."""


def moments(
    signals: Sequence[str], steps: int, start_seconds: float, draw: Random
) -> Iterator[Moment]:
    """Draw when to send each; a run takes so many seconds to its first checkpoint."""
    parts = draw.sample(range(len(signals)), len(signals))
    for number, (name, part) in enumerate(zip(signals, parts, strict=True)):
        if number % IN_STARTS == IN_STARTS - 1:
            yield Moment(name, 0, draw.random() * start_seconds, writing=False)
            continue
        after = int((part + draw.random()) * (steps - EVERY) / len(signals))
        yield Moment(name, after, draw.random() * 0.02, writing=number % 4 == 3)


def stop(job: Job, folder: Path, moment: Moment) -> tuple[str, list[str]]:
    """Start a run and send it a signal; return what it was at, and what is wrong with its end."""
    kept = folder / "kept"
    with job.start(folder / "out.npz", kept) as run:
        limit = time.monotonic() + LIMIT_SECONDS
        while run.poll() is None and steps_kept(kept) < moment.steps and time.monotonic() < limit:
            time.sleep(0.002)
        time.sleep(moment.seconds)
        while run.poll() is None and moment.writing and time.monotonic() < limit:
            if unfinished(kept):
                break
        at = "writing" if unfinished(kept) else "between" if steps_kept(kept) else "starting"
        run.send_signal(SIGNALS[moment.signal])
        _, said = run.communicate(timeout=LIMIT_SECONDS)
    if run.returncode == 0:
        return "had ended", []
    faults = []
    if moment.signal == "INT":  # it ends by itself, so it clears up
        faults += [f"{name} is left at once" for name in unfinished(kept)]
        if job.kind.startswith("run"):
            faults += [f"exit status {run.returncode}"] * (run.returncode != 130)
            faults += ["a traceback"] * ("Traceback" in said)
    elif run.returncode != -SIGNALS[moment.signal]:
        faults.append(f"exit status {run.returncode}: {said[-200:]}")
    return at, faults


def steps_kept(folder: Path) -> int:
    """Return the steps that the checkpoint of a folder is good for."""
    place = folder / CHECKPOINT
    return load_checkpoint(place).steps if place.exists() else 0


def unfinished(folder: Path) -> list[str]:
    """Return what a folder of checkpoints holds besides the checkpoint."""
    try:
        return [name for name in os.listdir(folder) if name != CHECKPOINT]
    except FileNotFoundError:
        return []


def trial(job: Job, number: int, moment: Moment, wanted: str) -> tuple[str, list[str]]:
    """Stop a run at a moment and resume it; return what it was at, and what is wrong."""
    folder = job.folder / f"trial{number}"
    folder.mkdir()
    at, faults = stop(job, folder, moment)
    done = steps_kept(folder / "kept")
    if finish(job, folder / "out.npz", folder / "kept") != wanted:
        faults.append("another end")
    faults += [f"{name} is left" for name in unfinished(folder / "kept")]
    left = sorted({*os.listdir(folder)} - {"kept", "out.npz", "out.loss.npz"})
    faults += [f"{name} is left" for name in left]
    losses = job.folder / "whole.loss.npz"
    with np.load(losses) as whole, np.load(folder / "out.loss.npz") as rest:
        first = done * len(whole["loss"]) // job.steps
        given = rest["loss"] if done < job.steps else np.empty(0, np.float32)
        if given.tobytes() != whole["loss"][first:].tobytes():
            faults.append("other losses")
    return f"{job.kind:<18} {moment.signal:<4} {at}, {done} steps kept", faults


def start_of(job: Job) -> float:
    """Return the seconds that a run takes to its first checkpoint."""
    folder = job.folder / "start"
    folder.mkdir()
    begin = time.monotonic()
    with job.start(folder / "out.npz", folder / "kept") as run:
        while run.poll() is None and not steps_kept(folder / "kept"):
            time.sleep(0.002)
        run.kill()
    return time.monotonic() - begin


def prove(job: Job, signals: Sequence[str], draw: Random, workers: int) -> Iterator[list[str]]:
    """Send each signal to a run of its own and resume that; yield what is wrong with each."""
    job.folder.mkdir(exist_ok=True)
    wanted = finish(job, job.folder / "whole.npz", None)
    start_seconds = start_of(job) if len(signals) >= IN_STARTS else 0.0
    drawn = [*moments(signals, job.steps, start_seconds, draw)]
    with ThreadPoolExecutor(workers) as pool:
        trials = pool.map(lambda n: trial(job, n, drawn[n], wanted), range(len(signals)))
        for at, faults in trials:
            print(f"{at}: {'; '.join(faults) or 'the same end'}", flush=True)
            yield faults


def main(arguments: Sequence[str] | None = None) -> int:
    """Stop, resume, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=6, help="of each kind of run")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kinds", default=",".join(CUTS))
    parser.add_argument("--signals", default=",".join(SIGNALS))
    asked = parser.parse_args(arguments)
    signals = (asked.signals.split(",") * asked.kills)[: asked.kills]
    draw = Random(asked.seed)
    ends: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in asked.kinds.split(","):
            job = Job(Path(folder, kind), kind, asked.steps)
            ends += prove(job, signals, draw, asked.workers)
    bad = sum(map(bool, ends))
    print(f"{len(ends)} runs: {len(ends) - bad} ends bit for bit the same, {bad} others")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
