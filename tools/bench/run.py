"""Time compiled programs in both modes, with compiled kernels and without, against XLA:CPU.

    python -m tools.bench run [--only WORDS] [--types NAMES] [--cores N,..] [--repeats N]
                              [--against CHECKOUT] [--cold] [--json FILE]

Every program runs in f32, bf16 and f16, whose floats are all of one type, the others as they are.
All sides run on the same cores, in processes of their own and in turn; figures are medians of
processor time on one core, of the clock on several, and ratios are medians of the ratios of
neighbouring measurements. Programs are compiled for `gc200`; `exact` runs without poison. At the
end: programs by what they take of XLA's time, the worst first, with the steps and functions that
take it. `--against` measures another checkout in the same run. With `--cold`, processes of their
own compile and run each program once, whole tensors and XLA: their processor time from the start
on, and peak memory.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hloipu.inputs import flat
from hloipu_compiler.hlo.parse import parse
from tests.support.xla_oracle import available
from tools.bench.shared.cold import Cold, measure_cold
from tools.bench.shared.op_cases import Case
from tools.bench.shared.runner import scaled_arguments
from tools.bench.shared.sides import (
    ROOT,
    SEED,
    Side,
    calls_for,
    environment_of_sides,
    geometric_mean,
    median_ratio,
)
from tools.bench.shared.whole_modules import module_cases

TYPES = ("f32", "bf16", "f16")
SIDES = ("functional", "functional-plain", "exact", "exact-plain", "xla")
RATIOS = {
    "functional/xla": 1.1,
    "functional-plain/xla": 1.4,
    "exact/xla": 4.0,
    "exact/functional": 1.5,
    "exact-plain/functional-plain": 1.5,
}
"""What is compared, and the most that its geometric mean may be."""

COLD_TARGET, PEAK_TARGET = 0.5, 0.6
"""Most times of XLA's that a new process may take to its first result, and of memory."""

WARM_SECONDS, WARM_CALLS = 1.0, 4000
"""Run so long, or so often, before anything is measured: kernels are compiled after a while."""


@dataclass(frozen=True, slots=True)
class Row:
    """Medians for one program in one type, on so many cores."""

    family: str
    name: str
    type: str
    cores: int
    ms: dict[str, float]
    """Of a run, by side."""
    ratios: dict[str, float]
    slow: dict[str, str]
    """Where each mode spends its time."""

    @property
    def title(self) -> str:
        """Name, type and cores."""
        return f"{self.family} {self.name}, {self.type}, {self.cores} core(s)"


def cases_of(types: Sequence[str], words: Sequence[str]) -> Iterator[tuple[str, Case]]:
    """Yield the programs whose family and name hold one of the words, in their types."""
    for kind in types:
        for case in module_cases(kind):
            if any(word in f"{case.family} {case.name}" for word in words):
                yield kind, case


def measure(sides: dict[str, Side], kind: str, case: Case, cores: int, repeats: int) -> Row | str:
    """Measure one program; a sentence says why it could not be."""
    for side in sides.values():
        error = side.ask(text=case.text, seed=SEED, scale=case.scale).get("error")
        if error:
            return f"{side.name}: {error}"
    calls = {}
    for name, side in sides.items():
        once = side.seconds(1)
        side.seconds(max(1, min(WARM_CALLS, round(WARM_SECONDS / max(once, 1e-6)))))
        calls[name] = calls_for(side.seconds(1))
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, side in sides.items():
            seconds[name].append(side.seconds(calls[name]))
    pairs = [x.split("/") for x in RATIOS]
    pairs += [[name, f"other {name}"] for name in sides if f"other {name}" in sides]
    return Row(
        case.family, case.name, kind, cores,
        {name: 1e3 * statistics.median(times) for name, times in seconds.items()},
        {f"{a}/{b}": median_ratio(seconds[a], seconds[b]) for a, b in pairs},
        {name: str(sides[name].ask(slow=True)["slow"]) for name in ("functional", "exact")},
    )  # fmt: skip


def measured(
    cores: Collection[int], cases: Sequence[tuple[str, Case]], repeats: int, against: Path | None
) -> tuple[dict[str, Any], list[Row]]:
    """Measure programs on some cores; print and return their rows, behind the setting."""
    rows = []
    with ExitStack() as stack:
        wanted = {name: (name, ROOT) for name in SIDES}
        if against is not None:
            wanted |= {f"other {name}": (name, against.resolve()) for name in SIDES[:4]}
        sides = {
            title: stack.enter_context(closing(Side(name, cores, root)))
            for title, (name, root) in wanted.items()
        }
        setting = sides["functional"].ask(setting=True)
        load = os.getloadavg()[0]
        print(f"BLAS: {setting['blas']}; kernels: {setting['kernels']}; cores {sorted(cores)}; "
              f"load {load:.2f}")  # fmt: skip
        print(f"{'ms of a run':<40}{'type':<6}" + "".join(f"{x:>18}" for x in sides))
        for kind, case in cases:
            row = measure(sides, kind, case, len(cores), repeats)
            if isinstance(row, str):
                print(f"{case.family} {case.name}, {kind}: {row}", file=sys.stderr)
                continue
            figures = "".join(f"{x:>18.3f}" for x in row.ms.values())
            print(f"{f'{row.family} {row.name}':<40}{kind:<6}{figures}", flush=True)
            rows.append(row)
    return {**setting, "cores": sorted(cores), "load": load}, rows


