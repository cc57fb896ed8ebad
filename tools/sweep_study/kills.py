"""One sweep whose worker, scheduler and client are killed in turn, and which is resumed."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hloipu.sweeping.store import Store
from hloipu_runtime.errors import UsageError
from tools.sweep_study.cluster import Cluster, until

POINT_SECONDS = 60.0
"""Longest time between two rows that still counts as progress."""
LOOK_SECONDS = 0.5
"""Between two looks at the rows, which take time that the workers have."""
END_SECONDS = 120.0
"""For a client to end, once its scheduler is gone or all is done."""

Record = Mapping[str, Any]


class Killed(NamedTuple):
    """What a kill left."""

    what: str
    rows_kept: int
    client_said: str


class Kills:
    """A sweep by the command line, on clusters that die."""

    def __init__(self, step: Path, axes: Mapping[str, Sequence[Any]], points: int, path: Path):
        over = [f"{name}={','.join(map(str, values))}" for name, values in axes.items()]
        self._words = [str(step), *(w for x in over for w in ("--over", x)), "--points",
                       str(points), "-o", str(path), "--resume"]  # fmt: skip
        self._points = points
        self._path = path
        self.told: list[Killed] = []

    def run(self) -> dict[str, Record]:
        """Kill a worker, the scheduler and the client; return the records by settings.

        AssertionError where a row that was kept is another one afterwards.
        """
        quarter = self._points // 4
        with Cluster(2) as cluster:
            client = self._client(cluster)
            self._reach(quarter, client)
            before = self._kept("worker", cluster.kill_worker)
            self._reach(2 * quarter, client)
            self._holds(before)
            before = self._kept("scheduler", cluster.kill_scheduler)
            self._ended(client, good=False)
        with Cluster(2) as cluster:
            client = self._client(cluster)
            self._reach(3 * quarter, client)
            self._holds(before)
            before = self._kept("client", client.kill)
            self._ended(client, good=False)
            self._ended(self._client(cluster), good=True)
        self._holds(before)
        return self.records()

    def records(self) -> dict[str, Record]:
        """Return what is in the file, by settings."""
        try:
            with Store.opened(self._path) as store:
                rows = [row for row in store.rows() if row.record is not None]
        except UsageError:  # not begun yet
            return {}
        return {json.dumps(row.settings): row.record for row in rows if row.record}

    def _client(self, cluster: Cluster) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "hloipu", "sweep", *self._words]
        return subprocess.Popen(
            [*command, "--scheduler", cluster.address],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip

    def _reach(self, count: int, client: "subprocess.Popen[bytes]") -> None:
        seconds = POINT_SECONDS * max(1, count)
        until(lambda: len(self.records()) >= count or client.poll() is not None,
              f"{count} rows", seconds, LOOK_SECONDS)  # fmt: skip
        if client.poll() is not None:
            raise ChildProcessError(f"the client ended: {_said(client)}")

    def _kept(self, what: str, kill: Any) -> dict[str, Record]:
        kill()
        before = self.records()
        self.told.append(Killed(what, len(before), ""))
        return before

    def _ended(self, client: "subprocess.Popen[bytes]", *, good: bool) -> None:
        said = client.communicate(timeout=None if good else END_SECONDS)[1].decode()
        lines = [line for line in said.splitlines() if line.startswith("error")]
        if (client.returncode == 0) != good:
            raise ChildProcessError(f"the client ended with {client.returncode}: {said}")
        if not good:
            kept = self.told[-1]
            self.told[-1] = kept._replace(client_said=(lines or [""])[0])

    def _holds(self, before: Mapping[str, Record]) -> None:
        """Rows are those that were kept, with the times that they took: nothing was done twice."""
        after = self.records()
        changed = [name for name, record in before.items() if after.get(name) != record]
        if changed:
            raise AssertionError(f"{len(changed)} rows are others: {changed[:3]}")


def _said(client: "subprocess.Popen[bytes]") -> str:
    return client.communicate()[1].decode()[-2000:]
