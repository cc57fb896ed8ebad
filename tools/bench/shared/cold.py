"""A process that begins with nothing, compiles one module, runs it once and says what that took.

    python -m tools.bench.shared.cold functional|xla TEXT ARGUMENTS

Figures are the processor time from the process's start to the first results, imports included, and
the most memory that it ever held. A side imports only what it needs.
"""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ml_dtypes  # noqa: F401  gives numpy the names of its types
import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Cold:
    """What one process took."""

    seconds: float
    peak_mib: float


def measure_cold(
    side: str, text: str, arguments: Sequence[Array], root: Path, environment: dict[str, str]
) -> Cold | str:
    """Run one such process on the cores of this one; a sentence says why it gave no figures."""
    with TemporaryDirectory() as folder:
        module, given = Path(folder, "module.hlo"), Path(folder, "arguments.npz")
        module.write_text(text, encoding="utf-8")
        leaves = [np.asarray(x) for x in arguments]
        names = [x.dtype.name for x in leaves]
        np.savez(given, *[x.reshape(-1).view(np.uint8) for x in leaves])
        shapes = json.dumps([[n, list(x.shape)] for n, x in zip(names, leaves, strict=True)])
        command = [sys.executable, "-m", "tools.bench.shared.cold"]
        done = subprocess.run(
            [*command, side, str(module), str(given), shapes],
            cwd=root,
            text=True,
            capture_output=True,
            check=False,
            env=environment,
        )
    if done.returncode:
        return f"{side}: {(done.stderr.strip().splitlines() or ['it died'])[-1]}"
    return Cold(**json.loads(done.stdout.strip().splitlines()[-1]))


def _read(path: str, shapes: str) -> list[Array]:
    with np.load(path) as stored:
        return [
            stored[f"arr_{n}"].view(np.dtype(name)).reshape(shape)
            for n, (name, shape) in enumerate(json.loads(shapes))
        ]


def _functional(text: str, arguments: list[Array]) -> None:
    from hloipu.api import compile_verified
    from hloipu.options.resolve import resolve
    from hloipu_compiler.hlo.parse import parse
    from hloipu_compiler.verify.verifier import verify
    from hloipu_runtime.simulate.functional.functional import FunctionalEngine
    from hloipu_runtime.simulate.run.host import Arrays
    from hloipu_runtime.simulate.run.ports import given_arrays

    module = parse(text)
    verify(module)
    options = resolve("compile", {"target": "gc200", "over_memory": "allow"}).options
    program = compile_verified(module, options).program
    FunctionalEngine(program).run(Arrays(given_arrays(program.parameters, arguments)))


def _xla(text: str, arguments: list[Array]) -> None:
    import jax

    from tests.support.xla_child import Child

    child = Child()
    child.load({"text": text, "program": 0, "replicas": 1, "partitions": 1, "optimised": False})
    executable, _, dtypes = child._programs[0]
    placed = [
        jax.device_put(x if x.dtype == d else x.view(d))
        for x, d in zip(arguments, dtypes, strict=True)
    ]
    for value in executable.execute(placed):
        value.block_until_ready()


def _peak_kib() -> int:
    """Return the most memory held; what `getrusage` says begins with the parent's, at the fork."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    """Run one side and print its figures."""
    side, module, given, shapes = sys.argv[1:]
    run = {"functional": _functional, "xla": _xla}[side]
    run(Path(module).read_text(encoding="utf-8"), _read(given, shapes))
    print(json.dumps({"seconds": time.process_time(), "peak_mib": _peak_kib() / 1024}))


if __name__ == "__main__":
    main()
