"""What a trainer refuses before it trains."""

from collections.abc import Mapping
from heapq import nsmallest
from typing import Any

from hloipu.definitions import without_definitions
from hloipu.options.resolve import resolve
from hloipu.training.programs import StepPrograms
from hloipu_runtime.errors import UsageError

_OWN_OPTIONS = {"loop": "steps_per_execution= of fit", "feed": "feeds=", "outfeed": "metrics="}
_MOST_DIVISORS_TRIED = 10_000


def require_options(options: Mapping[str, Any]) -> None:
    """Raise what `hloipu.compile` raises for options, E3151 for those that a trainer sets."""
    resolve("compile", without_definitions(options))
    for name, instead in _OWN_OPTIONS.items():
        if name in options:
            raise UsageError(
                "E3151", f"a trainer sets {name!r} itself", hint=f"use {instead} instead"
            )


def required(programs: StepPrograms | None, what: str) -> StepPrograms:
    """Return a step that is there; raise UsageError E3173 where it is not."""
    if programs is None:
        raise UsageError(
            "E3173",
            f"the trainer has no {what} step",
            hint=f"give it one: Trainer(…, {what}=HLO of a function of weights and data)",
        )
    return programs


def require_divides(epochs: int, steps_per_epoch: int, in_a_run: int) -> None:
    """Raise UsageError E3170 unless steps per execution divide those of an epoch."""
    if min(epochs, steps_per_epoch, in_a_run) >= 1 and not steps_per_epoch % in_a_run:
        return
    divisors = [
        n
        for n in range(1, min(steps_per_epoch, _MOST_DIVISORS_TRIED) + 1)
        if not steps_per_epoch % n
    ]
    near = ", ".join(map(str, sorted(nsmallest(3, divisors, key=lambda n: abs(n - in_a_run)))))
    raise UsageError(
        "E3170",
        f"{epochs} epochs of {steps_per_epoch} steps, {in_a_run} in an execution",
        hint="give counts of at least 1, and steps per execution that divide those of an epoch, "
        f"as {near or 1} do",
    )
