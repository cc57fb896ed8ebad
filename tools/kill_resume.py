"""Kill a run that keeps checkpoints, again and again, and compare its end with one left alone.

    python -m tools.kill_resume [--kills N] [--steps N] [--seed S] [--file STEP.hlo --feed 4,5]

`hloipu run` trains a step in a loop, on the command line, and writes a checkpoint every few runs.
Each trial starts with an empty folder, is killed (signal 9) at a moment drawn from the whole run,
start and end included, or while a checkpoint is being written, and is resumed to its end. The file
of state and results must be the same, byte for byte, as that of the run that nobody killed; the
folder must hold the checkpoint and nothing else. What the outfeed gives after the resumption must
be the end of what it gives without.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
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


def kill(job: Job, folder: Path, seconds: float, *, writing: bool) -> str:
    """Start, kill after so many seconds, or then as soon as a file is written; say what was on."""
    with subprocess.Popen(
        job.command(folder / "out.npz", folder / "kept"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as run:
        begin = time.monotonic()
        while run.poll() is None and time.monotonic() - begin < seconds:
            time.sleep(0.001)
        while writing and run.poll() is None and not unfinished(folder / "kept"):
            if time.monotonic() - begin > LIMIT_SECONDS:
                break
        ended = run.poll() is not None
        run.kill()
    if ended:
        return "had ended"
    if unfinished(folder / "kept"):
        return "while writing"
    return "between checkpoints" if (folder / "kept" / CHECKPOINT).exists() else "before the first"


def unfinished(folder: Path) -> list[str]:
    """Return what a folder of checkpoints holds besides the checkpoint."""
    try:
        return [name for name in os.listdir(folder) if name != CHECKPOINT]
    except FileNotFoundError:
        return []


def trial(job: Job, number: int, moment: float, wanted: str, losses: Path) -> tuple[str, list[str]]:
    """Kill a run at a moment and resume it; return what it was at, and what is wrong."""
    folder = job.folder / f"trial{number}"
    folder.mkdir()
    at = kill(job, folder, moment, writing=number % 4 == 3)
    place, done = folder / "kept" / CHECKPOINT, 0
    if place.exists():
        done = load_checkpoint(place).steps
    found = finish(job, folder / "end.npz", folder / "kept")
    faults = [] if found == wanted else ["another end"]
    faults += [f"{name} is left" for name in unfinished(folder / "kept")]
    with np.load(losses) as whole, np.load(folder / "end.loss.npz") as rest:
        given = rest["loss"] if done < job.steps else np.empty(0, np.float32)
        if given.tobytes() != whole["loss"][done:].tobytes():
            faults.append("other losses")
    return f"{at}, {done} steps kept", faults


def moments(kills: int, seconds: float, seed: int) -> Iterator[float]:
    """Draw when to kill: one moment in each of so many parts of a run of so many seconds."""
    draw = Random(seed)
    for number in draw.sample(range(kills), kills):
        yield (number + draw.random()) * seconds / kills


def prove(job: Job, kills: int, seed: int, workers: int) -> int:
    """Kill and resume so often; return how many trials found something wrong."""
    losses = job.folder / "whole.loss.npz"
    finish(job, job.folder / "first.npz", None)  # compiles
    begin = time.monotonic()
    wanted = finish(job, job.folder / "whole.npz", None)
    finish(job, job.folder / "kept.npz", job.folder / "kept")
    seconds = (time.monotonic() - begin) / 2 * workers
    print(f"{job.steps} steps, {seconds / workers:.1f} s for a run left alone; end {wanted[:12]}")
    bad = 0
    with ThreadPoolExecutor(workers) as pool:
        drawn = list(moments(kills, seconds, seed))
        trials = pool.map(lambda n: (n, *trial(job, n, drawn[n], wanted, losses)), range(kills))
        for number, at, faults in trials:
            bad += bool(faults)
            verdict = "; ".join(faults) or "the same end"
            print(f"{number:>3}  killed at {drawn[number]:6.2f} s, {at}: {verdict}", flush=True)
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
