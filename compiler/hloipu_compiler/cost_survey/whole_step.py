"""Cost survey from the program of the whole step as one stage.

It knows what pricing op by op does not: where values lie that come from other ops, what fusion
saves, copies of weights that stay, and what ops share.
"""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from hloipu_compiler.cost_survey.leaves import Leaf, leaves_of, names_of, primary
from hloipu_compiler.cost_survey.program_bytes import (
    most_code,
    on_all_tiles,
    own_code,
)
from hloipu_compiler.cost_survey.survey import Codes, Meeting, Survey, weights_read
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.partition.training.step_phases import BACKWARD, FORWARD, Phases
from hloipu_compiler.plan.pipelining import OFF, PipelineRequest
from hloipu_runtime.costs.collecting import collective_cost
from hloipu_runtime.costs.costs import Costs, Pipelined, StepCost, blocks_inside
from hloipu_runtime.costs.estimate import estimate
from hloipu_runtime.costs.forms import Forms
from hloipu_runtime.costs.step_costs import step_charges
from hloipu_runtime.costs.vertex_bytes import code_of
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.memory.charges import Charges, charges_of
from hloipu_runtime.memory.liveness import Liveness, liveness_of
from hloipu_runtime.memory.messages import points_of
from hloipu_runtime.memory.plan import kept_bytes, rounded
from hloipu_runtime.memory.regions import Item, Region
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.collective import Collective
from hloipu_runtime.program.program import Program, Role

MICRO_BATCHES = 2
"""Of the program that is looked at; more cost the same each."""
_HOST = frozenset(("stream in", "stream out", "host call", "remote in", "remote out"))
_RANGES = tuple[tuple[int, int], ...]


def alone(request: PipelineRequest) -> PipelineRequest:
    """Return the request for the program that is looked at: the step as one stage."""
    return PipelineRequest(
        MICRO_BATCHES, 1, reduction=request.reduction, accumulator_type=request.accumulator_type,
        accumulators=request.accumulators, carried=request.carried, loss=request.loss, offload=OFF,
    )  # fmt: skip


def survey_of_program(
    module: Module, phases: Phases, fed: Collection[int], machine: Machine, program: Program
) -> Survey:
    """Return the survey of a flat step by the program of it that was asked for with `alone`.

    `fed`: positions of the parameters that queues feed.
    """
    return _Surveying(module, phases, fed, machine, program).survey()


def peak_bytes(program: Program, machine: Machine) -> int:
    """Return the most bytes that all tiles of a program on one IPU hold at once, without code."""
    return int(_bytes_by_point(program, machine, liveness_of(program)).max(initial=0))


def _bytes_by_point(program: Program, machine: Machine, liveness: Liveness) -> NDArray[np.int64]:
    change = np.zeros(liveness.points + 1, np.int64)
    for number, record in enumerate(program.variables):
        if record.role is Role.REMOTE:
            continue
        size = on_all_tiles(record, machine)
        for first, last in liveness.ranges[number]:
            change[first] += size
            change[last + 1] -= size
    return change.cumsum()


def _fullest_to_mean(program: Program, machine: Machine, liveness: Liveness) -> float:
    """Return the bytes of the fullest tile to those of an average one, when most is there."""
    at = int(_bytes_by_point(program, machine, liveness).argmax())
    tiles = np.zeros(machine.chip.tiles_per_ipu, np.int64)
    for number, record in enumerate(program.variables):
        if record.role is Role.REMOTE:
            continue
        if any(first <= at <= last for first, last in liveness.ranges[number]):
            tiles[record.mapping.tiles.numbers] += kept_bytes(record, machine)
    return max(1.0, float(tiles.max()) / max(float(tiles.mean()), 1.0))


@dataclass
class _Points:
    """The points of micro-batches: of each the op that it is of, and the variables it touches."""

    first: int = -1
    last: int = -1
    ops: list[int] = field(default_factory=list)
    touched: list[tuple[int, int, int]] = field(default_factory=list)
    """Variable, point, and op."""
    carried: frozenset[int] = frozenset()


