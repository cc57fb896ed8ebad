"""Hands modules to the child process and takes their outputs back."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from hloipu.xla_cpu.forms import for_partitioner, for_stablehlo
from hloipu_compiler.evaluate.participants import participants_of
from hloipu_compiler.evaluate.site import array_leaves
from hloipu_compiler.hlo.printer import FULL, print_module
from hloipu_compiler.ir.graph import Module
from hloipu_runtime.errors import UnsupportedError
from hloipu_runtime.kernels.storage import user_dtype

Array = np.ndarray[Any, Any]

SECONDS_FOR_EACH_JOB = 600.0


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


def job_of(module: Module, arguments: Sequence[Array]) -> Job:
    """Return the job of a module with as many participants as it is written for."""
    return Job(module, arguments, *participants_of(module))


def run_on_xla_cpu(jobs: Sequence[Job]) -> list[list[Array] | str]:
    """Run modules on XLA:CPU; for each the leaves of its result, or why XLA did not compute it.

    Raises UnsupportedError where jaxlib is not installed.
    """
    if find_spec("jaxlib") is None or find_spec("jax") is None:
        raise UnsupportedError(
            "E0460",
            "comparing with XLA:CPU needs jaxlib, which is not installed",
            hint="pip install 'hloipu[jax]', or compare with evaluator-f64",
        )
    with tempfile.TemporaryDirectory(prefix="hloipu-xla-") as name:
        folder = Path(name)
        for number, job in enumerate(jobs):
            module = for_stablehlo(job.module)
            module = for_partitioner(module) if job.partitions > 1 else module
            (folder / f"{number}.hlo").write_text(print_module(module, FULL))
            counts = {"replicas": job.replicas, "partitions": job.partitions}
            (folder / f"{number}.json").write_text(json.dumps(counts))
            raw = {f"in_{i}": _bytes(x) for i, x in enumerate(job.arguments)}
            np.savez(folder / f"{number}.npz", **raw)  # type: ignore[arg-type]
        _work(folder, len(jobs), max((job.participants for job in jobs), default=1))
        return [_result(folder, number, job.module) for number, job in enumerate(jobs)]


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _work(folder: Path, count: int, devices: int) -> None:
    """Start children until all jobs have a result: each abort costs one job and one start."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    if devices > 1:
        flag = f"--xla_force_host_platform_device_count={devices}"
        environment["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
    command = [sys.executable, "-m", "hloipu.xla_cpu.child", str(folder), str(count)]
    before = -1
    while (done := _finished(folder, count)) < count and done > before:
        before = done
        try:
            subprocess.run(
                command,
                env=environment,
                capture_output=True,
                timeout=SECONDS_FOR_EACH_JOB * (count - done),
                check=False,
            )
        except subprocess.TimeoutExpired:
            continue


def _finished(folder: Path, count: int) -> int:
    return sum(
        (folder / f"{n}.out.npz").exists() or (folder / f"{n}.error").exists() for n in range(count)
    )


def _result(folder: Path, number: int, module: Module) -> list[Array] | str:
    failed = folder / f"{number}.error"
    path = folder / f"{number}.out.npz"
    if not path.exists():
        return failed.read_text() if failed.exists() else "XLA's process did not start"
    leaves = array_leaves(module.entry.program_shape.result)
    with np.load(path) as given:
        return [
            given[f"out_{i}"].view(user_dtype(leaf.element_type.name)).reshape(leaf.dimensions)
            for i, leaf in enumerate(leaves)
        ]
