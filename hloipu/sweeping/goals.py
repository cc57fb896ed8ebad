"""Goals of a sweep: figures to minimise or maximise, and the Pareto front."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hloipu.sweeping.store import Row
from hloipu_runtime.errors import UsageError
from hloipu_runtime.nearest import did_you_mean

FIGURES = (
    "cycles", "device_cycles", "seconds", "samples_per_second", "peak_bytes", "available_bytes",
    "code_bytes", "ipus",
)  # fmt: skip
"""Numbers of a row: of one step, bytes of the fullest tile."""
LARGER_IS_BETTER = frozenset({"samples_per_second"})
GOALS = tuple(name for name in FIGURES if name != "available_bytes")
USUAL_GOALS = ("seconds", "peak_bytes")
"""Machines of a sweep may differ in their clocks: cycles do not compare."""


def checked_goals(goals: Sequence[str]) -> tuple[str, ...]:
    """Return goals by their figures' names; UsageError E3190 for any other, or one twice."""
    checked = tuple(goal.replace("-", "_") for goal in goals)
    for number, goal in enumerate(checked):
        if goal not in GOALS:
            raise UsageError(
                "E3190",
                f"there is no goal {goal[:64]!r}",
                hint=did_you_mean(goal, GOALS, f"one of {', '.join(GOALS)}"),
            )
        if goal in checked[:number]:
            raise UsageError("E3190", f"the goal {goal} is given twice", hint="leave one out")
    return checked


def value_of(figures: Mapping[str, Any], goal: str) -> float | None:
    """Return a figure with the sign by which less is better; None where it is not there."""
    value = figures.get(goal)
    if not isinstance(value, int | float):
        return None
    return -value if goal in LARGER_IS_BETTER else value


def values_of(row: Row, goals: Sequence[str]) -> tuple[float, ...] | None:
    """Return a row's values for goals; None where it lacks one or does not fit."""
    if not row.fits:
        return None
    values = [value_of(row.figures, goal) for goal in goals]
    return None if None in values else tuple(values)  # type: ignore[arg-type]


def pareto(rows: Iterable[Row], goals: Sequence[str]) -> list[Row]:
    """Return the rows that no other beats in one goal and equals or beats in all, best first.

    Of rows that are alike in all goals the first. Rows that do not fit are none.
    """
    known = [(values, row.number, row) for row in rows if (values := values_of(row, goals))]
    known.sort(key=lambda one: one[:2])
    front: list[tuple[tuple[float, ...], Row]] = []
    least = float("inf")
    for values, _, row in known:
        # Whoever beats this row is before it; of two goals the last of the front suffices.
        if len(goals) <= 2:
            beaten = values[-1] >= least
        else:
            beaten = any(all(a <= b for a, b in zip(one, values, strict=True)) for one, _ in front)
        if not beaten:
            least = values[-1]
            front.append((values, row))
    return [row for _, row in front]
