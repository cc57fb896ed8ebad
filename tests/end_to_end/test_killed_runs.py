"""A checkpointed run that is killed at any moment is resumed to the same end, bit for bit."""

import subprocess
import sys
from pathlib import Path
from random import Random
from time import monotonic, sleep

import numpy as np
import pytest

from tests.support.fitted_plane import STEP
from tests.support.sessions import SUMS
from tools.kill_resume import CUTS, SIGNALS, Job, prove

KILLS = 2
STEPS = 600


def command(folder: Path, *options: str) -> list[str]:
    """Return the command of a run that takes some seconds for its checkpoints."""
    return [
        sys.executable, "-m", "hloipu", "run", str(folder / "sums.hlo"), "--target", "tiny",
        "--loop", "3", "--feed", "data=2", "--outfeed", "seen", "--no-cache",
        "--inputs", str(folder / "start.npz"), "--infeed", f"data={folder / 'rows.npy'}",
        "--repeat", "--steps", str(STEPS), *options,
    ]  # fmt: skip


def finish(folder: Path, name: str, *options: str) -> bytes:
    """Run to the end; return the file of results."""
    out = folder / name
    subprocess.run(
        command(folder, "-o", str(out), *options), check=True, capture_output=True, timeout=120
    )
    return out.read_bytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    draw = np.random.default_rng(4)
    np.save(tmp_path / "rows.npy", draw.standard_normal((50, 6)).astype(np.float32))
    np.savez(
        tmp_path / "start.npz",
        a=np.zeros(6, np.float32),
        b=np.int32(0),
        in_3=draw.standard_normal(6).astype(np.float32),
    )
    (tmp_path / "sums.hlo").write_text(SUMS)
    return tmp_path


def test_the_end_is_the_same(folder: Path) -> None:
    wanted = finish(folder, "whole.npz")
    place = folder / "kept" / "checkpoint.hloipu"
    kept = ("--checkpoint", str(folder / "kept"), "--every", "3", "--resume")
    random = Random(1)
    for _ in range(KILLS):
        run = subprocess.Popen(
            command(folder, *kept), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        limit = monotonic() + 60
        before = place.stat().st_mtime_ns if place.exists() else 0
        while run.poll() is None and monotonic() < limit:
            if place.exists() and place.stat().st_mtime_ns != before:
                break
            sleep(0.01)
        sleep(random.random() / 10)
        run.kill()
        run.wait()
    assert finish(folder, "resumed.npz", *kept) == wanted


@pytest.mark.thinned(21)
@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize("kind", [*CUTS][::-1])
def test_every_kind_of_run_resumes_to_the_same_end(kind: str, signal: str, tmp_path: Path) -> None:
    (tmp_path / "plane.hlo").write_text(STEP)
    job = Job(tmp_path / "job", kind, 40, str(tmp_path / "plane.hlo"), (1, 2), "tiny")
    for faults in prove(job, [signal], Random(kind), 1):
        assert not faults
