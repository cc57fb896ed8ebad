"""Two child processes on one core, ours and XLA's, measured in turn."""

import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tools.bench.shared.op_cases import Case

ROOT = Path(__file__).resolve().parents[3]
SETTINGS_LEFT_OUT = ("OPENBLAS_CORETYPE", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
"""Left out of the children's environment: an exported core type halves BLAS on newer machines."""

BATCH_SECONDS = 4e-3
"""A measurement repeats the call until it takes about this long."""

SEED = 7


@dataclass(frozen=True, slots=True)
class Row:
    """Medians for one module, per call, of processor time."""

    family: str
    name: str
    size: str
    ours_ms: float
    xla_ms: float
    ratio: float
    """Median of the ratios of neighbouring measurements."""


def environment_of_sides(root: Path = ROOT, cores: int = 1) -> dict[str, str]:
    """Return what child processes of both sides, of the checkout in `root`, find there.

    XLA is given one thread where there is one core, and as many as it likes on several.
    """
    environment = {k: v for k, v in os.environ.items() if k not in SETTINGS_LEFT_OUT}
    if root != ROOT:
        folders = (root, root / "compiler", root / "runtime")
        environment["PYTHONPATH"] = os.pathsep.join(map(str, folders))
    environment |= {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    if cores == 1:
        flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        environment["XLA_FLAGS"] = flags
    return environment


class Side:
    """One child process."""

    def __init__(self, name: str, cores: Collection[int], root: Path = ROOT) -> None:
        """Start one on some cores, of the checkout in `root`."""
        self.name, self._cores, self._root = name, cores, root
        self._child = self._start()

    def _start(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "tools.bench.shared.runner", self.name],
            cwd=self._root, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=environment_of_sides(self._root, len(self._cores)),
            # Thread pools are sized by the cores a process may use when it starts.
            preexec_fn=lambda: os.sched_setaffinity(0, self._cores),
        )  # fmt: skip

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send one request and return the answer; a child that died is replaced."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        print(json.dumps(request), file=self._child.stdin, flush=True)
        line = self._child.stdout.readline()
        if not line:
            self._child.wait()
            self._child = self._start()
            return {"error": "the process died"}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def seconds(self, calls: int) -> float:
        """Return the seconds of one of `calls` calls: of the processor, or on several cores."""
        return float(self.ask(calls=calls)["seconds" if len(self._cores) == 1 else "wall"])

    def close(self) -> None:
        """End the child."""
        self._child.communicate()


class Pair:
    """Both sides."""

    def __init__(self, core: int) -> None:
        self.ours, self.xla = Side("ours", {core}), Side("xla", {core})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.ours.close()
        self.xla.close()

    def measure(self, case: Case, repeats: int) -> Row | str:
        """Measure one module; a sentence says why it could not be."""
        for side in (self.ours, self.xla):
            error = side.ask(text=case.text, seed=SEED, scale=case.scale).get("error")
            if error:
                return f"{side.name}: {error}"
        calls = {side: calls_for(side.seconds(1)) for side in (self.ours, self.xla)}
        ours, xla = [], []
        for _ in range(repeats):
            ours.append(self.ours.seconds(calls[self.ours]))
            xla.append(self.xla.seconds(calls[self.xla]))
        return Row(
            case.family, case.name, case.size, 1e3 * statistics.median(ours),
            1e3 * statistics.median(xla), median_ratio(ours, xla),
        )  # fmt: skip


def calls_for(seconds: float) -> int:
    """Return how many calls of this length make one measurement."""
    return max(1, min(500, round(BATCH_SECONDS / max(seconds, 1e-6))))


def median_ratio(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the median of the ratios of neighbouring measurements."""
    return statistics.median(a / b for a, b in zip(first, second, strict=True))


def geometric_mean(ratios: Iterable[float]) -> float:
    """Return the geometric mean; nan of nothing."""
    logarithms = [math.log(x) for x in ratios]
    return math.exp(statistics.fmean(logarithms)) if logarithms else math.nan
