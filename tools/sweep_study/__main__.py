"""How fast sweeps are on two workers, and what is left when worker, scheduler and client die.

    python -m tools.sweep_study [--points 2000] [--timed N] [--step hlo_samples/….hlo] [--no-kills]

Sweeps a training step over machines, tile memory, batch, type and stages, slice by slice in turn in
this process, on two processes, on a Dask cluster of one worker and on one of two. Then once more by
the command line, while a worker, the scheduler and the client are killed. Rows have to be the same
everywhere. Needs `hloipu[sweep]`.
"""

import argparse
import json
import resource
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import hloipu
from hloipu.cli.table import readable_bytes, table
from hloipu.sweeping.axes import axis_of, points_of
from tools.sweep_study.cluster import Cluster
from tools.sweep_study.kills import Kills

STEP = Path(__file__).parents[2] / "hlo_samples" / "mnist_train_step.hlo"
MEMORY = "set.bytes_per_tile"
AXES: Mapping[str, Sequence[Any]] = {
    MEMORY: [2**18 + 2**16 * n for n in range(10)],
    "target": ["gc200", "bow"],
    "batch": [8 * n for n in range(1, 11)],
    "dtype": ["f32", "f16"],
    "stages": [1, 2, 3, 4, 5],
}
"""2,000 points, of which no two compile to the same."""


class Measured:
    """Sweeps on a cluster, on processes of this machine, or in this process."""

    def __init__(self, cluster: Cluster | None, processes: int = 0) -> None:
        self.workers = cluster.workers if cluster else processes
        self.seconds = 0.0
        self.cpu_seconds = [0.0, 0.0, 0.0]
        """Of this process, the scheduler and the workers."""
        self.rows: list[Any] = []
        self._cluster = cluster

    def sweep(self, step: Path, axes: Mapping[str, Sequence[Any]], points: int) -> None:
        """Sweep over a slice, and add its time."""
        where: dict[str, Any] = {"workers": self.workers}
        if self._cluster:
            where = {"scheduler": self._cluster.address}
        before, start = self._cpu_seconds(), perf_counter()
        self.rows += hloipu.sweep(step, axes, points=points, **where)
        self.seconds += perf_counter() - start
        spent = zip(self._cpu_seconds(), before, self.cpu_seconds, strict=True)
        self.cpu_seconds = [total + after - first for after, first, total in spent]

    def _cpu_seconds(self) -> tuple[float, ...]:
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        others = (0.0, ended.ru_utime + ended.ru_stime)
        if self._cluster:
            others = self._cluster.cpu_seconds()
        return (process_time(), *others)

    def cells(self, alone: "Measured") -> tuple[str, ...]:
        """Return the row of the table; `alone`: the same in one process."""
        count = len(self.rows)
        compiling = sum(row.record["cpu_seconds"] for row in self.rows)
        client, scheduler, workers = self.cpu_seconds
        if self.workers:
            workers -= compiling
        else:
            client -= compiling
        free = max(1, self.workers) * sum(alone.cpu_seconds) / sum(self.cpu_seconds)
        most = max(row.record["worker_bytes"] for row in self.rows)
        costs = (f"{1e3 * x / count:.1f}" for x in (compiling, workers, scheduler, client))
        return (
            self.name, str(count), f"{self.seconds:.0f}",
            f"{count / self.seconds:.2f}", f"{alone.seconds / self.seconds:.2f}", f"{free:.2f}",
            *costs, readable_bytes(most),
        )  # fmt: skip

    @property
    def name(self) -> str:
        """What the row of the table is of."""
        if not self.workers:
            return "this process"
        return f"{self.workers} of {'Dask' if self._cluster else 'Python'}"

    def figures(self) -> dict[str, Any]:
        """Return figures or the error by settings."""
        return {json.dumps(row.settings): _result(row.record) for row in self.rows}


HEAD = ("workers", "points", "s", "points/s", "of one process", "by CPU", "compile, ms",
        "worker", "scheduler", "client", "memory")  # fmt: skip
"""The four columns of ms are processor time of a point; `by CPU` is what as many free processors
as workers would make of it: other work on the machine does not count."""


def slices(points: int) -> Iterator[tuple[dict[str, Sequence[Any]], int]]:
    """Yield axes of one size of memory each, and how many points of them."""
    for number, size in enumerate(AXES[MEMORY]):
        parts = len(AXES[MEMORY])
        count = points * (number + 1) // parts - points * number // parts
        if count:
            yield {**AXES, MEMORY: [size]}, count


def measured(step: Path, points: int) -> list[Measured]:
    """Sweep slice by slice in turn, so that what else the machine does is alike for all."""
    with ExitStack() as stack:
        clusters = [stack.enter_context(Cluster(workers)) for workers in (1, 2)]
        ways = [Measured(None), Measured(None, 2), *map(Measured, clusters)]
        for axes, count in slices(points):
            for way in ways:
                way.sweep(step, axes, count)
    return ways


def killed(step: Path, points: int) -> dict[str, Any]:
    """Run the sweep by the command line, kill its parts, and return figures by settings."""
    with tempfile.TemporaryDirectory() as folder:
        kills = Kills(step, AXES, points, Path(folder) / "study.db")
        start = perf_counter()
        records = kills.run()
        for what, kept, said in kills.told:
            print(f"{what} killed with {kept} rows there; {said}".rstrip("; "))
        print(f"{len(records)} rows after all, each done once, {perf_counter() - start:.0f} s")
    return {name: _result(record) for name, record in records.items()}


def _result(record: Mapping[str, Any]) -> Any:
    return record.get("figures") or record.get("code")


def main() -> None:
    """Print the tables; end with an error where rows differ or fail."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=2000)
    parser.add_argument("--timed", type=int, help="points of the rates; else as many")
    parser.add_argument("--step", type=Path, default=STEP)
    parser.add_argument("--no-kills", action="store_true")
    asked = parser.parse_args()
    ways = measured(asked.step, asked.timed or asked.points)
    print(table(HEAD, [way.cells(ways[0]) for way in ways]), flush=True)
    wanted = ways[0].figures()
    if any(way.figures() != wanted for way in ways):
        raise SystemExit("rows differ")
    if failed := sorted({str(x) for x in wanted.values() if not isinstance(x, dict)}):
        raise SystemExit(f"rows failed: {', '.join(failed)}")
    if not asked.no_kills:
        axes = [axis_of(name, values) for name, values in AXES.items()]
        again = killed(asked.step, asked.points)
        if len(again) != sum(1 for _ in points_of(axes, asked.points, 0)):
            raise SystemExit(f"{len(again)} rows")
        if any(again[name] != figures for name, figures in wanted.items() if name in again):
            raise SystemExit("rows differ after the kills")


if __name__ == "__main__":
    main()
