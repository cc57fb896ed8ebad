"""Time our kernels and our evaluator against XLA:CPU, one thread each.

    python -m tools.bench ops [--only WORDS] [--ops | --modules] [--repeats N] [--json FILE]

Both sides run on one core, in processes of their own and in turn; figures are medians of processor
time, and a ratio is the median of the ratios of neighbouring measurements. Ours is the evaluator
on values in storage form, without the conversion of users' arrays.
"""

import argparse
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.support.xla_oracle import available
from tools.bench.shared.op_cases import SIZES, Case, op_cases
from tools.bench.shared.sides import Pair, Row, geometric_mean

OPS_TARGET = 2.5
MODULES_TARGET = 3.5


def run(pair: Pair, cases: Iterable[Case], repeats: int) -> list[Row]:
    """Measure each case; what cannot run on either side is named on the standard error."""
    rows = []
    for case in cases:
        row = pair.measure(case, repeats)
        if isinstance(row, str):
            print(f"{case.family} {case.name} {case.size}: {row}", file=sys.stderr)
            continue
        print(
            f"{case.family:<16}{case.name:<28}{case.size:<8}"
            f"{row.ours_ms:>11.4f}{row.xla_ms:>11.4f}{row.ratio:>8.2f}",
            flush=True,
        )
        rows.append(row)
    return rows


def show_families(rows: Sequence[Row]) -> None:
    """Print each family's geometric means by size, and its worst module."""
    families: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        families[row.family].append(row)
    print(f"\n{'family':<16}" + "".join(f"{s:>8}" for s in SIZES) + f"{'all':>8}  worst")
    for family, members in families.items():
        means = [geometric_mean(r.ratio for r in members if r.size == s) for s in SIZES]
        worst = max(members, key=lambda r: r.ratio)
        print(
            f"{family:<16}"
            + "".join(f"{mean:>8.2f}" for mean in means)
            + f"{geometric_mean(r.ratio for r in members):>8.2f}"
            + f"  {worst.ratio:.2f} {worst.name} ({worst.size})"
        )


def summary(title: str, rows: Sequence[Row], target: float) -> None:
    """Print the geometric mean and the worst ratio."""
    if rows:
        worst = max(rows, key=lambda r: r.ratio)
        print(
            f"\n{title}: geometric mean {geometric_mean(r.ratio for r in rows):.2f} "
            f"(target {target}), worst {worst.ratio:.2f} {worst.name} {worst.size}, "
            f"{len(rows)} modules"
        )


def chosen(cases: Iterable[Case], words: str) -> Iterable[Case]:
    """Keep the cases whose family, name and size hold one of the comma-separated words."""
    wanted = words.split(",")
    return (c for c in cases if any(w in f"{c.family} {c.name} {c.size}" for w in wanted))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the tables, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default="", help="words that family, name or size must hold")
    parser.add_argument("--ops", action="store_true", help="one-op modules only")
    parser.add_argument("--modules", action="store_true", help="whole modules only")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--core", type=int, help="the core to run on (default: the last)")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    options = parser.parse_args(arguments)
    if not available():
        print("jaxlib is not installed: install the dependency group oracle", file=sys.stderr)
        return 2
    core = max(os.sched_getaffinity(0)) if options.core is None else options.core
    ops: list[Row] = []
    modules: list[Row] = []
    load_before = os.getloadavg()[0]
    with Pair(core) as pair:
        setting = pair.ours.ask(setting=True)
        print(f"BLAS: {setting['blas']}; core {core}; load {load_before:.2f}")
        print(f"{'family':<16}{'module':<28}{'size':<8}{'ours ms':>11}{'XLA ms':>11}{'ratio':>8}")
        if not options.modules:
            ops = run(pair, chosen(op_cases(), options.only), options.repeats)
        if not options.ops:
            from tools.bench.shared.whole_modules import module_cases  # imports jax: a second

            modules = run(pair, chosen(module_cases(), options.only), options.repeats)
    show_families(ops)
    summary("ops", ops, OPS_TARGET)
    summary("whole modules", modules, MODULES_TARGET)
    print(f"load at the end: {os.getloadavg()[0]:.2f}")
    if options.json:
        figures = {
            "schema": "hloipu.bench-ops/1",
            "setting": {**setting, "core": core, "load": load_before},
            "ops": [asdict(row) for row in ops],
            "modules": [asdict(row) for row in modules],
        }
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
