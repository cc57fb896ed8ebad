"""Cycles of a compiled kernel, without those of the host."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hloipu.api import compile
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.costs.costs import StepCost

_HOST = ("stream in", "stream out", "host call")


@dataclass(frozen=True, slots=True)
class Cycles:
    """What a kernel takes on the device."""

    compute: int
    exchange: int
    sync: int
    peak_bytes: int
    """On the fullest tile."""

    @property
    def total(self) -> int:
        """All cycles."""
        return self.compute + self.exchange + self.sync


def measured(text: str, target: str, options: tuple[tuple[str, Any], ...] = ()) -> Cycles:
    """Compile a kernel and return its cycles."""
    asked = dict(options)
    return cycles_of(compile(text, target=target, over_memory="allow", cache=False, **asked))


def cycles_of(program: CompiledProgram) -> Cycles:
    """Return the cycles of one run; syncs before transfers from and to the host count as theirs."""
    profile = program.profile()
    buckets = profile.by_bucket
    peak = program.memory.to_json()["peak"]["total_bytes"]
    waits = host_syncs(program.costs.steps)
    return Cycles(buckets["compute"], buckets["exchange"], buckets["sync"] - waits, peak)


def host_syncs(steps: tuple[StepCost, ...]) -> int:
    """Return the cycles of syncs that go right before transfers from and to the host."""
    return sum(
        step.spent.sync.cycles
        for step, then in pairwise(steps)
        if step.kind == "sync" and then.kind in _HOST
    )
