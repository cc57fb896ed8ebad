"""Sweep workers on an existing Dask cluster, by its scheduler's address.

What goes there is a function of hloipu and a record: hloipu has to be installed on scheduler and
workers, in the same version. Dask executes what it is sent: clusters are for networks one trusts.
"""

import logging
import queue
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic
from typing import Any
from uuid import uuid4

from distributed import Client, KilledWorker, WorkerPlugin, get_worker

from hloipu.sweeping.jobs import fingerprint, limit_memory, write_modules
from hloipu.sweeping.workers import JOBS_AHEAD, Finished, Task, done
from hloipu_runtime.errors import UsageError

_CONNECT_SECONDS = 15
"""To reach a scheduler. Assumed."""
_NO_WORKER_SECONDS = 60
"""Workers that died take seconds to start again. Assumed."""
_LOOK_SECONDS = 1.0
"""From one count of the workers to the next."""
_OTHER = "another hloipu"
"""In place of a result."""
_LOGGERS = (
    "distributed", "distributed.client", "distributed.core", "distributed.nanny",
    "distributed.scheduler", "distributed.batched", "tornado.application", "asyncio",
)  # fmt: skip


class _Client(Client):  # type: ignore[misc]
    """A client that is closed by us alone.

    Where Dask reaches no scheduler nobody gets the client to close it; when it is freed it waits
    30 s more, and shows where it was.
    """

    def __del__(self) -> None:
        """Do nothing."""


class _ModulesPlugin(WorkerPlugin):  # type: ignore[misc]
    """Puts the modules on each machine, also on those of workers that are started later."""

    def __init__(self, texts: Mapping[str, str], memory_bytes: int | None) -> None:
        self.name = f"hloipu-modules-{uuid4().hex}"  # several sweeps may share a cluster
        self.texts = dict(texts)
        self.memory_bytes = memory_bytes
        self.folder: tempfile.TemporaryDirectory[str] | None = None
        self.sampler: Any = None

    def setup(self, worker: Any) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="hloipu-sweep-")
        write_modules(self.folder.name, self.texts)
        limit_memory(self.memory_bytes)
        # It looks at a task's stack each 10 ms, and keeps what it sees: a seventh of a compile.
        self.sampler = worker.periodic_callbacks.pop("profile", None)
        if self.sampler is not None:
            self.sampler.stop()

    def teardown(self, worker: Any) -> None:
        """Remove the modules, and leave the process as it was."""
        if self.sampler is not None:
            worker.periodic_callbacks["profile"] = self.sampler
            self.sampler.start()
        if self.memory_bytes is not None:
            limit_memory(2**62)
        if self.folder is not None:
            self.folder.cleanup()


def done_on_worker(task: Task, plugin: str, compiler: str) -> Any:
    """Return the result of a task, done on a worker that has the plugin of that name.

    `_OTHER` where the hloipu there is another one: results of two are not mixed.
    """
    if fingerprint() != compiler:
        return _OTHER
    return done(task, get_worker().plugins[plugin].folder.name)


class DaskWorkers:
    """Workers of a Dask cluster that is there."""

    deaths_alone = 1
    """Dask gives each task to four workers (`distributed.scheduler.allowed-failures`)."""

    def __init__(self, texts: Mapping[str, str], scheduler: str, memory_bytes: int | None) -> None:
        self._threads = 1
        self._plugin = _ModulesPlugin(texts, memory_bytes)
        self._scheduler = scheduler
        self._client: Any = None
        self._handed_out = 0
        self._looked = 0.0
        """When workers were counted last, by the clock."""
        self._seen = 0.0
        """When there were workers, by the clock."""
        self._levels: dict[str, int] = {}
        self._finished: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()

    def start(self) -> None:
        """Connect to the cluster; UsageError E3193 where there is none."""
        # What goes wrong is told by errors of ours; Dask's logs show its inside.
        for name in _LOGGERS:
            logger = logging.getLogger(name)
            self._levels[name] = logger.level
            logger.setLevel(logging.CRITICAL + 1)
        try:
            self._client = connected(self._scheduler)
        except UsageError:
            self.close()
            raise
        self._client.register_plugin(self._plugin)
        self._look_at_workers()

    @property
    def places(self) -> int:
        """Batches to hand out at a time: also workers that come later have their share."""
        return JOBS_AHEAD * max(1, self._threads)

    def submit(self, task: Task) -> None:
        """Submit a task under a fresh key: Dask does not repeat a key that it remembers."""
        self._handed_out += 1
        key = f"hloipu-{task.key[:16]}-{self._handed_out}"
        future = self._client.submit(
            done_on_worker, task, self._plugin.name, fingerprint(), key=key
        )
        future.add_done_callback(lambda one, key=task.key: self._finished.put((key, one)))

    def wait(self) -> Finished:
        """Return the next that is finished, or whose worker died too often."""
        while True:
            if monotonic() - self._looked > _LOOK_SECONDS and self._client.status == "running":
                self._look_at_workers()
            try:
                key, future = self._finished.get(timeout=_LOOK_SECONDS)
                break
            except queue.Empty:
                if self._client.status != "running":
                    raise self._gone() from None
        if future.status == "finished":
            result = future.result()
            future.release()
            if result == _OTHER:
                raise UsageError(
                    "E3193",
                    "a worker has another hloipu, which may compile otherwise",
                    hint="install the same hloipu on scheduler and workers",
                )
            return key, result
        if future.status == "error":
            error = future.exception()
            if isinstance(error, KilledWorker):
                return key, None
            raise UsageError(
                "E3193",
                f"Dask cannot run hloipu: {type(error).__name__}: {str(error)[:300]}",
                hint="install the same hloipu on scheduler and workers",
            )
        raise self._gone()

    def _look_at_workers(self) -> None:
        """Raise UsageError E3193 where there have been no workers for long."""
        now = self._looked = monotonic()
        workers = self._client.scheduler_info(n_workers=-1)["workers"]
        self._threads = sum(x["nthreads"] for x in workers.values())
        if workers:
            self._seen = now
        elif now - self._seen > _NO_WORKER_SECONDS:
            raise UsageError(
                "E3193",
                f"the Dask scheduler {self._scheduler} has no worker for {_NO_WORKER_SECONDS} s",
                hint="what arrived is kept: start workers, and --resume",
            )

    def _gone(self) -> UsageError:
        return UsageError(
            "E3193",
            f"the Dask scheduler {self._scheduler} is gone",
            hint="what arrived is kept: start a scheduler, and --resume",
        )

    def close(self) -> None:
        """Cancel the jobs."""
        if self._client is not None:
            with suppress(Exception):  # the scheduler may be gone
                self._client.unregister_worker_plugin(self._plugin.name)
            self._client.close(timeout=5)
        for name, level in self._levels.items():
            logging.getLogger(name).setLevel(level)


def connected(scheduler: str) -> Any:
    """Return a client of the cluster at an address; UsageError E3193 where there is none."""
    client = None
    try:
        client = _Client(scheduler, timeout=_CONNECT_SECONDS, set_as_default=False)
        client.wait_for_workers(1, timeout=_CONNECT_SECONDS)
    except (OSError, ValueError, TypeError) as error:
        if client is not None:
            client.close(timeout=5)
        raise UsageError(
            "E3193",
            f"no scheduler of Dask with a worker answers at {scheduler!r}",
            hint="start one: dask scheduler, and dask worker tcp://HOST:8786 --nthreads 1",
        ) from error
    return client
