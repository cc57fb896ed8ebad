"""A survey from the program of the whole step as one stage: ops as they are in their surroundings.

It knows what pricing op by op does not: where values lie that come from other ops, what fusion
saves, copies of weights that stay, and what ops share.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hloipu_compiler.codegen.pipelined_step import lower_pipelined
from hloipu_compiler.codegen.tuning import Tuning
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.passes.pipelines import STAGED
from hloipu_compiler.passes.runner import run_passes
from hloipu_compiler.plan.pipelining import OFF, PipelineRequest
from hloipu_compiler.plan.plan import Plan
from hloipu_compiler.plan.wrapping import Wrapping
from hloipu_compiler.pricing.program_bytes import most_at_once, on_all_tiles, own_code
from hloipu_compiler.pricing.survey import Codes, Survey
from hloipu_compiler.staging.pipelining import pipelined
from hloipu_runtime.costing.costs import Costs, Pipelined, blocks_inside
from hloipu_runtime.costing.estimate import estimate
from hloipu_runtime.costing.forms import Forms
from hloipu_runtime.costing.step_costs import step_charges
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.memory.charges import Charges, charges_of, code_of
from hloipu_runtime.memory.liveness import Liveness, liveness_of
from hloipu_runtime.memory.messages import points_of
from hloipu_runtime.memory.plan import rounded
from hloipu_runtime.memory.regions import Item, Region
from hloipu_runtime.program.merging import merged
from hloipu_runtime.program.program import Program, Role
from hloipu_runtime.program.steps import (
    Call,
    ComputeSet,
    Exchange,
    Pipeline,
    Repeat,
    RepeatWhile,
    Step,
    StreamIn,
    StreamOut,
    inner_steps,
)

MICRO_BATCHES = 2
"""Of the program that is looked at; more cost the same each."""
_HOST = frozenset(("stream in", "stream out", "host call", "remote in", "remote out"))
_RANGES = tuple[tuple[int, int], ...]


def survey_of_step(
    module: Module,
    wrapping: Wrapping,
    request: PipelineRequest,
    machine: Machine,
    tuning: Tuning,
) -> Survey:
    """Return the survey of a flat step, by making its program for one IPU.

    Raises what cutting and lowering it raise.
    """
    alone = PipelineRequest(
        MICRO_BATCHES, 1, reduction=request.reduction, accumulator_type=request.accumulator_type,
        accumulators=request.accumulators, carried=request.carried, loss=request.loss, offload=OFF,
    )  # fmt: skip
    wrapping = replace(wrapping, loop=1)
    cut, pipelining = pipelined(module, wrapping, alone)
    made, plan = run_passes(cut, Plan(), STAGED, verify_each=False)
    program = lower_pipelined(made, plan, machine, wrapping, pipelining, tuning)
    if tuning.merge_steps:
        program = merged(program, machine.chip.tiles_per_ipu)
    return _Surveying(module, machine, program).survey()


@dataclass
class _Points:
    """The points of micro-batches: of each the op that it is of, and the variables it touches."""

    first: int = -1
    last: int = -1
    ops: list[int] = field(default_factory=list)
    touched: list[tuple[int, int]] = field(default_factory=list)
    """Variable and point."""
    carried: frozenset[int] = frozenset()


@dataclass
class _Arrays:
    """Arrays found so far, each with the points or ops that touch it."""

    sizes: list[int] = field(default_factory=list)
    values: list[bool] = field(default_factory=list)
    touches: list[tuple[int, int]] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    kept_touches: list[tuple[int, int]] = field(default_factory=list)

    def add(self, size: int, points: set[int], *, is_value: bool) -> None:
        """Add an array of a micro-batch."""
        if points:
            self.touches.extend((len(self.sizes), point) for point in sorted(points))
            self.sizes.append(size)
            self.values.append(is_value)

    def keep(self, size: int, ops: set[int]) -> None:
        """Add an array that is there throughout."""
        self.kept_touches.extend((len(self.kept), op) for op in ops)
        self.kept.append(size)


class _Surveying:
    def __init__(self, module: Module, machine: Machine, program: Program) -> None:
        self.machine = machine
        self.program = program
        self.position = module.entry.position
        self.count = len(module.entry.instructions)
        self.forms = Forms(program, machine)
        self.leaves = tuple(_leaves(program))
        self.computed = frozenset(
            operand.variable
            for step in self.leaves
            if isinstance(step, ComputeSet)
            for group in step.groups
            for operand in group.outputs
        ) | {step.variable for step in self.leaves if isinstance(step, StreamIn)}
        self.primary = _primary(self.leaves)

    def survey(self) -> Survey:
        costs = step_charges(self.program, self.machine, self.forms)
        liveness = liveness_of(self.program)
        charges = charges_of(self.program, self.machine, self.forms).ipus[0]
        points = self._points(liveness.region)
        cycles, update = self._cycles(costs)
        arrays = self._arrays(liveness, points, charges)
        touched = np.array(arrays.touches, np.int64).reshape(-1, 2)
        kept_at = np.array(arrays.kept_touches, np.int64).reshape(-1, 2)
        own, codes = self._code(charges, points), self._codes()
        return Survey(
            cycles, update, np.array(points.ops, np.int64),
            np.array(arrays.sizes, np.int64), np.array(arrays.values, np.bool_),
            touched[:, 0], touched[:, 1],
            np.array(arrays.kept, np.int64), kept_at[:, 0], kept_at[:, 1],
            self._update_bytes(liveness, points), own, *codes.arrays(),
            self.machine.memory.stack_bytes,
        )  # fmt: skip

    # --- cycles -----------------------------------------------------------------------------------

    def _cycles(self, costs: Costs) -> tuple[list[float], float]:
        """Return the cycles of each op for each micro-batch, and those of an update."""
        counts = estimate(self.program, self.machine, 1, costs).counts.counts
        owner, within = self._owners(costs)
        found = [0.0] * self.count
        update, last = 0.0, 0
        for number, block in enumerate(costs.blocks):
            for step in (costs.steps[n] for n in block.steps):
                if step.kind in _HOST or step.kind == "slots":
                    continue
                if number not in within:
                    update += counts[number] * step.spent.total.cycles
                    continue
                for name, charge in step.shares or (("", step.spent.total),):
                    known = owner.get(number, -1)
                    last = known if known >= 0 else self.position.get(name, last)
                    found[last] += counts[number] / MICRO_BATCHES * charge.cycles
        return found, update

    def _owners(self, costs: Costs) -> tuple[dict[int, int], set[int]]:
        """Return the loops of the entry that blocks are in, and the blocks of micro-batches."""
        owner: dict[int, int] = {}
        within: set[int] = set()
        for number in range(costs.root, -1, -1):
            for inner in costs.blocks[number].inner:
                for block in blocks_inside(inner):
                    named = self.position.get(getattr(inner, "name", ""), -1)
                    owner[block] = owner.get(number, -1) if owner.get(number, -1) >= 0 else named
                    if number in within or isinstance(inner, Pipelined):
                        within.add(block)
        return owner, within

    # --- points -----------------------------------------------------------------------------------

    def _points(self, region: Region) -> _Points:
        found = _Points()
        self._walk(region, 0, -1, False, found)
        return found

    def _walk(self, region: Region, base: int, owner: int, within: bool, found: _Points) -> None:
        for item in region.items:
            at = base + item.offset
            if not item.children:
                if within:
                    self._leaf(item, owner, found)
                continue
            mine, inside = owner, within
            if isinstance(item.step, Pipeline):
                if not within:
                    found.first, found.last = at, at + item.length - 1
                    found.carried = frozenset(x.variable for x in item.step.carried)
                inside = True
            elif within and owner < 0 and isinstance(item.step, Repeat | RepeatWhile | Call):
                mine = self.position.get(getattr(item.step, "name", ""), -1)
            for _, child in item.children:
                self._walk(child, at, mine, inside, found)
                at += child.length

    def _leaf(self, item: Item, owner: int, found: _Points) -> None:
        here = len(found.ops)
        known = owner
        if known < 0:
            names = (self.position.get(name, -1) for name in _names(item.step))
            known = next((n for n in names if n >= 0), found.ops[-1] if found.ops else -1)
        found.ops.append(known)
        found.touched.extend((variable, here) for variable in item.touched)

    # --- arrays -----------------------------------------------------------------------------------

    def _arrays(self, liveness: Liveness, points: _Points, charges: Charges) -> "_Arrays":
        """Return what micro-batches make and touch."""
        touched: dict[int, list[int]] = {}
        for variable, point in points.touched:
            touched.setdefault(variable, []).append(point)
        found = _Arrays()
        for number, places in touched.items():
            record = self.program.variables[number]
            if number in points.carried or record.role is Role.STATE:
                continue
            size, whole = on_all_tiles(record, self.machine), liveness.ranges[number]
            if record.role is Role.CONSTANT or _goes_through(whole, points):
                found.keep(size, {points.ops[place] for place in places})
                continue
            is_value = number in self.computed or number in self.primary
            for first, last in _clipped(whole, points.first, points.last):
                found.add(size, {x for x in places if first <= x <= last}, is_value=is_value)
        at = points_of(liveness.region, {id(step): step for step, _, _ in charges.messages})
        for step, tiles, each in charges.messages:
            for first, last in _clipped(at[id(step)], points.first, points.last):
                size = rounded(each, self.machine) * tiles.count
                found.add(size, {first, last}, is_value=False)
        return found

    def _update_bytes(self, liveness: Liveness, points: _Points) -> float:
        """Return the most bytes, beside what is always there, that are after micro-batches."""
        spans = []
        for number, record in enumerate(self.program.variables):
            if record.role is Role.REMOTE or number in points.carried or liveness.always(number):
                continue
            after = tuple(
                (max(first, points.last + 1), last)
                for first, last in liveness.ranges[number]
                if last > points.last
            )
            spans.append((on_all_tiles(record, self.machine), after))
        return float(most_at_once(spans))

    # --- code -------------------------------------------------------------------------------------

    def _code(self, charges: Charges, points: _Points) -> list[float]:
        """Return bytes of code on a tile for each op, without the code of vertices."""
        tiles = self.machine.chip.tiles_per_ipu
        found = [0.0] * self.count
        for step in (x for x in self.leaves if isinstance(x, Exchange)):
            for each in step.transfers:
                carried = self.forms.of(each)
                to = self.program.variables[each.destination]
                position = self.position.get(to.origin, self.position.get(step.name, -1))
                if carried is not None and carried.traffic.received_bytes and position >= 0:
                    found[position] += carried.form.kept_bytes * to.mapping.tiles.count / tiles
        rest = own_code(charges, tiles)
        spread = rest["control"] + rest["state"]
        counts = Counter(op for op in points.ops if op >= 0)
        every = max(1, sum(counts.values()))
        for op, count in counts.items():
            found[op] += spread * count / every
        return found

    def _codes(self) -> Codes:
        """Return which codelets ops run."""
        found, variables = Codes(), self.program.variables
        for step in self.leaves:
            for group in step.groups if isinstance(step, ComputeSet) else ():
                types = tuple(
                    variables[x.variable].element_type for x in (*group.inputs, *group.outputs)
                )
                code = code_of(group.codelet, types)
                found.add(code.key, code.size, self.position.get(group.name, -1))
        found.uses = {use for use in found.uses if use[1] >= 0}
        return found


def _primary(leaves: Sequence[Step]) -> frozenset[int]:
    """Return the variables in which exchanges make values, in place of copying one."""
    return frozenset(
        each.variable
        for step in leaves
        if isinstance(step, Exchange)
        for each in step.definitions
        if any(piece.value != each.value for piece in each.pieces)
    )


def _leaves(program: Program) -> Iterator[Step]:
    waiting: list[Step] = [program.body, *program.functions.values()]
    while waiting:
        step = waiting.pop()
        inner = list(inner_steps(step))
        if inner:
            waiting.extend(reversed(inner))
        else:
            yield step


def _names(step: Step) -> Sequence[str]:
    match step:
        case ComputeSet():
            return [group.name for group in step.groups]
        case StreamIn() | StreamOut():
            return ()
        case _:
            return [getattr(step, "name", "")]


def _clipped(ranges: _RANGES, first: int, last: int) -> list[tuple[int, int]]:
    """Return the parts of ranges between two points, counted from the first."""
    return [
        (max(a, first) - first, min(b, last) - first) for a, b in ranges if b >= first and a <= last
    ]


def _goes_through(ranges: _RANGES, points: _Points) -> bool:
    """Whether one range begins before the micro-batches and ends with them or after."""
    return any(a < points.first and b >= points.last for a, b in ranges)
