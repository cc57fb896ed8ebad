"""Sweeps on processes whose client or worker is killed: nothing is lost, nothing done twice."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

import hloipu
from tests.hloipu.sweeping.test_sweeps import MODULE

BYTES = [65536 + 8 * n for n in range(32)]
"""Of a tile, for the kills: points enough to be in the midst of them."""
SCRIPT = """
import sys
import hloipu

if __name__ == "__main__":
    step, path, workers = sys.argv[1:]
    hloipu.sweep(step, {"set.bytes_per_tile": BYTES}, path=path, workers=int(workers),
                 target="tiny", resume=True)
""".replace("BYTES", str(BYTES))


def test_killed_workers_and_clients_lose_nothing(tmp_path: Path) -> None:
    step, path, script = tmp_path / "m.hlo", tmp_path / "s.db", tmp_path / "sweep.py"
    step.write_text(MODULE)
    script.write_text(SCRIPT)
    whole = hloipu.sweep(step, {"set.bytes_per_tile": BYTES}, workers=0, target="tiny")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(script), str(step), str(path), "1"]

    # The client, once some rows are there; its worker goes with it.
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as client:
        _until(lambda: _done(path) >= 2)
        workers = _children(client.pid)
        client.kill()
    before = _records(path)
    assert workers
    _until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))

    # The worker, while the client that resumes is at work.
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as client:
        _until(lambda: len(_records(path)) > len(before) + 2 or client.poll() is not None)
        for worker in _children(client.pid):
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        said = client.communicate(timeout=60)[1]
    assert client.returncode == 0, said.decode()

    after = _records(path)
    assert {key: after[key] for key in before} == before
    rows = hloipu.sweep(
        step, {"set.bytes_per_tile": BYTES}, path=path, workers=0, target="tiny", resume=True
    )
    assert [row.figures for row in rows] == [row.figures for row in whole]


TILES = [2, 3, 4, 5, 6, 7, 8, 9]


def test_dask_gives_the_same_rows(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    whole = hloipu.sweep(MODULE, {"set.tiles_per_ipu": TILES}, workers=0, target="tiny")
    rows = hloipu.sweep(MODULE, {"set.tiles_per_ipu": TILES}, workers=1, target="tiny")
    assert [row.figures for row in rows] == [row.figures for row in whole]


def test_optuna_finds_the_best_of_a_grid(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    axes: dict[str, list[Any]] = {"set.tiles_per_ipu": TILES, "dtype": ["f32", "bf16"]}
    whole = hloipu.sweep(MODULE, axes, workers=0, target="tiny", goals=["cycles"], points=16)
    part = hloipu.sweep(MODULE, axes, workers=0, target="tiny", goals=["cycles"], points=8)
    assert len(whole) == 16
    assert len(part) == 8
    assert len({str(row.settings) for row in part}) == 8
    assert part.best[0].figures["cycles"] <= 1.1 * whole.best[0].figures["cycles"]


def _until(holds: Callable[[], bool]) -> None:
    limit = monotonic() + 60
    while not holds():
        assert monotonic() < limit
        sleep(0.01)


def _done(path: Path) -> int:
    with suppress(sqlite3.Error):
        return len(_records(path))
    return 0


def _records(path: Path) -> dict[str, Any]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return dict(connection.execute("select key, record from results").fetchall())


def _children(process: int) -> list[int]:
    """Return the processes of a process's pool, but not Python's tracker of resources."""
    found = []
    for line in subprocess.run(
        ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(process)], capture_output=True, text=True
    ).stdout.splitlines():
        number, _, words = line.strip().partition(" ")
        if "spawn_main" in words:
            found.append(int(number))
    return found
