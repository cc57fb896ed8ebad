"""How often each computation runs, and what the whole module computes, loops multiplied through.

Where data decides how often something runs, the count is a lower bound and says so; it is never
taken to be one (`jax.stages.Compiled.cost_analysis` counts every loop body once).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from hloipu_compiler.analysis.call_graph import callees_first
from hloipu_compiler.analysis.op_cost import OpCost, op_cost
from hloipu_compiler.analysis.trip_count import counted_loop
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import OPS, Trait


@dataclass(frozen=True, slots=True)
class Runs:
    """How often something runs: exactly `count`, or at least so often."""

    count: int
    exact: bool = True

    def __str__(self) -> str:
        return str(self.count) if self.exact else f"≥{self.count}"


@dataclass(frozen=True, slots=True)
class OpcodeTally:
    """One opcode: how many instructions stand in the text, how often they run, their work."""

    opcode: str
    instructions: int
    runs: Runs
    cost: OpCost


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
    opcodes: tuple[OpcodeTally, ...]
    total: OpCost
    exact: bool
    """Whether `total` is the work, and not only a lower bound of it."""
    unknown_loops: tuple[UnknownLoop, ...]
    data_decided_branches: int


def tally(module: Module, *, assume_trips: int | None = None) -> Tally:
    """Count the work of a module; `assume_trips` stands in for trip counts that data decides."""
    order = callees_first(module, only_reachable=True)
    fused = _fused(order)
    own = {c.name: _own_costs(module, c, c.name in fused) for c in order}
    runs, unknown, branches = _runs(module, order, assume_trips)
    per_trip = _trip_costs(module, order, own) if unknown else {}
    rows: dict[str, OpcodeTally] = {}
    for computation in order:
        times = runs.get(computation.name)
        if times is None:
            continue
        for instruction, cost in zip(computation.instructions, own[computation.name], strict=True):
            row = rows.get(instruction.opcode) or OpcodeTally(
                instruction.opcode, 0, Runs(0), OpCost()
            )
            rows[instruction.opcode] = OpcodeTally(
                instruction.opcode,
                row.instructions + 1,
                Runs(row.runs.count + times.count, row.runs.exact and times.exact),
                row.cost + cost.times(times.count),
            )
    total = sum((row.cost for row in rows.values()), OpCost())
    loops = tuple(UnknownLoop(c, x, per_trip[x.name]) for c, x in unknown)
    return Tally(
        runs,
        tuple(sorted(rows.values(), key=lambda r: (-r.cost.flops, -r.instructions, r.opcode))),
        total,
        all(r.exact for r in runs.values()),
        loops,
        branches,
    )


def _fused(order: tuple[Computation, ...]) -> frozenset[str]:
    return frozenset(
        name
        for computation in order
        for instruction in computation.instructions
        if instruction.opcode == "fusion"
        for name in instruction.attributes.called
    )


def _own_costs(module: Module, computation: Computation, fused: bool) -> list[OpCost]:
    """Costs by position; inside a fusion nothing goes through memory, so only the work counts."""
    costs = [op_cost(module, computation, x) for x in computation.instructions]
    if not fused:
        return costs
    return [OpCost(cost.flops, cost.transcendentals) for cost in costs]


def _runs(
    module: Module, order: tuple[Computation, ...], assume_trips: int | None
) -> tuple[dict[str, Runs], list[tuple[Computation, Instruction]], int]:
    """Walk callers before callees, handing each callee its caller's count times its trips."""
    runs: dict[str, Runs] = {module.entry.name: Runs(1)}
    unknown: list[tuple[Computation, Instruction]] = []
    branches = 0
    for computation in reversed(order):
        times = runs.get(computation.name)
        if times is None:
            continue
        for instruction in computation.instructions:
            called = instruction.attributes.called
            if not called or Trait.CALLER not in OPS[instruction.opcode].traits:
                continue
            if instruction.opcode == "while":
                loop = counted_loop(module, computation, instruction)
                trips = loop.trips if loop is not None else assume_trips
                if trips is None:
                    unknown.append((computation, instruction))
                    trips, exact = 0, False
                else:
                    exact = True
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
    before = runs.get(name, Runs(0))
    count = before.count + times.count * trips
    runs[name] = Runs(count, before.exact and times.exact and exact)


def _trip_costs(
    module: Module, order: tuple[Computation, ...], own: Mapping[str, list[OpCost]]
) -> dict[str, OpCost]:
    """Return the work of one trip by name of each while; unknown loops inside count as none."""
    whole: dict[str, OpCost] = {}
    per_trip: dict[str, OpCost] = {}
    for computation in order:
        total = OpCost()
        for instruction, cost in zip(computation.instructions, own[computation.name], strict=True):
            total += cost
            if not instruction.attributes.called:
                continue
            if instruction.opcode == "while":
                names = (
                    instruction.attributes.text("body"),
                    instruction.attributes.text("condition"),
                )
                trip = sum((whole.get(name, OpCost()) for name in names), OpCost())
                per_trip[instruction.name] = trip
                loop = counted_loop(module, computation, instruction)
                total += trip.times(loop.trips if loop is not None else 0)
            elif instruction.opcode in ("call", "fusion", "async-start"):
                for name in instruction.attributes.called:
                    total += whole.get(name, OpCost())
        whole[computation.name] = total
    return per_trip
