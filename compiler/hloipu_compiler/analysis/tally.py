"""Execution counts of computations, and the module's total work with loops multiplied through.

Where data decides how often something runs, the count is a lower bound and says so; it is never
taken to be one (`jax.stages.Compiled.cost_analysis` counts every loop body once).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from hloipu_compiler.analysis.call_graph import callees_first
from hloipu_compiler.analysis.op_cost import (
    MOST_COUNTED,
    NO_COST,
    CostSum,
    OpCost,
    OpCosts,
    is_opaque,
)
from hloipu_compiler.analysis.trip_count import trip_count
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import OPS, Trait


@dataclass(frozen=True, slots=True)
class Runs:
    """Number of executions: exactly `count`, or at least that."""

    count: int
    exact: bool = True

    def plus(self, times: "Runs", count: int) -> "Runs":
        """Return these runs and `count` more for each of `times`."""
        total = self.count + times.count * count
        exact = self.exact and times.exact and total <= MOST_COUNTED
        return Runs(min(total, MOST_COUNTED), exact)


@dataclass(frozen=True, slots=True)
class OpcodeTally:
    """One opcode: how many instructions stand in the text, how often they run, their work."""

    opcode: str
    instructions: int
    runs: Runs
    cost: OpCost
    exact: bool
    """Whether `cost` is the work, and not only a lower bound of it."""


@dataclass(frozen=True, slots=True)
class UnknownLoop:
    """A loop whose trip count the text does not tell, with the work of one trip."""

    computation: Computation
    instruction: Instruction
    cost_per_trip: OpCost


@dataclass(frozen=True, slots=True)
class Tally:
    """The work of one run of the entry computation."""

    runs: Mapping[str, Runs]
    """By computation; dead ones and those applied to elements (reducers…) are absent."""
    costs: Mapping[str, list[OpCost]]
    """Of each instruction's single execution by position, for the computations that can run."""
    opcodes: tuple[OpcodeTally, ...]
    total: OpCost
    exact: bool
    """Whether `total` is the work, and not only a lower bound of it."""
    unknown_loops: tuple[UnknownLoop, ...]
    data_decided_branches: int
    opaque_calls: Mapping[str, int]
    """Instructions by custom-call target whose FLOPs nobody knows."""


def tally(module: Module, *, assume_trips: int | None = None) -> Tally:
    """Count the work of a module; `assume_trips` stands in for trip counts that data decides."""
    order = callees_first(module, only_reachable=True)
    fused = _fused(order)
    table = OpCosts(module)
    costs = {c.name: _own_costs(table, c, c.name in fused) for c in order}
    runs, unknown, branches = _runs(module, order, assume_trips)
    running = [c for c in order if c.name in runs]
    rows = _rows(running, runs, costs)
    total = NO_COST
    for row in rows:
        total = total.plus(row.cost)
    per_trip = _trip_costs(module, order, costs) if unknown else {}
    return Tally(
        runs,
        costs,
        tuple(sorted(rows, key=lambda r: (-r.cost.flops, -r.instructions, r.opcode))),
        total,
        all(r.exact for r in runs.values()) and all(row.exact for row in rows),
        tuple(UnknownLoop(c, c.instructions[at], per_trip[c.name, at]) for c, at in unknown),
        branches,
        _opaque_calls(running),
    )


def _rows(
    running: list[Computation], runs: Mapping[str, Runs], costs: Mapping[str, list[OpCost]]
) -> list[OpcodeTally]:
    sums: dict[str, CostSum] = {}
    often: dict[str, Runs] = {}
    for computation in running:
        times = runs[computation.name]
        count_by_opcode: dict[str, int] = {}
        for instruction, cost in zip(
            computation.instructions, costs[computation.name], strict=True
        ):
            opcode = instruction.opcode
            row = sums.get(opcode)
            if row is None:
                row = sums[opcode] = CostSum()
            row.add(cost, times.count, exact=times.exact and not is_opaque(instruction))
            count_by_opcode[opcode] = count_by_opcode.get(opcode, 0) + 1
        for opcode, count in count_by_opcode.items():
            often[opcode] = often.get(opcode, Runs(0)).plus(times, count)
    return [
        OpcodeTally(opcode, row.instructions, often[opcode], row.total, row.exact)
        for opcode, row in sums.items()
    ]