def summary(rows: Sequence[Row]) -> None:
    """Print geometric means and worst ratios by type and cores, then programs, worst first."""
    for cores, kind in dict.fromkeys((row.cores, row.type) for row in rows):
        mine = [row for row in rows if (row.cores, row.type) == (cores, kind)]
        print(f"\n{kind}, {cores} core(s), {len(mine)} programs")
        for name in mine[0].ratios:
            worst = max(mine, key=lambda row: row.ratios[name])
            target = f" (target {RATIOS[name]})" if name in RATIOS else ""
            mean = geometric_mean(row.ratios[name] for row in mine)
            print(f"  {name:<32}geometric mean {mean:.2f}{target}, "
                  f"worst {worst.ratios[name]:.2f} {worst.name}")  # fmt: skip
    for name, mode in (("functional/xla", "functional"), ("exact/xla", "exact")):
        print(f"\n{name}, the worst first")
        for row in sorted(rows, key=lambda row: -row.ratios[name]):
            print(f"{row.ratios[name]:>7.2f} {row.title}: {row.slow[mode]}")


def cold_of(case: Case, core: int) -> tuple[Cold, Cold] | str:
    """Run one program in new processes, on our side and on XLA's."""
    arguments = flat(scaled_arguments(parse(case.text), SEED, case.scale))
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})  # children take it over; a fork with JAX here may hang
    try:
        ours, theirs = (
            measure_cold(side, case.text, arguments, ROOT, environment_of_sides())
            for side in ("functional", "xla")
        )
    finally:
        os.sched_setaffinity(0, cores)
    if isinstance(ours, str) or isinstance(theirs, str):
        return ours if isinstance(ours, str) else str(theirs)
    return ours, theirs


def cold(cases: Sequence[tuple[str, Case]], core: int) -> list[dict[str, Any]]:
    """Measure first runs of new processes; print and return them."""
    print(f"{'a new process':<46}{'first s':>10}{'/XLA':>8}{'peak MiB':>10}{'/XLA':>8}")
    pairs, rows = [], []
    for kind, case in cases:
        pair = cold_of(case, core)
        if isinstance(pair, str):
            print(f"{case.family} {case.name}, cold: {pair}", file=sys.stderr)
            continue
        ours, theirs = pair
        pairs.append((ours.seconds / theirs.seconds, ours.peak_mib / theirs.peak_mib))
        rows.append({"name": case.name, "type": kind, "ours": asdict(ours), "xla": asdict(theirs)})
        print(f"{f'{case.family} {case.name}':<40}{kind:<6}{ours.seconds:>10.2f}"
              f"{pairs[-1][0]:>8.2f}{ours.peak_mib:>10.0f}{pairs[-1][1]:>8.2f}",
              flush=True)  # fmt: skip
    first, peak = (geometric_mean(pair[k] for pair in pairs) for k in range(2))
    print(f"geometric means over XLA's: first result {first:.2f} (target {COLD_TARGET}), peak "
          f"memory {peak:.2f} (target {PEAK_TARGET}), {len(pairs)} programs")  # fmt: skip
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the tables, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default="", help="words that family or name must hold")
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--cores", default="1", help="numbers of cores: 1, or 1,2")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--against", type=Path, help="another checkout, measured as well")
    parser.add_argument("--cold", action="store_true", help="first runs of new processes instead")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    options = parser.parse_args(arguments)
    if not available():
        print("jaxlib is not installed: install the dependency group oracle", file=sys.stderr)
        return 2
    there = sorted(os.sched_getaffinity(0), reverse=True)
    numbers = [int(x) for x in options.cores.split(",")]
    if not all(0 < x <= len(there) for x in numbers):
        parser.error(f"--cores: there are {len(there)}")
    cases = list(cases_of(options.types.split(","), options.only.split(",")))
    figures: dict[str, Any] = {"schema": "hloipu.bench-run/2"}
    if options.cold:
        figures["cold"] = cold(cases, there[0])
    else:
        parts = [measured(set(there[:x]), cases, options.repeats, options.against) for x in numbers]
        rows = [row for _, made in parts for row in made]
        summary(rows)
        figures["settings"] = [setting for setting, _ in parts]
        figures["programs"] = [asdict(row) for row in rows]
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
