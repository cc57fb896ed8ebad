"""Send modules to the child process and collect their outputs."""

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import IO, Any, Self

import numpy as np

from hloipu.xla_cpu.forms import for_partitioner, for_stablehlo
from hloipu_compiler.hlo.printing.printer import FULL, print_module
from hloipu_compiler.interpret.participants import participants_of
from hloipu_compiler.interpret.planning.site import array_leaves
from hloipu_compiler.ir.graph import Module
from hloipu_runtime.errors import UnsupportedError
from hloipu_runtime.kernels.core.storage import user_dtype

Array = np.ndarray[Any, Any]

SECONDS_FOR_EACH_JOB = 600.0
"""After so long without an answer the child is taken to hang. Assumed: real modules of some
thousand instructions compile in a minute."""

CHILD = (sys.executable, "-m", "hloipu.xla_cpu.child")
"""The command of the child; its folder comes after it."""

_WORDS = 300
"""Characters of what a child said before it ended that are passed on."""


@dataclass(frozen=True, slots=True)
class Job:
    """A module and the leaves of its arguments, in user dtypes; every participant gets the same."""

    module: Module
    arguments: Sequence[Array]
    replicas: int = 1
    partitions: int = 1

    @property
    def participants(self) -> int:
        """Devices that take part."""
        return self.replicas * self.partitions


class XlaCpu:
    """XLA:CPU in a child process, started with the first job and restarted after it ended.

    Use it as a context: the child is killed at the end. Raises UnsupportedError E0460 where jaxlib
    is not installed.
    """

    def __init__(self, seconds_for_each_job: float = SECONDS_FOR_EACH_JOB) -> None:
        if find_spec("jaxlib") is None or find_spec("jax") is None:
            raise UnsupportedError(
                "E0460",
                "comparing with XLA:CPU needs jaxlib, which is not installed",
                hint="pip install 'hloipu[jax]', or compare with evaluator-f64",
            )
        self._seconds = seconds_for_each_job
        self._folder = tempfile.TemporaryDirectory(prefix="hloipu-xla-")
        self._child: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None
        """What the child writes to stderr."""
        self._devices = 0
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the child and remove its files."""
        self._end()
        self._folder.cleanup()

    def __call__(self, work: Sequence[tuple[Module, Sequence[Array]]]) -> list[list[Array] | str]:
        """Run modules on leaves of arguments, each with the participants that it is written for.

        Returns for each the leaves of its result, or why XLA did not compute it.
        Raises UnsupportedError E0465 where the child gives no answer.
        """
        return [self.run(Job(module, leaves, *participants_of(module))) for module, leaves in work]

    def run(self, job: Job) -> list[Array] | str:
        """Run one job; returns and raises as a call does."""
        self._count += 1
        place = Path(self._folder.name) / str(self._count)
        module = for_stablehlo(job.module)
        module = for_partitioner(module) if job.partitions > 1 else module
        files = [
            place.with_suffix(suffix) for suffix in (".hlo", ".json", ".npz", ".out.npz", ".error")
        ]
        text, counts, arguments, results, failure = files
        try:
            text.write_text(print_module(module, FULL))
            counts.write_text(json.dumps({"replicas": job.replicas, "partitions": job.partitions}))
            raw = {f"in_{i}": _bytes(array) for i, array in enumerate(job.arguments)}
            np.savez(arguments, **raw)  # type: ignore[arg-type]
            ended = self._asked(place.name, job)
            if ended:
                return ended
            return failure.read_text() if failure.exists() else _outputs(results, job.module)
        finally:
            for file in files:
                file.unlink(missing_ok=True)

    def _asked(self, name: str, job: Job) -> str:
        """Send a job to the child; return how the child ended if it did, else nothing."""
        child = self._started(job.participants)
        if child.stdin is None or child.stdout is None:
            raise TypeError("the child has no pipes")
        try:
            child.stdin.write(f"{name}\n".encode())
            child.stdin.flush()
            end = monotonic() + self._seconds
            if not select.select([child.stdout], [], [], max(0.0, end - monotonic()))[0]:
                self._end()
                raise UnsupportedError(
                    "E0465",
                    f"XLA:CPU gave no answer on {job.module.name!r} for {self._seconds:.0f} s; its "
                    "process was ended",
                    hint="compare with --against evaluator-f64",
                )
            if child.stdout.readline().strip() == name.encode():
                return ""
        except BrokenPipeError:
            pass
        return self._how_it_ended()

    def _how_it_ended(self) -> str:
        """Return the exit code and last words of a child that ended by itself, and let go of it."""
        if self._child is None or self._said is None:
            return ""
        code = self._child.wait()
        self._said.seek(0)
        words = " ".join(self._said.read().decode(errors="replace").split())[-_WORDS:]
        self._end()
        return f"XLA's process ended with code {code} while it worked on this module: {words}"

    def _started(self, devices: int) -> subprocess.Popen[bytes]:
        """Return a child that has as many devices, at least."""
        if self._child is not None and self._child.poll() is None and devices <= self._devices:
            return self._child
        self._end()
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
        if devices > 1:
            flag = f"--xla_force_host_platform_device_count={devices}"
            environment["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
        self._devices = devices
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the child)
        self._child = subprocess.Popen(
            [*CHILD, self._folder.name],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            start_new_session=True,  # an interrupt is for the parent, which ends it
        )
        return self._child

    def _end(self) -> None:
        if self._child is None:
            return
        child, self._child = self._child, None
        child.kill()
        child.wait()
        for stream in (child.stdin, child.stdout, self._said):
            if stream is not None:
                with suppress(BrokenPipeError):  # a line that nobody reads any more
                    stream.close()


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _outputs(path: Path, module: Module) -> list[Array]:
    leaves = array_leaves(module.entry.program_shape.result)
    with np.load(path) as stored:
        return [
            stored[f"out_{i}"].view(user_dtype(leaf.element_type.name)).reshape(leaf.dimensions)
            for i, leaf in enumerate(leaves)
        ]
