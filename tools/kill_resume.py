"""Kill a run that keeps checkpoints, again and again, and compare its end with one left alone.

    python -m tools.kill_resume [--kills N] [--steps N] [--seed S] [--file STEP.hlo --feed 4,5]

`hloipu run` trains a step in a loop, on the command line, and writes a checkpoint every few runs.
Each trial starts with an empty folder and is killed (signal 9) at a moment drawn from the whole
run: one in five while it starts, the others a little after as many steps as were drawn, one in four
as soon as a checkpoint is being written. Then it is resumed to its end. All arrays of state and
results must be bit for bit those of the run that nobody killed; the folder must hold the checkpoint
and nothing else. What the outfeed gives after the resumption must be the end of what it gives
without.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np

from hloipu_runtime.checkpoint import load_checkpoint

STEP = Path(__file__).parents[1] / "hlo_samples" / "mnist_train_step.hlo"
CHECKPOINT = "checkpoint.hloipu"
IN_A_RUN = 5
EVERY = 10
LIMIT_SECONDS = 120.0


@dataclass(frozen=True)
class Job:
    """A training run on the command line."""

    folder: Path
    file: str
    feed: str
    steps: int

    def command(self, out: Path, checkpoints: Path | None) -> list[str]:
        """Return the command; it goes on from a checkpoint if there is one."""
        kept = ["--checkpoint", str(checkpoints), "--every", str(EVERY), "--resume"]
        return [
            sys.executable, "-m", "hloipu", "run", self.file,
            "--loop", str(IN_A_RUN), "--feed", f"data={self.feed}", "--outfeed", "loss",
            "--random", "1", "--infeed", "data=synthetic", "--steps", str(self.steps),
            "--cache-dir", str(self.folder / "cache"), "--no-progress",
            "-o", str(out), "--outfeed-to", f"loss={out.with_suffix('.loss.npz')}",
            *(kept if checkpoints else []),
        ]  # fmt: skip


def finish(job: Job, out: Path, checkpoints: Path | None) -> str:
    """Run to the end; return the digest of state and results."""
    found = subprocess.run(
        job.command(out, checkpoints), capture_output=True, text=True, timeout=LIMIT_SECONDS
    )
    if found.returncode:
        raise RuntimeError(f"exit status {found.returncode}: {found.stderr[-500:]}")
    return digest(out)


def digest(path: Path) -> str:
    """Return the digest of all arrays of a file with their names and types."""
    found = hashlib.sha256()
    with np.load(path) as arrays:
        for name in sorted(arrays.files):
            array = arrays[name]
            found.update(f"{name} {array.dtype} {array.shape} ".encode())
            found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


@dataclass(frozen=True)
class Moment:
    """When a run is killed: after so many steps are kept, and then so many seconds."""

    steps: int
    seconds: float
    writing: bool
    """Wait for a checkpoint that is being written, besides."""


def moments(kills: int, job: Job, start_seconds: float, seed: int) -> list[Moment]:
    """Draw when to kill; a run takes so many seconds to its first checkpoint."""
    draw = Random(seed)
    parts = draw.sample(range(kills), kills)
    found = []
    for number, part in enumerate(parts):
        if number % 5 == 0:
            found.append(Moment(0, draw.random() * start_seconds, writing=False))
            continue
        steps = int((part + draw.random()) * (job.steps - EVERY) / kills)
        found.append(Moment(steps, draw.random() * 0.02, writing=number % 4 == 3))
    return found


def kill(job: Job, folder: Path, moment: Moment) -> str:
    """Start a run and kill it at a moment; return what it was at."""
    kept = folder / "kept"
    command = job.command(folder / "out.npz", kept)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        limit = time.monotonic() + LIMIT_SECONDS
        while run.poll() is None and steps_kept(kept) < moment.steps and time.monotonic() < limit:
            time.sleep(0.002)
        time.sleep(moment.seconds)
        while run.poll() is None and moment.writing and time.monotonic() < limit:
            if unfinished(kept):
                break
        ended = run.poll() is not None
        run.kill()
    if ended:
        return "had ended"
    if unfinished(kept):
        return "killed while writing"
    return "killed between checkpoints" if steps_kept(kept) else "killed while starting"


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


def trial(
    job: Job, number: int, moment: Moment, wanted: str, losses: Path
) -> tuple[str, list[str]]:
    """Kill a run at a moment and resume it; return what it was at, and what is wrong."""
    folder = job.folder / f"trial{number}"
    folder.mkdir()
    at = kill(job, folder, moment)
    done = steps_kept(folder / "kept")
    found = finish(job, folder / "end.npz", folder / "kept")
    faults = [] if found == wanted else ["another end"]
    faults += [f"{name} is left" for name in unfinished(folder / "kept")]
    with np.load(losses) as whole, np.load(folder / "end.loss.npz") as rest:
        given = rest["loss"] if done < job.steps else np.empty(0, np.float32)
        if given.tobytes() != whole["loss"][done:].tobytes():
            faults.append("other losses")
    return f"{at}, {done} steps kept", faults


def start_of(job: Job) -> float:
    """Return the seconds that a run takes to its first checkpoint."""
    folder = job.folder / "start"
    begin = time.monotonic()
    command = job.command(folder / "out.npz", folder / "kept")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        while run.poll() is None and not steps_kept(folder / "kept"):
            time.sleep(0.002)
        run.kill()
    return time.monotonic() - begin


def prove(job: Job, kills: int, seed: int, workers: int) -> int:
    """Kill and resume so often; return how many trials found something wrong."""
    losses = job.folder / "whole.loss.npz"
    wanted = finish(job, job.folder / "whole.npz", None)
    drawn = moments(kills, job, start_of(job), seed)
    print(f"{job.steps} steps, left alone: {wanted[:12]}")
    bad = 0
    with ThreadPoolExecutor(workers) as pool:
        trials = pool.map(lambda n: trial(job, n, drawn[n], wanted, losses), range(kills))
        for number, (at, faults) in enumerate(trials):
            bad += bool(faults)
            print(f"{number:>3}  {at}: {'; '.join(faults) or 'the same end'}", flush=True)
    return bad


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill, resume, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--file", default=str(STEP))
    parser.add_argument("--feed", default="4,5", help="numbers of the parameters that are data")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder), asked.file, asked.feed, asked.steps)
        bad = prove(job, asked.kills, asked.seed, asked.workers)
    print(f"{asked.kills} kills: {asked.kills - bad} ends bit for bit the same, {bad} others")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
