"""Loops that run a number of times that the program itself tells.

The rules of `analysis.trip_count` first; where they do not fit and the end of the loop depends on
constants alone, the part of the loop that decides it is simply run.
"""

from typing import ClassVar

from hloipu_compiler.analysis.call_graph import callees_first
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.passes.framework.pass_base import TRIP_COUNTS, Facts, Pass
from hloipu_compiler.passes.framework.registry import register
from hloipu_compiler.plan.plan import LoopKey, Plan
from hloipu_runtime.frozen import dataclass

MOST_RUN_TRIPS = 128


def recognised_loops(module: Module, most_run_trips: int = MOST_RUN_TRIPS) -> dict[LoopKey, int]:
    """Return the trip counts of all loops that the entry reaches and whose count is known."""
    if not any(x.opcode == "while" for c in module.computations for x in c.instructions):
        return {}
    from hloipu_compiler.analysis.trip_count import counted_loop
    from hloipu_compiler.passes.loops.counted_by_running import LoopRunner

    found: dict[LoopKey, int] = {}
    runner = LoopRunner(module, most_run_trips)
    for computation in callees_first(module, only_reachable=True):
        for at, x in enumerate(computation.instructions):
            if x.opcode != "while":
                continue
            loop = counted_loop(module, computation, x)
            trips = loop.trips if loop is not None else None
            if trips is None and most_run_trips > 0:
                trips = runner.trips(computation, at)
            if trips is not None:
                found[computation.name, x.name] = trips
    return found


@register
@dataclass(frozen=True, slots=True)
class RecogniseLoops(Pass):
    """Notes in the plan how often each loop runs, where the program tells."""

    name: ClassVar[str] = "recognise-loops"
    establishes: ClassVar[Facts] = frozenset({TRIP_COUNTS})

    max_run_trips: int = MOST_RUN_TRIPS

    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        """Return the module as it is, and the plan with the trip counts."""
        return module, plan.with_trip_counts(recognised_loops(module, self.max_run_trips))
