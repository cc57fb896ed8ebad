"""Time compiled programs: whole tensors against XLA:CPU, tile by tile against whole tensors.

    python -m tools.bench run [--only WORDS] [--repeats N] [--cold] [--json FILE]
    python -m tools.bench run --types [--mode MODE] [--against CHECKOUT] [--only WORDS]

All sides run on one core, in processes of their own and in turn; figures are medians of processor
time, ratios are medians of the ratios of neighbouring measurements. Programs are compiled for
`gc200`; `exact` runs without poison. With `--cold`, processes of their own compile and run each
program once, whole tensors and XLA: their processor time from the start on, and peak memory. With
`--types`, programs in f32, bf16 and f16, with compiled kernels, without, and by XLA, all in turn,
and then where time goes, the worst first; `--against` measures another checkout in the same run.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hloipu.inputs import flat
from hloipu_compiler.hlo.parse import parse
from tests.support.xla_oracle import available
from tools.bench.shared import by_type
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
)
from tools.bench.shared.whole_modules import module_cases

FUNCTIONAL_TARGET = 1.4
"""Most times of XLA's that whole tensors may take, geometric mean."""

EXACT_TARGET = 3.0
"""Most times of whole tensors' that tiles may take, over programs of some length."""

COLD_TARGET, PEAK_TARGET = 0.5, 0.6
"""Most times of XLA's that a new process may take to its first result, and of memory."""

LONG_MS = 5.0
NAMES = ("functional", "exact", "xla")


@dataclass(frozen=True, slots=True)
class Row:
    """Medians for one program, milliseconds of processor time a run."""

    family: str
    name: str
    functional_ms: float
    exact_ms: float
    xla_ms: float
    functional_over_xla: float
    exact_over_functional: float
    cold: tuple[Cold, Cold] | None = None
    """Of a process that begins with nothing: ours, XLA's."""


def measure(sides: dict[str, Side], case: Case, repeats: int) -> Row | str:
    """Measure one program; a sentence says why it could not be."""
    for side in sides.values():
        error = side.ask(text=case.text, seed=SEED, scale=case.scale).get("error")
        if error:
            return f"{side.name}: {error}"
    calls = {name: calls_for(side.seconds(1)) for name, side in sides.items()}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, side in sides.items():
            seconds[name].append(side.seconds(calls[name]))
    medians = {name: 1e3 * statistics.median(times) for name, times in seconds.items()}
    return Row(
        case.family,
        case.name,
        medians["functional"],
        medians["exact"],
        medians["xla"],
        _ratio(seconds["functional"], seconds["xla"]),
        _ratio(seconds["exact"], seconds["functional"]),
    )


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


def _ratio(first: Sequence[float], second: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(first, second, strict=True))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default="", help="words that family or name must hold")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--core", type=int, help="the core to run on (default: the last)")
    parser.add_argument("--cold", action="store_true", help="also first runs of new processes")
    parser.add_argument("--types", action="store_true", help="f32, bf16 and f16 side by side")
    parser.add_argument("--mode", default="functional", choices=("functional", "exact"))
    parser.add_argument("--against", type=Path, help="with --types: another checkout as well")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    options = parser.parse_args(arguments)
    if not available():
        print("jaxlib is not installed: install the dependency group oracle", file=sys.stderr)
        return 2
    core = max(os.sched_getaffinity(0)) if options.core is None else options.core
    if options.types:
        made = by_type.run(
            core, options.only.split(","), options.repeats, options.against, options.mode
        )
        if options.json:
            options.json.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
        return 0
    if options.against or options.mode != "functional":
        parser.error("--against and --mode go with --types")
    load = os.getloadavg()[0]
    rows = []
    with ExitStack() as stack:
        sides = {name: stack.enter_context(closing(Side(name, core))) for name in NAMES}
        setting = sides["functional"].ask(setting=True)
        print(f"BLAS: {setting['blas']}; core {core}; load {load:.2f}")
        head: tuple[str, ...] = (
            "program",
            "functional ms",
            "exact ms",
            "XLA ms",
            "fun/XLA",
            "exact/fun",
        )
        if options.cold:
            head = (*head, "first s", "/XLA", "peak MiB", "/XLA")
        print(f"{head[0]:<44}" + "".join(f"{h:>15}" for h in head[1:]))
        for case in module_cases():
            if not any(w in f"{case.family} {case.name}" for w in options.only.split(",")):
                continue
            row = measure(sides, case, options.repeats)
            if isinstance(row, str):
                print(f"{case.family} {case.name}: {row}", file=sys.stderr)
                continue
            figures = list(asdict(row).values())[2:-1]
            cold = cold_of(case, core) if options.cold else None
            if isinstance(cold, str):
                print(f"{case.family} {case.name}, cold: {cold}", file=sys.stderr)
            elif cold is not None:
                row = replace(row, cold=cold)
                figures += [cold[0].seconds, cold[0].seconds / cold[1].seconds]
                figures += [cold[0].peak_mib, cold[0].peak_mib / cold[1].peak_mib]
            title = f"{row.family} {row.name}"
            print(f"{title:<44}" + "".join(f"{x:>15.3f}" for x in figures), flush=True)
            rows.append(row)
    long = [r for r in rows if r.functional_ms >= LONG_MS]
    whole = geometric_mean(r.functional_over_xla for r in rows)
    tiles = geometric_mean(r.exact_over_functional for r in long)
    print(
        f"functional over XLA: geometric mean {whole:.2f} (target {FUNCTIONAL_TARGET}), "
        f"{len(rows)} programs; exact over functional: geometric mean {tiles:.2f} (target "
        f"{EXACT_TARGET}), {len(long)} programs of {LONG_MS:g} ms and more; load at the end "
        f"{os.getloadavg()[0]:.2f}"
    )
    pairs = [r.cold for r in rows if r.cold is not None]
    if pairs:
        first = geometric_mean(ours.seconds / theirs.seconds for ours, theirs in pairs)
        peak = geometric_mean(ours.peak_mib / theirs.peak_mib for ours, theirs in pairs)
        print(
            f"a new process over XLA's: first result {first:.2f} (target {COLD_TARGET}), peak "
            f"memory {peak:.2f} (target {PEAK_TARGET}), geometric means of {len(pairs)} programs"
        )
    if options.json:
        figures_json = {
            "schema": "hloipu.bench-run/1",
            "setting": {**setting, "core": core, "load": load},
            "programs": [asdict(row) for row in rows],
        }
        options.json.write_text(json.dumps(figures_json, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
