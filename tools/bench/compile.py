"""Time compiling against XLA:CPU's compiler, and how it grows with the length of a module.

    python -m tools.bench compile [--only WORDS] [--repeats N] [--json FILE] [DUMP ...]

Ours is everything from text to a proved, priced and placed program for `gc200`; XLA's is from text
to an executable. Both sides run on one core, in processes of their own and in turn; figures are
medians of processor time.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path

from hloipu_compiler.hlo.parse import parse
from tests.support.xla_oracle import available
from tools.bench.shared.sides import Side, geometric_mean

TARGET = 1.0
"""Most times of XLA's, geometric mean over modules of many instructions."""

MANY = 500
STRAIGHT_LINES = (1_000, 3_000, 10_000, 30_000, 100_000)
MOST_FOR_XLA = 10_000
"""XLA's own time grows faster than the module: beyond this it takes minutes."""


@dataclass(frozen=True, slots=True)
class Row:
    """Medians for one module, milliseconds of processor time; XLA's is 0 where not measured."""

    name: str
    instructions: int
    ours_ms: float
    xla_ms: float
    ratio: float


def straight_line(count: int) -> str:
    """Return a module of `count` instructions in a row, three ops in turn, no two alike."""
    lines = [
        "HloModule straight",
        "ENTRY main {",
        "  x0 = f32[64,64] parameter(0)",
        "  y = f32[64,64] parameter(1)",
    ]
    ops = ("add(x{0}, y)", "multiply(x{0}, x{0})", "tanh(x{0})")
    for number in range(1, count - 2):
        lines.append(f"  x{number} = f32[64,64] {ops[number % 3].format(number - 1)}")
    lines.append(f"  ROOT r = f32[64,64] add(x{count - 3}, y)")
    return "\n".join([*lines, "}", ""])


def texts(dumps: Sequence[Path], words: str) -> Iterator[tuple[str, str]]:
    """Yield names and texts: programs printed by JAX, dumps that were named, straight lines."""
    from tools.bench.shared.whole_modules import module_cases  # imports jax: a second

    wanted = words.split(",")
    for case in module_cases():
        yield f"{case.family} {case.name}", case.text
    for path in dumps:
        yield path.name, path.read_text(encoding="utf-8")
    for count in STRAIGHT_LINES:
        if any(w in f"straight {count}" for w in wanted):
            yield f"straight {count}", straight_line(count)


def measure(sides: dict[str, Side], name: str, text: str, repeats: int) -> Row | str:
    """Measure one module; a sentence says why it could not be."""
    instructions = parse(text).instruction_count
    names = ["functional"] if instructions > 2 * MOST_FOR_XLA else list(sides)
    seconds: dict[str, list[float]] = {side: [] for side in names}
    for turn in range(repeats + 1):
        for side in names:
            answer = sides[side].ask(compile=text)
            if "error" in answer:
                return f"{side}: {answer['error']}"
            if turn:  # the first warms caches of both
                seconds[side].append(answer["seconds"])
        if sum(map(sum, seconds.values())) > 60 and turn:
            break
    ours = 1e3 * statistics.median(seconds["functional"])
    theirs = 1e3 * statistics.median(seconds["xla"]) if "xla" in seconds else 0.0
    return Row(name, instructions, ours, theirs, ours / theirs if theirs else 0.0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("dumps", nargs="*", type=Path)
    parser.add_argument("--only", default="", help="words that a name must hold")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--core", type=int, help="the core to run on (default: the last)")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    options = parser.parse_args(arguments)
    if not available():
        print("jaxlib is not installed: install the dependency group oracle", file=sys.stderr)
        return 2
    core = max(os.sched_getaffinity(0)) if options.core is None else options.core
    load = os.getloadavg()[0]
    rows = []
    with ExitStack() as stack:
        sides = {
            name: stack.enter_context(closing(Side(name, {core}))) for name in ("functional", "xla")
        }
        print(f"core {core}; load {load:.2f}")
        print(f"{'module':<44}{'instructions':>13}{'ours ms':>11}{'XLA ms':>11}{'ratio':>8}")
        for name, text in texts(options.dumps, options.only):
            if not any(word in name for word in options.only.split(",")):
                continue
            row = measure(sides, name, text, options.repeats)
            if isinstance(row, str):
                print(f"{name}: {row}", file=sys.stderr)
                continue
            print(
                f"{row.name:<44}{row.instructions:>13}{row.ours_ms:>11.1f}{row.xla_ms:>11.1f}"
                f"{row.ratio:>8.2f}",
                flush=True,
            )
            rows.append(row)
    many = [r.ratio for r in rows if r.instructions > MANY and r.ratio]
    print(
        f"over XLA above {MANY} instructions: geometric mean {geometric_mean(many):.2f} "
        f"(target {TARGET}), {len(many)} modules; load at the end {os.getloadavg()[0]:.2f}"
    )
    if options.json:
        figures = {
            "schema": "hloipu.bench-compile/1",
            "setting": {"core": core, "load": load},
            "modules": [asdict(row) for row in rows],
        }
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
