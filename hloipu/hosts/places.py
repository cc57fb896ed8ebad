"""Start host processes: on this machine, or on the workers of a Dask cluster."""

import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, Protocol
from urllib.parse import urlsplit

from hloipu.hosts.parcels import FolderInMemory
from hloipu_runtime.errors import UsageError

HERE = "local"
"""In place of a scheduler's address: processes of this machine."""
_END_SECONDS = 5.0


class Places(Protocol):
    """Processes of hosts, wherever they run."""

    address: str
    """Of this process, as they reach it."""
    folder: str
    """That they share in one machine's memory; empty: none."""

    def start(self, address: tuple[str, int], key: bytes, hosts: int) -> None:
        """Start a process for each host, which connects to an address with a key."""

    def gone(self) -> Sequence[int]:
        """Return the hosts whose processes ended."""

    def close(self) -> None:
        """End the processes."""


class ProcessesHere:
    """Processes of this machine, which need no guard of the user's main module."""

    address = "127.0.0.1"

    def __init__(self, process_noun: str = "host") -> None:
        self._process_noun = process_noun
        self._folder = FolderInMemory()
        self.folder: str = self._folder.path
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def pids(self) -> list[int]:
        """Numbers of the processes, by host."""
        return [process.pid for process in self._processes]

    def start(self, address: tuple[str, int], key: bytes, hosts: int) -> None:
        """Submit a task to each worker, which serves one host."""
        for host in range(hosts):
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "hloipu.hosts.process",
                    *map(str, (*address, host)),
                    f"{self._process_noun} {host}",
                ],
                stdin=subprocess.PIPE,
            )
            self._processes.append(process)
            assert process.stdin is not None
            with suppress(OSError), process.stdin as stream:
                stream.write(key.hex().encode() + b"\n")

    def gone(self) -> Sequence[int]:
        """Return the hosts whose processes ended."""
        return [n for n, process in enumerate(self._processes) if process.poll() is not None]

    def close(self) -> None:
        """Wait for their end, and bring it about."""
        for process in self._processes:
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._folder.remove()


class DaskPlaces:
    """Workers of a Dask cluster, one for each host."""

    folder = ""

    def __init__(self, scheduler: str, hosts: int, process_noun: str) -> None:
        """Connect; UsageError E3192 without Dask, E3193 where nobody answers or workers lack."""
        if find_spec("distributed") is None:
            raise UsageError("E3192", "Dask is not installed", hint="pip install 'hloipu[sweep]'")
        from hloipu.sweeping.dask_workers import connected

        self._process_noun = process_noun
        self._client: Any = connected(scheduler)
        self._futures: list[Any] = []
        workers = sorted(self._client.scheduler_info(n_workers=-1)["workers"])
        if len(workers) < hosts:
            self.close()
            raise UsageError(
                "E3193",
                f"the cluster at {scheduler} has {len(workers)} workers where {hosts} are needed",
                hint=f"start a worker for each {process_noun}: "
                "dask worker tcp://HOST:8786 --nthreads 1",
            )
        self._workers: list[str] = workers[:hosts]
        self.address: str = _local_address(urlsplit(self._client.scheduler.address))

    def start(self, address: tuple[str, int], key: bytes, hosts: int) -> None:
        """Hand each worker the task that serves one host."""
        from hloipu.hosts.process import run_host

        self._futures = [
            self._client.submit(
                run_host, address, key, host, f"{self._process_noun} {host}",
                workers=[worker], allow_other_workers=False, pure=False, retries=0,
            )
            for host, worker in enumerate(self._workers)
        ]  # fmt: skip

    def gone(self) -> Sequence[int]:
        """Return the hosts whose tasks ended."""
        return [n for n, one in enumerate(self._futures) if one.status in ("error", "cancelled")]

    def close(self) -> None:
        """Give the tasks up; they end as their connections do."""
        for future in self._futures:
            future.cancel()
        self._client.close(timeout=_END_SECONDS)


def _local_address(address: Any) -> str:
    """Return the address by which a machine reaches this one: that of the way to it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address.hostname or "127.0.0.1", address.port or 1))  # sends nothing
        return str(probe.getsockname()[0])


def places_for(scheduler: str, hosts: int, process_noun: str) -> Places:
    """Return where processes run, named so by messages; raises what `DaskPlaces` raises."""
    return (
        ProcessesHere(process_noun)
        if scheduler == HERE
        else DaskPlaces(scheduler, hosts, process_noun)
    )
