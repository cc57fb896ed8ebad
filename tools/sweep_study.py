"""How fast sweeps are: points a second on workers, what a point costs beside its compile, memory.

    python -m tools.sweep_study [--points 2000] [--workers 1 2] [--step hlo_samples/….hlo]

Sweeps a training step over machines, tiles, memory, types and what products may take; then the
same again on more workers, and once more where all rows are there. Rows have to be the same.
"""

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import hloipu
from hloipu.cli.table import readable_bytes, table

STEP = Path(__file__).parents[1] / "hlo_samples" / "mnist_train_step.hlo"
AXES: Mapping[str, Sequence[Any]] = {
    "target": ["gc200", "bow"],
    "dtype": ["f32", "f16"],
    "available_memory_proportion": [0.1, 0.2, 0.4, 0.6, 0.9],
    "set.bytes_per_tile": [2**18 + 2**16 * n for n in range(10)],
    "set.tiles_per_ipu": [64 * n for n in range(1, 11)],
}
"""2,000 points, of which no two compile to the same."""


class Measured(NamedTuple):
    """One sweep, measured."""

    workers: int
    seconds: float
    rows: Any

    def cells(self) -> tuple[str, ...]:
        """Return the row of the table."""
        count = len(self.rows)
        compiling = sum(row.record["wall_seconds"] for row in self.rows)
        beside = (self.seconds * self.workers - compiling) / count
        most = max(row.record["worker_bytes"] for row in self.rows)
        return (
            str(self.workers), str(count), f"{self.seconds:.1f}", f"{count / self.seconds:.2f}",
            f"{1e3 * compiling / count:.1f}", f"{1e3 * beside:.1f}", readable_bytes(most),
        )  # fmt: skip


def measured(step: Path, points: int, workers: int, path: Path, *, resume: bool) -> Measured:
    """Sweep, and take the time."""
    start = perf_counter()
    rows = hloipu.sweep(step, AXES, path=path, points=points, workers=workers, resume=resume)
    return Measured(workers, perf_counter() - start, rows)


def main() -> None:
    """Print the table; end with an error where rows differ or fail."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=2000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--step", type=Path, default=STEP)
    asked = parser.parse_args()
    print("workers of Dask" if find_spec("distributed") else "processes")
    head = ("workers", "points", "s", "points/s", "ms of a compile", "ms beside it", "a worker")
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for workers in asked.workers:
            path = Path(folder) / f"{workers}.db"
            results.append(measured(asked.step, asked.points, workers, path, resume=False))
        again = measured(asked.step, asked.points, asked.workers[-1], path, resume=True)
        size = path.stat().st_size
    print(table(head, [one.cells() for one in results]))
    count = len(again.rows)
    print(f"all rows there: {again.seconds:.1f} s, {1e3 * again.seconds / count:.2f} ms a point; ",
          f"file {readable_bytes(size)}, {size // count} bytes a point", sep="")  # fmt: skip
    figures = [[row.figures for row in one.rows] for one in (*results, again)]
    if any(other != figures[0] for other in figures) or any(row.code for row in again.rows):
        raise SystemExit("rows differ, or failed")


if __name__ == "__main__":
    main()
