"""Tabulate what dumps cost on tiles: cycles by kind, bytes on the fullest tile, compile time.

    python -m tools.zoo_table [--json FILE] [--against OLDER.json] [--target M] FOLDER_OR_DUMP ...

Each dump is compiled and priced in a process of its own. Loops that data ends are taken to turn
`--trips` times. `--against` prints how each figure changed since an older `--json`. Ends with 1
where a program takes over 1 % more cycles than there.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from hloipu.api import compile_verified
from hloipu.options.resolve import resolve
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.errors import HloipuError

TRIPS = 10
SECONDS = 600
"""Longest that one dump may take."""
WORSE_PERCENT = 1


@dataclass(frozen=True, slots=True)
class Row:
    """What one dump costs; cycles without those of the host."""

    name: str
    compute: int
    exchange: int
    sync: int
    peak_bytes: int
    """On the fullest tile."""
    mean_bytes: int
    """Over all tiles, of the same."""
    seconds: float
    """Of processor time, from text to priced program."""

    @property
    def cycles(self) -> int:
        """Cycles on the device."""
        return self.compute + self.exchange + self.sync


def measured(path: Path, target: str, trips: int) -> Row:
    """Compile and price one dump in this process."""
    start = time.process_time()
    text = path.read_text(encoding="utf-8")
    module = parse(text)
    verify(module)
    asked = {"target": target, "over_memory": "allow", "assume_trips": trips}
    program = compile_verified(module, resolve("estimate", asked).options)
    record = program.profile().record()
    buckets, memory = record["by_bucket"], record["memory"]
    seconds = time.process_time() - start
    tiles = program.machine.chip.tiles_per_ipu
    return Row(
        path.stem,
        buckets["compute"],
        buckets["exchange"],
        buckets["sync"],
        memory["peak"]["total_bytes"],
        memory["total_bytes"] // tiles,
        round(seconds, 3),
    )


def asked_child(path: Path, target: str, trips: int) -> Row | str:
    """Measure one dump in a process of its own; a sentence says why it could not be."""
    command = [sys.executable, "-m", "tools.zoo_table", "--one", str(path)]
    command += ["--target", target, "--trips", str(trips)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"longer than {SECONDS} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no message"])[-1]
    return Row(**json.loads(done.stdout))


def dumps_in(places: Sequence[Path]) -> list[Path]:
    """Return the dumps named, and those in folders named."""
    dumps: list[Path] = []
    for place in places:
        dumps += sorted(place.glob("*.hlo")) if place.is_dir() else [place]
    return dumps


def line(row: Row, older: Row | None) -> str:
    """Return a row of the table, and how many times the older figures it is."""
    figures = [row.compute, row.exchange, row.sync, row.cycles, row.peak_bytes, row.mean_bytes]
    text = f"{row.name[:26]:26}" + "".join(f"{x:>13,}" for x in figures) + f"{row.seconds:>8.2f}"
    if older is None:
        return text
    before = [older.exchange, older.cycles, older.peak_bytes, older.seconds]
    now = [row.exchange, row.cycles, row.peak_bytes, row.seconds]
    ratios = (f"{x / y:>8.3f}" if y else f"{'-':>8}" for x, y in zip(now, before, strict=True))
    return text + "  |" + "".join(ratios)


def header(against: bool) -> str:
    """Return the names of the columns."""
    names = ("compute", "exchange", "sync", "cycles", "peak bytes", "mean bytes")
    text = f"{'dump':26}" + "".join(f"{x:>13}" for x in names) + f"{'sec':>8}"
    return text + ("  |    exch  cycles    peak     sec" if against else "")


def older_rows(path: Path | None) -> dict[str, Row]:
    """Return the rows of an earlier run by name."""
    if path is None:
        return {}
    known = {x.name for x in fields(Row)}
    listed = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return {x["name"]: Row(**{k: v for k, v in x.items() if k in known}) for x in listed}


def main() -> int:
    """Print the table; 1 where a program takes more cycles than it did."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("places", nargs="*", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--target", default="gc200")
    parser.add_argument("--trips", type=int, default=TRIPS)
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one is not None:
        try:
            print(json.dumps(asdict(measured(asked.one, asked.target, asked.trips))))
        except HloipuError as error:
            print(str(error).splitlines()[0], file=sys.stderr)
            return 1
        return 0
    older = older_rows(asked.against)
    print(header(bool(older)))
    rows: list[Row] = []
    worse: list[str] = []
    for path in dumps_in(asked.places or [Path("hlo_samples")]):
        row = asked_child(path, asked.target, asked.trips)
        if isinstance(row, str):
            print(f"{path.stem[:26]:26} {row}")
            continue
        rows.append(row)
        before = older.get(row.name)
        print(line(row, before), flush=True)
        if before is not None and 100 * row.cycles > (100 + WORSE_PERCENT) * before.cycles:
            worse.append(row.name)
    if asked.json is not None:
        record = {"schema": "hloipu.zoo-table/1", "target": asked.target, "trips": asked.trips}
        listed = [{**asdict(x), "cycles": x.cycles} for x in rows]
        asked.json.write_text(json.dumps({**record, "rows": listed}, indent=1), encoding="utf-8")
    if worse:
        print(f"more cycles than before: {', '.join(worse)}")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
