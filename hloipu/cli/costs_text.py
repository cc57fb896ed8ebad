"""The cost of every step, as a table and as JSON data (schema `hloipu.costs/1`)."""

from typing import Any

from hloipu.cli.table import shortened, table
from hloipu_runtime.report.profile import Profile, StepRow

_WIDEST = 40


def chosen_steps(profile: Profile, most: int) -> list[StepRow]:
    """Return the dearest steps, the dearest first; with 0 all, in the order of the program."""
    steps = list(profile.steps)
    if most:
        steps.sort(key=lambda step: -step.cycles)
        del steps[most:]
    return steps


def costs_text(profile: Profile, most: int) -> str:
    """Return a table of steps; cycles are over all executions."""
    chosen = chosen_steps(profile, most)
    rows = [
        (
            step.path,
            step.kind,
            shortened(step.name, _WIDEST),
            shortened(step.codelet, _WIDEST) or "-",
            f"{step.executions:,}",
            f"{step.cycles:,}",
            f"{step.tiles:,}",
            f"{step.moved_bytes:,}",
        )
        for step in chosen
    ]
    shown = sum(step.cycles for step in chosen)
    rest = profile.lower_bound_cycles - shown
    if rest:
        rows.append(("other steps", "", "", "", "", f"{rest:,}", "", ""))
    unknown = " (at least: data decides)" if profile.total_cycles is None else ""
    rows.append((f"total{unknown}", "", "", "", "", f"{profile.lower_bound_cycles:,}", "", ""))
    head = ("step", "kind", "instruction", "codelet", "runs", "cycles", "tiles", "bytes moved")
    return table(head, rows, left=4)


def costs_record(profile: Profile, most: int) -> dict[str, Any]:
    """Return the steps as JSON data; `other_cycles` are those of the steps that are not shown."""
    chosen = chosen_steps(profile, most)
    return {
        "schema": "hloipu.costs/1",
        "program": profile.program,
        "machine": profile.machine,
        "total_cycles": profile.total_cycles,
        "lower_bound_cycles": profile.lower_bound_cycles,
        "other_cycles": profile.lower_bound_cycles - sum(step.cycles for step in chosen),
        "steps": [step._asdict() | {"ipus": list(step.ipus)} for step in chosen],
    }
