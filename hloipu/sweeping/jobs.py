"""Jobs of workers: one compile each, with its figures or its error.

Modules are files of a folder on the worker's machine, named by their digests: they go there once.
"""

import faulthandler
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from hloipu_runtime.errors import HloipuError, LimitError
from hloipu_runtime.executable_cache import source_fingerprint
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.watching import Search

_KEPT_MODULES = 8
"""Parsed and rewritten, in each worker."""
_HARD_FACTOR, _HARD_SECONDS = 2.0, 10.0
"""A point that does not end when its time is up has so much more until its worker is ended."""
WORKER_DIED = "E3194"


@dataclass(frozen=True, slots=True)
class Job:
    """One compile: points that come to the same share it."""

    key: str
    digest: str
    """Of the module's text."""
    rewrite: str
    """Passes that rewrite the module first; empty: none."""
    options: Mapping[str, Any]
    """Of `Options`, all resolved."""
    batch: int = 0
    """Samples, where the rewrite says so; 0: as can be told of the module."""
    seconds: float | None = None
    """It may take, by the clock."""

    @property
    def hard_seconds(self) -> float | None:
        """Seconds after which its worker ends, whatever it is in."""
        return None if self.seconds is None else _HARD_FACTOR * self.seconds + _HARD_SECONDS

    def done(self, folder: str, *, guarded: bool) -> dict[str, Any]:
        """Return its record: figures, or the code and message of its error.

        `guarded`: end the process where the job does not heed its time.
        """
        start, cpu_start = perf_counter(), process_time()
        try:
            with ended_after(self.hard_seconds if guarded else None):
                record = _figures_in_time(self, folder)
        except HloipuError as error:
            record = failure(error.code, error.message)
        except MemoryError:
            record = failure("E5015", "compiling it takes more memory than a worker may have")
        except RecursionError:
            record = failure("E9001", "compiling it recurses too deeply")
        except Exception as error:
            record = failure("E9001", f"{type(error).__name__}: {error}"[:500])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        scale = 1 if sys.platform == "darwin" else 1024
        return {
            **record,
            "wall_seconds": round(perf_counter() - start, 6),
            "cpu_seconds": round(process_time() - cpu_start, 6),
            "worker_bytes": peak * scale,
        }


def module_path(folder: str | Path, digest: str) -> Path:
    """Return where a module's text is in a worker's folder."""
    return Path(folder) / f"{digest}.hlo"


def write_modules(folder: str | Path, texts: Mapping[str, str]) -> None:
    """Write modules' texts, by digest, into a worker's folder."""
    for digest, text in texts.items():
        data = text.encode("utf-8", errors="surrogateescape")
        module_path(folder, digest).write_bytes(data)


def begin_worker(memory_bytes: int | None) -> None:
    """Prepare a process of a pool: it ignores interrupts, and ends when its parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    limit_memory(memory_bytes)
    import multiprocessing

    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent,), daemon=True).start()


def _end_after(parent: Any) -> None:
    parent.join()
    os._exit(1)


def limit_memory(memory_bytes: int | None) -> None:
    """Limit this process's own memory; allocations beyond fail."""
    if memory_bytes is not None:
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        least = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (least, hard))


def fingerprint() -> str:
    """Return what tells this hloipu from others that compile otherwise."""
    return source_fingerprint("hloipu", "hloipu_compiler", "hloipu_runtime")


@contextmanager
def ended_after(seconds: float | None) -> Iterator[None]:
    """End the process where the block takes longer, whatever it is in; None: never."""
    if seconds is None:
        yield
        return
    with open(os.devnull, "w") as nowhere:
        faulthandler.dump_traceback_later(seconds, exit=True, file=nowhere)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()


def failure(code: str, message: str) -> dict[str, Any]:
    """Return the record of a job that came to nothing."""
    return {"code": code, "message": message}


def _figures_in_time(job: Job, folder: str) -> dict[str, Any]:
    figures = Search(job.seconds).tried(lambda: _figures(job, folder))
    if figures is None:
        limit = job.seconds or 0
        raise LimitError(
            "E5017",
            f"the time of {limit:g} s is up",
            limit="point_seconds",
            allowed=round(limit),
            found=round(limit),
        )
    return {"figures": figures}


def _figures(job: Job, folder: str) -> dict[str, Any]:
    """Compile and estimate, as `hloipu estimate` does."""
    from hloipu.advice.trials import cycles_of, device_cycles_of
    from hloipu.api import compile_cached, settled_options
    from hloipu.definitions import key_text
    from hloipu.encoded import plain_step
    from hloipu.options.table import Options

    rewritten = _rewritten(folder, job.digest, job.rewrite)
    options = Options(**job.options)
    definitions = {
        name: job.options[name] for name in ("define", "opaque") if job.options.get(name)
    }
    module, _ = plain_step(rewritten, {**job.options, **definitions})
    text = key_text(module, rewritten.source.text + job.rewrite, definitions)
    settled = settled_options(module, text, options)
    program = compile_cached(settled.module, text, settled.options, ready=settled.program)
    memory, cycles = program.memory, cycles_of(program)
    compiled = program.program
    seconds = cycles / program.machine.chip.clock_hz
    batch = job.batch or _batch(folder, job.digest, job.rewrite)
    samples = batch * settled.options.micro_batches * compiled.replicas
    return {
        "fits": memory.fits,
        "cycles": cycles,
        "device_cycles": device_cycles_of(program),
        "seconds": seconds,
        "samples_per_second": samples / seconds if samples and seconds else None,
        "peak_bytes": memory.peak.total_bytes,
        "available_bytes": memory.available_bytes,
        "code_bytes": memory.code_bytes,
        "ipus": compiled.ipus * compiled.replicas,
    }


@lru_cache(maxsize=_KEPT_MODULES)
def _rewritten(folder: str, digest: str, rewrite: str) -> Any:
    from hloipu.text import read_file
    from hloipu_compiler.hlo.parse import parse
    from hloipu_compiler.hlo.syntax.limits import DEFAULT_LIMITS
    from hloipu_compiler.passes.runner import run_passes
    from hloipu_compiler.verify.verifier import verify

    if rewrite:
        rewritten, _ = run_passes(_rewritten(folder, digest, ""), None, rewrite)
        return rewritten
    # The client has held the text against the user's limits.
    module = parse(read_file(module_path(folder, digest), DEFAULT_LIMITS), limits=DEFAULT_LIMITS)
    verify(module)
    return module


@lru_cache(maxsize=_KEPT_MODULES)
def _batch(folder: str, digest: str, rewrite: str) -> int:
    """Return the samples of the module's batch; 0 where it has none that can be told."""
    from hloipu_compiler.passes.runner import run_passes
    from hloipu_compiler.passes.smaller_batch import batch_of, batch_size

    front, _ = run_passes(_rewritten(folder, digest, rewrite), None, "front")
    return batch_size(front, batch_of(front))
