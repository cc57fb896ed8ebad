"""Time our parser against XLA's C++ parser on the same texts, and how fast the tool starts.

    python -m tools.bench parse [FILE]... [--repeats N] [--sizes 1000,10000] [--json FILE]

Ours and XLA's runs alternate, each in a process of its own; figures are medians of processor time.
`x XLA` columns are ratios to XLA's parse, which verifies nothing.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.support.xla_oracle import Oracle, available
from tools.bench.shared import texts

ROOT = Path(__file__).resolve().parents[2]
LARGEST_GRAMMAR_BYTES = 3_000_000
"""The grammar-only path takes 50 us an instruction; it is timed once, and not on larger texts."""


@dataclass(frozen=True, slots=True)
class Row:
    """Medians for one text."""

    name: str
    instructions: int
    kilobytes: float
    xla_ms: float
    parse_ms: float
    verified_ms: float
    graph_ms: float
    grammar_ms: float
    peak_megabytes: float
    """Of a fresh process that parses and verifies, over one that only reads the file."""

    @property
    def parse_ratio(self) -> float:
        """Our parse over XLA's."""
        return self.parse_ms / self.xla_ms

    @property
    def verified_ratio(self) -> float:
        """Text to verified module over XLA's parse."""
        return self.verified_ms / self.xla_ms


class Reader:
    """Our side, in a process of its own."""

    def __init__(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tools.bench.shared.reader"],
            cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def ask(self, operation: str, path: Path) -> list[float]:
        """Return the numbers that the child answers."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        print(operation, path.resolve(), file=self._child.stdin, flush=True)
        return [float(word) for word in self._child.stdout.readline().split()]

    def close(self) -> None:
        """End the child."""
        self._child.communicate()


def peak_bytes(operation: str, path: Path) -> float:
    """Return the peak resident bytes of a fresh process after one operation."""
    reader = Reader()
    try:
        return reader.ask(operation, path)[1]
    finally:
        reader.close()


def measure(name: str, path: Path, reader: Reader, oracle: Oracle, repeats: int) -> Row:
    """Measure one text, ours and XLA's in turn."""
    text = path.read_text(encoding="utf-8")
    xla: list[float] = []
    times: dict[str, list[float]] = {"parse": [], "verified": [], "graph": []}
    runs = max(3, repeats // 4) if len(text) > 2_000_000 else repeats
    reader.ask("verified", path)  # the first run also builds the grammar
    for _ in range(runs):
        xla += oracle.time_parse(text, 1)
        times["parse"].append(reader.ask("parse", path)[0])
        times["verified"].append(reader.ask("verified", path)[0])
    times["graph"].append(reader.ask("graph", path)[0] - statistics.median(times["parse"]))
    small = len(text) <= LARGEST_GRAMMAR_BYTES
    grammar = reader.ask("grammar", path)[0] if small else float("nan")
    middle = {key: 1e3 * statistics.median(values) for key, values in times.items()}
    peak = peak_bytes("verified", path) - peak_bytes("nothing", path)
    return Row(
        name, round(reader.ask("count", path)[0]), len(text) / 1e3, 1e3 * statistics.median(xla),
        middle["parse"], middle["verified"], middle["graph"], 1e3 * grammar, peak / 1e6,
    )  # fmt: skip


def start_up(dump: Path, repeats: int) -> dict[str, float]:
    """Return the median milliseconds of starting Python, numpy and the tool."""
    python = sys.executable
    commands = {
        "python -c pass": [python, "-c", "pass"],
        "python -c 'import numpy'": [python, "-c", "import numpy"],
        "hloipu --version": [python, "-m", "hloipu", "--version"],
        "hloipu show (100 kB dump)": [python, "-m", "hloipu", "show", str(dump)],
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(repeats):
        for name, command in commands.items():
            start = time.perf_counter()
            done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
            if done.returncode == 0:
                times[name].append(time.perf_counter() - start)
    return {name: 1e3 * statistics.median(values) for name, values in times.items() if values}


def show(rows: Sequence[Row], starts: dict[str, float]) -> None:
    """Print the tables."""
    print(
        f"{'text':<28}{'instr':>8}{'kB':>8}{'XLA ms':>9}{'parse ms':>10}{'x XLA':>7}"
        f"{'verified':>10}{'x XLA':>7}{'us/instr':>9}{'graph ms':>10}{'grammar ms':>12}"
        f"{'peak MB':>9}"
    )
    for row in rows:
        print(
            f"{row.name[:27]:<28}{row.instructions:>8}{row.kilobytes:>8.0f}{row.xla_ms:>9.2f}"
            f"{row.parse_ms:>10.2f}{row.parse_ratio:>7.2f}{row.verified_ms:>10.2f}"
            f"{row.verified_ratio:>7.2f}{1e3 * row.verified_ms / row.instructions:>9.2f}"
            f"{row.graph_ms:>10.1f}{row.grammar_ms:>12.1f}{row.peak_megabytes:>9.1f}"
        )
    base = starts.get("python -c pass")
    numpy = starts.get("python -c 'import numpy'")
    if base and numpy:
        print(f"\n{'start-up':<30}{'ms':>8}{'x python':>10}{'x numpy':>9}")
        for name, milliseconds in starts.items():
            ratios = f"{milliseconds / base:>10.2f}{milliseconds / numpy:>9.2f}"
            print(f"{name:<30}{milliseconds:>8.1f}{ratios}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the tables, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("files", nargs="*", type=Path, help="further dumps to measure")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument(
        "--sizes", default="1000,10000,100000", help="instructions of generated texts"
    )
    parser.add_argument("--texts", type=Path, default=Path("out/bench"), help="where they are kept")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    options = parser.parse_args(arguments)
    if not available():
        print("jaxlib is not installed: install the dependency group oracle", file=sys.stderr)
        return 2
    sizes = tuple(int(size) for size in options.sizes.split(",") if size)
    files = [
        (f.stem, f)
        for f in sorted((ROOT / "hlo_samples").glob("*.hlo"))
        if f.stat().st_size > 20_000
    ]
    files += [(f.stem, f) for f in options.files]
    generated = list(texts.generated(options.texts, sizes))
    reader, rows = Reader(), []
    with Oracle() as oracle:
        for name, path in files + generated:
            if not oracle.parse(path.read_text(encoding="utf-8")).accepted:
                print(f"{name}: XLA does not read it, left out", file=sys.stderr)
                continue
            rows.append(measure(name, path, reader, oracle, options.repeats))
    reader.close()
    near = min((p for _, p in files + generated), key=lambda p: abs(p.stat().st_size - 100_000))
    starts = start_up(near, options.repeats)
    show(rows, starts)
    if options.json:
        figures = {
            "schema": "hloipu.bench-parse/1",
            "rows": [
                {**asdict(r), "parse_ratio": r.parse_ratio, "verified_ratio": r.verified_ratio}
                for r in rows
            ],
            "start_up_ms": starts,
        }  # fmt: skip
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
