"""How tile memory and link speed change what fits and how long it takes, for whole networks.

    python -m tools.machine_study [--only NAME ...] [--workers N]

Sweeps training steps, in the cuts that were published for them, over sizes of a tile's memory and
over speeds of the links between IPUs, and writes docs/machine-study.md, with those of `--only` if
it is given. Rows are kept in out/machine-study; what is there is not compiled again.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import hloipu
from tools.fidelity.runs import NO_HOST, network_text, read_runs

_ROOT = Path(__file__).resolve().parents[1]
DOCUMENT, STORE = _ROOT / "docs" / "machine-study.md", _ROOT / "out" / "machine-study"
RUNS = ("resnet50-train-b16-4-ipus", "gpt2-1024", "bert-large-128")
"""Of tools/fidelity/runs.toml."""
GC200_TILE_BYTES, GC200_LINK_BYTES = 638_976, 16_000_000_000
AXES: Mapping[str, Sequence[int]] = {
    "set.bytes_per_tile": [GC200_TILE_BYTES * percent // 100 // 4096 * 4096
                           for percent in (75, 100, 125, 150, 200)],
    "set.link_bytes_per_second": [GC200_LINK_BYTES // 4, GC200_LINK_BYTES, 4 * GC200_LINK_BYTES],
}  # fmt: skip
"""Each alone, the other as on a GC200."""
HEAD = """# Tile memory, link speed, and what fits

How a machine's numbers change what fits and how fast it is, for training steps of networks in
the cuts that Graphcore published for them (`tools/fidelity/runs.toml`), on one replica. `make
machine-study` writes this page with [sweeps](sweeps.md), in half an hour (`python -m
tools.machine_study --only NAME` takes others alone). Everything else is as on
a GC200; programs are planned anew for each machine, and hosts take no time. A GC200 is 1.00 in both
columns of machines.
"""


def rows_of(name: str, axis: str, workers: int) -> Any:
    """Return a row for each value of an axis, those that are kept among them."""
    run = read_runs()[name]
    own = {"replicas": 1, "partials_type": "f16", "set": NO_HOST}
    path = STORE / f"{name}-{axis.removeprefix('set.')}.db"
    return hloipu.sweep(
        network_text(run.network), {axis: AXES[axis]}, path=path, workers=workers,
        resume=path.exists(), **{**run.options, **own},
    )  # fmt: skip


def document(studies: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page of rows by network and axis."""
    return HEAD + "".join(line + "\n" for line in _lines(studies))


def _lines(studies: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for name, by_axis in studies.items():
        yield f"\n## {name}\n"
        yield "| tile memory | link speed | fits | fullest tile | of it code | cycles, GC200 = 1 |"
        yield "|---:|---:|---|---:|---:|---:|"
        for axis, rows in by_axis.items():
            ours = rows[AXES[axis].index(_own(axis))]
            for value, row in zip(AXES[axis], rows, strict=True):
                share = value / _own(axis)
                of_machine = (f"{share:.2f}", "1.00")
                if axis != "set.bytes_per_tile":
                    if row is ours:
                        continue
                    of_machine = of_machine[::-1]
                yield f"| {' | '.join((*of_machine, *_cells(row, ours)))} |"


def _own(axis: str) -> int:
    return GC200_TILE_BYTES if axis == "set.bytes_per_tile" else GC200_LINK_BYTES


def _cells(row: Any, ours: Any) -> tuple[str, ...]:
    if row.code:
        return (row.code, "", "", "")
    figures = row.figures
    return (
        "yes" if figures["fits"] else "no",
        f"{figures['peak_bytes'] / figures['available_bytes']:.2f}",
        f"{figures['code_bytes'] / figures['available_bytes']:.2f}",
        f"{figures['device_cycles'] / ours.figures['device_cycles']:.3f}",
    )


def main() -> None:
    """Sweep what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=RUNS, choices=RUNS)
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    STORE.mkdir(parents=True, exist_ok=True)
    studies = {
        name: {axis: rows_of(name, axis, asked.workers) for axis in AXES} for name in asked.only
    }
    DOCUMENT.write_text(document(studies), encoding="utf-8")
    print(document(studies))


if __name__ == "__main__":
    main()
