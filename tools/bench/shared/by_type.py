"""Whole tensors in f32, bf16 and f16: what a shorter float costs, here and in another checkout."""

import statistics
import sys
from collections.abc import Sequence
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


@dataclass(frozen=True, slots=True)
class TypeRow:
    """Medians for one program in one checkout."""

    family: str
    name: str
    checkout: str
    f32_ms: float
    bf16_over_f32: float
    f16_over_f32: float
    over_here: tuple[float, float, float] | None = None
    """Of another checkout: its times over those of this one, by type."""


def measure(
    sides: dict[tuple[Path, str], Side], cases: dict[str, Case], repeats: int
) -> list[TypeRow] | str:
    """Measure a program, given in each type, in all checkouts; a sentence says why not."""
    for (_, kind), side in sides.items():
        case = cases[kind]
        error = side.ask(text=case.text, seed=SEED, scale=case.scale).get("error")
        if error:
            return f"{kind}: {error}"
    calls = {key: calls_for(side.seconds(1)) for key, side in sides.items()}
    seconds: dict[tuple[Path, str], list[float]] = {key: [] for key in sides}
    for _ in range(repeats):
        for key, side in sides.items():
            seconds[key].append(side.seconds(calls[key]))

    def ratio(first: tuple[Path, str], second: tuple[Path, str]) -> float:
        pairs = zip(seconds[first], seconds[second], strict=True)
        return statistics.median(a / b for a, b in pairs)

    rows = []
    for root in dict.fromkeys(root for root, _ in sides):
        bf16, f16 = (ratio((root, kind), (root, "f32")) for kind in ("bf16", "f16"))
        against = None
        if root != ROOT:
            f32_over, bf16_over, f16_over = (ratio((root, x), (ROOT, x)) for x in TYPES)
            against = (f32_over, bf16_over, f16_over)
        f32_ms = 1e3 * statistics.median(seconds[root, "f32"])
        case = cases["f32"]
        name = "here" if root == ROOT else str(root)
        rows.append(TypeRow(case.family, case.name, name, f32_ms, bf16, f16, against))
    return rows


def run(core: int, only: Sequence[str], repeats: int, against: Path | None) -> dict[str, Any]:
    """Measure the programs whose family and name hold one of the words; print and return rows."""
    by_type = {kind: {(c.family, c.name): c for c in module_cases(kind)} for kind in TYPES}
    rows: list[TypeRow] = []
    roots = [ROOT, *([against.resolve()] if against else [])]
    with ExitStack() as stack:
        sides = {
            (root, kind): stack.enter_context(closing(Side("functional", core, root)))
            for root in roots
            for kind in TYPES
        }
        setting = sides[ROOT, "f32"].ask(setting=True)
        print(f"BLAS: {setting['blas']}; core {core}")
        print(f"{'program':<40}{'checkout':<10}{'f32 ms':>10}{'bf16/f32':>10}{'f16/f32':>10}")
        for key in by_type["f16"]:
            if not any(word in " ".join(key) for word in only):
                continue
            measured = measure(sides, {kind: by_type[kind][key] for kind in TYPES}, repeats)
            if isinstance(measured, str):
                print(f"{' '.join(key)}: {measured}", file=sys.stderr)
                continue
            for row in measured:
                place = "here" if row.checkout == "here" else "other"
                figures = [row.f32_ms, row.bf16_over_f32, row.f16_over_f32]
                line = f"{' '.join(key):<40}{place:<10}" + "".join(f"{x:>10.2f}" for x in figures)
                if row.over_here:
                    line += "  over here: " + " ".join(f"{x:.2f}" for x in row.over_here)
                print(line, flush=True)
            rows += measured
    for name in dict.fromkeys(row.checkout for row in rows):
        mine = [row for row in rows if row.checkout == name]
        print(
            f"{name}: geometric means over f32: bf16 "
            f"{geometric_mean(r.bf16_over_f32 for r in mine):.2f}, f16 "
            f"{geometric_mean(r.f16_over_f32 for r in mine):.2f} (target {TARGET}), "
            f"{len(mine)} programs"
        )
    return {
        "schema": "hloipu.bench-types/1",
        "setting": {**setting, "core": core},
        "programs": [asdict(row) for row in rows],
    }