@dataclass
class _Arrays:
    """Arrays found so far, each with the points or ops that touch it."""

    sizes: list[int] = field(default_factory=list)
    values: list[bool] = field(default_factory=list)
    touches: list[tuple[int, int, int]] = field(default_factory=list)
    """Array, point, and op."""
    kept: list[int] = field(default_factory=list)
    kept_touches: list[tuple[int, int]] = field(default_factory=list)

    def add(self, size: int, points: set[tuple[int, int]], *, is_value: bool) -> None:
        """Add an array of a micro-batch; `points`: where it is touched, and by which ops."""
        if points:
            self.touches.extend((len(self.sizes), *point) for point in sorted(points))
            self.sizes.append(size)
            self.values.append(is_value)

    def keep(self, size: int, ops: set[int]) -> None:
        """Add an array that is there throughout."""
        self.kept_touches.extend((len(self.kept), op) for op in ops)
        self.kept.append(size)


class _Surveying:
    def __init__(
        self,
        module: Module,
        phases: Phases,
        fed: Collection[int],
        machine: Machine,
        program: Program,
    ) -> None:
        self.machine = machine
        self.program = program
        self.known: dict[tuple[object, ...], int] = {}
        """Cycles of collectives."""
        self.read = weights_read(module.entry, phases, fed)
        self.position = module.entry.position
        self.works = {
            name: n for name, n in self.position.items() if phases.phase[n] in (FORWARD, BACKWARD)
        }
        """Ops that micro-batches run."""
        self.count = len(module.entry.instructions)
        self.forms = Forms(program, machine)
        self.leaves = tuple(leaves_of(program, self.position))
        steps = [leaf.step for leaf in self.leaves]
        self.computed = frozenset(
            operand.variable
            for step in steps
            if isinstance(step, s.ComputeSet)
            for group in step.groups
            for operand in group.outputs
        ) | {step.variable for step in steps if isinstance(step, s.StreamIn)}
        self.primary = primary(steps)
        loaded_values = set(program.loaded)
        loaded = {n for n, (value, _) in program.constants.items() if value in loaded_values}
        state = {n for n, record in enumerate(program.variables) if record.role is Role.STATE}
        self.weights = loaded | state

    def survey(self) -> Survey:
        costs = step_charges(self.program, self.machine, self.forms)
        liveness = liveness_of(self.program)
        charges = charges_of(self.program, self.machine, self.forms).ipus[0]
        points = self._points(liveness.region)
        cycles, update, update_op, meetings = self._cycles(costs)
        arrays = self._arrays(liveness, points, charges)
        touched = np.array(arrays.touches, np.int64).reshape(-1, 3)
        kept_at = np.array(arrays.kept_touches, np.int64).reshape(-1, 2)
        own_code_bytes, (sizes, code, code_op) = self._code(charges, points), self._codes().arrays()
        most = most_code(charges, self.machine.chip.tiles_per_ipu)
        # Of the tile that has most of all; few tiles run all codelets.
        share = most.together / max(most.besides_vertices + most.vertices, 1)
        fuller = share * most.besides_vertices / max(sum(own_code_bytes), 1.0)
        own_code_bytes = [fuller * op_bytes for op_bytes in own_code_bytes]
        return Survey(
            cycles, update, np.array(points.ops, np.int64),
            np.array(arrays.sizes, np.int64), np.array(arrays.values, np.bool_),
            touched[:, 0], touched[:, 1],
            np.array(arrays.kept, np.int64), kept_at[:, 0], kept_at[:, 1],
            own_code_bytes, share * sizes, code, code_op,
            self.machine.memory.stack_bytes,
            *self.read, update_op, touched[:, 2],
            fullest_to_mean=_fullest_to_mean(self.program, self.machine, liveness),
            meetings=tuple(meetings),
        )  # fmt: skip

    # --- cycles -----------------------------------------------------------------------------------

    def _cycles(self, costs: Costs) -> tuple[list[float], float, list[float], list[Meeting]]:
        """Return the cycles of each op for each micro-batch, and of an update: in all, by op.

        And the collectives that are a part of these.
        """
        counts = estimate(self.program, self.machine, 1, costs).counts.counts
        owner, within = self._owners(costs)
        cycles = [0.0] * self.count
        meetings: list[Meeting] = []
        update, last = 0.0, 0
        update_op = [0.0] * self.count
        for number, block in enumerate(costs.blocks):
            for step in (costs.steps[n] for n in block.steps):
                if step.kind in _HOST or step.kind == "slots":
                    continue
                is_meeting = isinstance(step.step, Collective) and self.program.participants > 1
                if number not in within:
                    if is_meeting:
                        op = self.position.get(step.shares[0][0], -1)
                        meetings.append(Meeting(op, counts[number], True, self._apart(step)))
                    update += counts[number] * step.spent.total.cycles
                    for name, charge in step.shares:
                        if name in self.position:
                            update_op[self.position[name]] += counts[number] * charge.cycles
                    continue
                for name, charge in step.shares or (("", step.spent.total),):
                    known = owner.get(number, -1)
                    last = known if known >= 0 else self.works.get(name, last)
                    cycles[last] += counts[number] / MICRO_BATCHES * charge.cycles
                if is_meeting:
                    times = counts[number] / MICRO_BATCHES
                    meetings.append(Meeting(last, times, False, self._apart(step)))
        return cycles, update, update_op, meetings

    def _apart(self, cost: StepCost) -> Callable[[int], int]:
        """Return what tells the cycles of a collective by the IPUs of each participant."""
        step, known = cost.step, self.known
        assert isinstance(step, Collective)

        def cycles_on(ipus: int) -> int:
            key = (ipus, step.form, cost.moved_bytes, cost.tiles)
            if key not in known:
                program = replace(self.program, ipus=ipus, places=())
                known[key] = collective_cost(program, step, self.machine).spent.total.cycles
            return known[key]

        return cycles_on

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
        points = _Points()
        self._walk(region, 0, -1, False, points)
        return points

    def _walk(self, region: Region, base: int, owner: int, within: bool, points: _Points) -> None:
        for item in region.items:
            at = base + item.offset
            if not item.children:
                if within:
                    self._leaf(item, owner, points)
                continue
            mine, inside = owner, within
            if isinstance(item.step, s.Pipeline):
                if not within:
                    points.first, points.last = at, at + item.length - 1
                    points.carried = frozenset(variable.variable for variable in item.step.carried)
                inside = True
            elif within and owner < 0 and isinstance(item.step, s.Repeat | s.RepeatWhile | s.Call):
                mine = self.position.get(getattr(item.step, "name", ""), -1)
            for _, child in item.children:
                self._walk(child, at, mine, inside, points)
                at += child.length

    def _leaf(self, item: Item, owner: int, points: _Points) -> None:
        point = len(points.ops)
        known = owner
        if known < 0:
            names = (self.works.get(name, -1) for name in names_of(item.step))
            known = next((n for n in names if n >= 0), points.ops[-1] if points.ops else -1)
        points.ops.append(known)
        ops = self._ops_of_touches(item.step, known) if owner < 0 else {}
        points.touched.extend(
            (variable, point, op) for variable in item.touched for op in ops.get(variable, (known,))
        )

    def _ops_of_touches(self, step: s.Step, known: int) -> dict[int, set[int]]:
        """Return the ops for which a step touches variables; `known`: whose step it is.

        Steps that are merged do what several ops do, perhaps of several stages.
        """
        ops: dict[int, set[int]] = {}
        for group in step.groups if isinstance(step, s.ComputeSet) else ():
            op = self.works.get(group.name, known)
            for operand in (*group.inputs, *group.outputs):
                ops.setdefault(operand.variable, set()).add(op)
        for transfer in step.transfers if isinstance(step, s.Exchange) else ():
            op = self.works.get(self.program.variables[transfer.destination].origin, known)
            ops.setdefault(transfer.source, set()).add(op)
            ops.setdefault(transfer.destination, set()).add(op)
        return ops

    # --- arrays -----------------------------------------------------------------------------------

    def _arrays(self, liveness: Liveness, points: _Points, charges: Charges) -> "_Arrays":
        """Return what micro-batches make and touch."""
        touched: dict[int, list[tuple[int, int]]] = {}
        for variable, *point in points.touched:
            touched.setdefault(variable, []).append((point[0], point[1]))
        arrays = _Arrays()
        for number, places in touched.items():
            record = self.program.variables[number]
            if number in points.carried:
                continue
            size, live_range = on_all_tiles(record, self.machine), liveness.ranges[number]
            if record.role is Role.STATE or number in self.weights:
                continue
            if record.role is Role.CONSTANT or any(
                a < points.first and b >= points.last for a, b in live_range
            ):
                arrays.keep(size, {op for _, op in places})
                continue
            is_value = number in self.computed or number in self.primary
            for first, last in _clipped(live_range, points.first, points.last):
                mine = {touch for touch in places if first <= touch[0] <= last}
                arrays.add(size, mine, is_value=is_value)
        at = points_of(liveness.region, {id(step): step for step, *_ in charges.messages})
        for step, tiles, message_bytes, _ in charges.messages:
            for first, last in _clipped(at[id(step)], points.first, points.last):
                size = rounded(message_bytes, self.machine) * tiles.count
                ends = {(point, points.ops[point]) for point in (first, last)}
                arrays.add(size, ends, is_value=False)
        return arrays

    # --- code -------------------------------------------------------------------------------------

    def _code(self, charges: Charges, points: _Points) -> list[float]:
        """Return bytes of code on an average tile for each op, without the code of vertices."""
        tiles = self.machine.chip.tiles_per_ipu
        code = [0.0] * self.count
        for leaf in self.leaves:
            for transfer in leaf.step.transfers if isinstance(leaf.step, s.Exchange) else ():
                carried = self.forms.of(transfer)
                to = self.program.variables[transfer.destination]
                position = self._op_of(leaf, to.origin, getattr(leaf.step, "name", ""))
                if carried is not None and carried.traffic.received_bytes and position >= 0:
                    code[position] += carried.form.kept_bytes * to.mapping.tiles.count / tiles
        shared_code = own_code(charges, tiles)
        spread = shared_code["control"] + shared_code["state"]
        counts = Counter(op for op in points.ops if op >= 0)
        every = max(1, sum(counts.values()))
        for op, count in counts.items():
            code[op] += spread * count / every
        return code

    def _codes(self) -> Codes:
        """Return which codelets ops run; -1 for what the entry's ops do not."""
        codes, variables = Codes(), self.program.variables
        for leaf in self.leaves:
            for group in leaf.step.groups if isinstance(leaf.step, s.ComputeSet) else ():
                types = tuple(
                    variables[operand.variable].element_type
                    for operand in (*group.inputs, *group.outputs)
                )
                code = code_of(group.codelet, types)
                codes.add(code.key, code.size, self._op_of(leaf, group.name))
        return codes

    def _op_of(self, leaf: Leaf, *names: str) -> int:
        """Return the op of the entry that a step is of, or -1."""
        ops = self.works if leaf.is_within else self.position
        known = [ops[name] for name in names if name in ops]
        return leaf.owner if leaf.owner >= 0 else next(iter(known), -1)


def _clipped(ranges: _RANGES, first: int, last: int) -> list[tuple[int, int]]:
    """Return the parts of ranges between two points, counted from the first."""
    return [
        (max(a, first) - first, min(b, last) - first) for a, b in ranges if b >= first and a <= last
    ]