def _opaque_calls(running: list[Computation]) -> dict[str, int]:
    calls_by_target: dict[str, int] = {}
    for computation in running:
        for instruction in computation.instructions:
            if is_opaque(instruction):
                target = instruction.attributes.text("custom_call_target")
                calls_by_target[target] = calls_by_target.get(target, 0) + 1
    return calls_by_target


def _fused(order: tuple[Computation, ...]) -> frozenset[str]:
    return frozenset(
        name
        for computation in order
        for op in computation.instructions
        if op.opcode == "fusion"
        for name in op.attributes.called
    )


def _own_costs(table: OpCosts, computation: Computation, fused: bool) -> list[OpCost]:
    """Costs by position; inside a fusion nothing goes through memory, so only the work counts."""
    costs = [table.of(computation, instruction) for instruction in computation.instructions]
    if not fused:
        return costs
    return [OpCost(cost.flops, cost.transcendentals) for cost in costs]


_Site = tuple[Computation, int]
"""An instruction's computation and position."""


def _runs(
    module: Module, order: tuple[Computation, ...], assume_trips: int | None
) -> tuple[dict[str, Runs], list[_Site], int]:
    """Walk callers before callees, handing each callee its caller's count times its trips."""
    runs: dict[str, Runs] = {module.entry.name: Runs(1)}
    unknown: list[_Site] = []
    branches = 0
    for computation in reversed(order):
        times = runs.get(computation.name)
        if times is None:
            continue
        for at, instruction in enumerate(computation.instructions):
            called = instruction.attributes.called
            if not called or Trait.CALLER not in OPS[instruction.opcode].traits:
                continue
            if instruction.opcode == "while":
                trips = trip_count(module, computation, instruction)
                if trips is None:
                    trips = assume_trips
                if trips is None:
                    unknown.append((computation, at))
                exact, trips = trips is not None, trips or 0
                _add(runs, instruction.attributes.text("body"), times, trips, exact)
                _add(runs, instruction.attributes.text("condition"), times, trips + 1, exact)
            elif instruction.opcode == "conditional":
                branches += 1
                for name in called:
                    _add(runs, name, times, 0, False)
            else:
                for name in called:
                    _add(runs, name, times, 1, True)
    return runs, unknown, branches


def _add(runs: dict[str, Runs], name: str, times: Runs, trips: int, exact: bool) -> None:
    caller = times if exact else Runs(times.count, False)
    runs[name] = runs.get(name, Runs(0)).plus(caller, trips)


def _trip_costs(
    module: Module, order: tuple[Computation, ...], costs_by_computation: Mapping[str, list[OpCost]]
) -> dict[tuple[str, int], OpCost]:
    """Return the work of one trip of each while, by computation and position.

    Loops inside whose count data decides, and branches, count as none.
    """
    total_by_computation: dict[str, OpCost] = {}
    per_trip: dict[tuple[str, int], OpCost] = {}
    for computation in order:
        sums = map(sum, zip(*costs_by_computation[computation.name], strict=True))
        total = OpCost(*sums).times(1)
        for at, instruction in enumerate(computation.instructions):
            called = instruction.attributes.called
            if not called or instruction.opcode not in _RUN_INSIDE:
                continue
            inside = NO_COST
            for name in called:
                inside = inside.plus(total_by_computation.get(name, NO_COST))
            if instruction.opcode == "while":
                per_trip[computation.name, at] = inside
                inside = inside.times(trip_count(module, computation, instruction) or 0)
            total = total.plus(inside)
        total_by_computation[computation.name] = total
    return per_trip


_RUN_INSIDE = frozenset({"call", "fusion", "async-start", "while"})
