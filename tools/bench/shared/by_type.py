"""Programs in f32, bf16 and f16: with compiled kernels, without, and by XLA:CPU, in turn.

What a shorter float costs, what kernels gain, what XLA:CPU takes; perhaps also in another checkout,
which is run without kernels if it knows of none.
"""

import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools.bench.shared.op_cases import Case
from tools.bench.shared.sides import ROOT, SEED, Side, calls_for, geometric_mean
from tools.bench.shared.whole_modules import module_cases

TYPES = ("f32", "bf16", "f16")
TARGET = 1.6
"""Most times of f32's that a program in a shorter float may take, geometric mean."""

WARM_SECONDS, WARM_CALLS = 1.0, 40
"""Run so long, or so often, before anything is measured: kernels are compiled after a while."""

Key = tuple[str, str]
"""How it is run (`fast`, `plain`, `xla`, or `other`, another checkout), and the type."""


@dataclass(frozen=True, slots=True)
class TypeRow:
    """Medians for one program in one type."""

    family: str
    name: str
    type: str
    fast_ms: float
    ratios: dict[str, float]
    """`plain/fast`, `fast/xla` and so on; `fast/f32`: of the same program in f32."""
    slow: str
    """Where the fast side spends its time."""


def measure(
    sides: dict[Key, Side], cases: dict[str, Case], repeats: int
) -> dict[Key, list[float]] | str:
    """Measure a program on all sides; a sentence says why not."""
    for (_, kind), side in sides.items():
        case = cases[kind]
        error = side.ask(text=case.text, seed=SEED, scale=case.scale).get("error")
        if error:
            return f"{side.name}, {kind}: {error}"
    calls = {}
    for key, side in sides.items():
        once = side.seconds(1)
        side.seconds(max(1, min(WARM_CALLS, round(WARM_SECONDS / max(once, 1e-6)))))
        calls[key] = calls_for(side.seconds(1))
    seconds: dict[Key, list[float]] = {key: [] for key in sides}
    for _ in range(repeats):
        for key, side in sides.items():
            seconds[key].append(side.seconds(calls[key]))
    return seconds


def _ratio(first: Sequence[float], second: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(first, second, strict=True))


def rows_of(
    case: Case, seconds: dict[Key, list[float]], slow: Callable[[str], str]
) -> list[TypeRow]:
    """Return a program's rows, one a type; `slow` tells of a type where time goes."""
    hows = tuple(dict.fromkeys(how for how, _ in seconds))
    rows = []
    for kind in TYPES:
        fast = seconds["fast", kind]
        ratios = {f"fast/{x}": _ratio(fast, seconds[x, kind]) for x in hows if x != "fast"}
        for how in hows:
            if kind != "f32":
                ratios[f"{how} {kind}/f32"] = _ratio(seconds[how, kind], seconds[how, "f32"])
        ms = 1e3 * statistics.median(fast)
        rows.append(TypeRow(case.family, case.name, kind, ms, ratios, slow(kind)))
    return rows


def run(
    core: int, only: Sequence[str], repeats: int, against: Path | None, mode: str
) -> dict[str, Any]:
    """Measure the programs whose family and name hold one of the words; print and return rows."""
    by_type = {kind: {(c.family, c.name): c for c in module_cases(kind)} for kind in TYPES}
    rows: list[TypeRow] = []
    names = {"fast": (mode, ROOT), "plain": (f"{mode}-plain", ROOT), "xla": ("xla", ROOT)}
    if against is not None:
        names["other"] = (mode, against.resolve())
    with ExitStack() as stack:
        sides = {
            (how, kind): stack.enter_context(closing(Side(name, core, root)))
            for how, (name, root) in names.items()
            for kind in TYPES
        }
        setting = sides["fast", "f32"].ask(setting=True)
        print(f"BLAS: {setting['blas']}; core {core}; {mode}; kernels: {setting['kernels']}")
        others = [f"fast/{how}" for how in names if how != "fast"]
        print(f"{'program':<40}{'type':<6}{'fast ms':>10}" + "".join(f"{x:>12}" for x in others))
        for key in by_type["f16"]:
            if not any(word in " ".join(key) for word in only):
                continue
            cases = {kind: by_type[kind][key] for kind in TYPES}
            seconds = measure(sides, cases, repeats)
            if isinstance(seconds, str):
                print(f"{' '.join(key)}: {seconds}", file=sys.stderr)
                continue
            found = rows_of(
                cases["f32"], seconds, lambda kind: str(sides["fast", kind].ask(slow=True)["slow"])
            )
            for row in found:
                figures = "".join(f"{row.ratios[x]:>12.2f}" for x in others)
                print(f"{' '.join(key):<40}{row.type:<6}{row.fast_ms:>10.3f}{figures}", flush=True)
            rows += found
    _summary(rows)
    return {
        "schema": "hloipu.bench-types/2",
        "setting": {**setting, "core": core, "mode": mode},
        "programs": [asdict(row) for row in rows],
    }


def _summary(rows: Sequence[TypeRow]) -> None:
    """Print geometric means, then programs with where their time goes, the worst first."""
    for kind in TYPES:
        mine = [row for row in rows if row.type == kind]
        names = mine[0].ratios if mine else ()
        means = {x: geometric_mean(row.ratios[x] for row in mine) for x in names}
        print(f"{kind}, {len(mine)} programs, geometric means: " + ", ".join(
            f"{name} {mean:.2f}" for name, mean in means.items()
        ))  # fmt: skip
    print(f"target of a shorter float over f32: {TARGET}")
    for row in sorted(rows, key=lambda x: -x.ratios["fast/xla"]):
        print(f"{row.ratios['fast/xla']:>6.2f} {row.name}, {row.type}: {row.slow}")
