"""A Dask cluster of this machine, as its commands start it, whose parts can be killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, process_time, sleep
from types import TracebackType
from typing import Any

from distributed import Client

START_SECONDS = 120.0
"""For processes to start on a busy machine. Assumed."""
END_SECONDS = 20.0


def until(
    holds: Callable[[], Any], what: str, seconds: float = START_SECONDS, pause: float = 0.02
) -> None:
    """Wait until something holds; TimeoutError where that takes too long."""
    end = monotonic() + seconds
    while not holds():
        if monotonic() > end:
            raise TimeoutError(f"{what} took more than {seconds:g} s")
        sleep(pause)


class Cluster:
    """A scheduler and workers of one thread each, all of them processes of their own."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._folder = TemporaryDirectory(prefix="hloipu-cluster-")
        self._file = Path(self._folder.name) / "scheduler.json"
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Cluster":
        self._start("scheduler", "--port", "0", "--host", "127.0.0.1", "--no-dashboard",
                    "--scheduler-file", str(self._file))  # fmt: skip
        until(self._file.exists, "starting a scheduler")
        self._start("worker", "--scheduler-file", str(self._file), "--no-dashboard",
                    "--nthreads", "1", "--nworkers", str(self.workers), "--memory-limit", "0",
                    "--local-directory", self._folder.name)  # fmt: skip
        with Client(self.address, timeout=START_SECONDS) as client:
            client.wait_for_workers(self.workers, timeout=START_SECONDS)
        return self

    @property
    def address(self) -> str:
        """Where the scheduler answers."""
        return str(json.loads(self._file.read_text(encoding="utf-8"))["address"])

    def cpu_seconds(self) -> tuple[float, float]:
        """Return what the scheduler's process and those of workers have taken of processors."""
        with Client(self.address, timeout=START_SECONDS) as client:
            workers = client.run(process_time).values()
            return client.run_on_scheduler(process_time), sum(workers)

    def kill_worker(self) -> None:
        """Kill one worker; the process that watches it starts another."""
        with Client(self.address, timeout=START_SECONDS) as client:
            os.kill(sorted(client.run(os.getpid).values())[0], signal.SIGKILL)

    def kill_scheduler(self) -> None:
        """Kill the scheduler."""
        self._processes[0].kill()

    def _start(self, *words: str) -> None:
        command = [sys.executable, "-m", "distributed.cli." + f"dask_{words[0]}", *words[1:]]
        self._processes.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._folder.cleanup()
