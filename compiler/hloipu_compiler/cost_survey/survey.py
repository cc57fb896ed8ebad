"""Cost survey of a step as one stage: cycles of its ops, and arrays on the tiles.

A survey has *points*, the moments of a micro-batch in order, each belonging to an op of the entry,
and *arrays*, each of which is touched at some of these points. From that follows what any way to
cut the step takes (`stage_memory`), without compiling it.
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hloipu_compiler.cost_survey.op_prices import ELEMENTWISE, FREE, OpPrice, kept_copies, source_of
from hloipu_compiler.ir.graph import Computation
from hloipu_compiler.ir.shapes import TupleShape
from hloipu_compiler.partition.stages.loads import size_of
from hloipu_compiler.partition.training.reach import parameter_positions
from hloipu_compiler.partition.training.step_phases import BACKWARD, FORWARD, Phases
from hloipu_compiler.plan.wrapping import Wrapping

Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]


STATE, CONSTANT, CAST, STATE_CAST, CONSTANT_CAST = range(5)
"""Weights that are updated, and that are not; what is made of either before micro-batches, and
weights that are read for that alone."""
_WRITTEN_OUT = frozenset(("reshape", "bitcast", "broadcast", "tuple", "get-tuple-element"))
"""Of what is alike for all micro-batches: done wherever it is read."""


class CopyOfWeight(NamedTuple):
    """A copy of what does not vary that each micro-batch makes, unless it is kept."""

    size_bytes: int
    cycles: int
    """Of making it once."""
    ops: tuple[int, ...]
    """That read it; each makes it."""


class Meeting(NamedTuple):
    """A collective among participants."""

    op: int
    """Of the entry; -1: none."""
    times: float
    """For each micro-batch, or for each update."""
    is_of_update: bool
    cycles_on: Callable[[int], int]
    """Of one execution, by the IPUs that each participant has: so far apart are those that meet."""


class Codes:
    """The code of vertices, each once, and which ops run it."""

    def __init__(self) -> None:
        self.numbers: dict[Hashable, int] = {}
        self.sizes: list[float] = []
        self.uses: set[tuple[int, int]] = set()

    def add(self, key: Hashable, size: float, op: int) -> None:
        """Note that an op runs a code."""
        number = self.numbers.setdefault(key, len(self.sizes))
        if number == len(self.sizes):
            self.sizes.append(size)
        self.uses.add((number, op))

    def arrays(self) -> tuple[Floats, Numbers, Numbers]:
        """Return sizes, and uses as codes and ops."""
        uses = np.array(sorted(self.uses), np.int64).reshape(-1, 2)
        return np.array(self.sizes), uses[:, 0], uses[:, 1]


@dataclass(frozen=True)
class Survey:
    """One step on one machine; bytes are of all tiles of an IPU together, but for code."""

    cycles: Sequence[float]
    """Of each op of the entry, for each micro-batch; without the host."""
    update_cycles: float
    """Of what is done once for each update, without remote memory."""
    point_op: Numbers
    """The op of each point, ascending points."""
    array_bytes: Numbers
    is_value: NDArray[np.bool_]
    """Of each array: whether it holds what an op made, not a copy that lies otherwise."""
    touched: Numbers
    """Arrays by touch, ..."""
    touched_at: Numbers
    """... and points; sorted by array, then by point."""
    kept_bytes: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))
    """Of arrays that are there through all micro-batches and are no state: copies of weights."""
    kept: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))
    """Kept arrays by touch, ..."""
    kept_op: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))
    """... and ops."""
    op_code: Sequence[float] = ()
    """Bytes of code on a tile for each op."""
    code_bytes: Floats = field(default_factory=lambda: np.zeros(0))
    """Of the code of vertices, which ops share, on a tile."""
    code: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))
    """Codes by use, ..."""
    code_op: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))
    """... and ops."""
    stack_bytes: int = 0
    """On a tile."""
    weight_bytes: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))
    """Of arrays that micro-batches only read: state, other weights, and what is made of them."""
    weight: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))
    """These by touch, ..."""
    weight_op: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))
    """... and ops."""
    weight_kind: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))
    """Of each of these: `STATE`, `CONSTANT` and so on."""
    update_op: Sequence[float] = ()
    """Cycles of each op of the entry that are a part of `update_cycles`."""
    touched_op: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))
    """Ops by touch of `touched`; none: those of the points."""
    fullest_to_mean: float = 1.05
    """Bytes of the fullest tile to those of an average one. Assumed where there is no program."""
    copies: tuple[CopyOfWeight, ...] = ()
    """Made in each micro-batch, among the arrays and the cycles; once, where there is room."""
    meetings: tuple[Meeting, ...] = ()
    """Among the cycles, of participants with one IPU each."""

    def on_ipus(self, count: int) -> "Survey":
        """Return the survey for participants of several IPUs each."""
        cycles, update_op, update = list(self.cycles), list(self.update_op), self.update_cycles
        for op, times, is_of_update, cycles_on in self.meetings:
            more = times * (cycles_on(count) - cycles_on(1))
            update += more if is_of_update else 0.0
            if op >= 0:
                (update_op if is_of_update else cycles)[op] += more
        return replace(self, cycles=cycles, update_op=update_op, update_cycles=update, meetings=())

    @property
    def ops_of_touches(self) -> Numbers:
        """The op of each touch, or -1."""
        return self.touched_op if len(self.touched_op) else self.point_op[self.touched_at]


def survey_of_kinds(
    entry: Computation,
    phases: Phases,
    prices: Sequence[OpPrice],
    stack_bytes: int,
    fed: Collection[int] = (),
) -> Survey:
    """Return a survey of an entry's ops, each priced by itself.

    `fed`: positions of parameters that are no state and no weights.
    Values that elementwise ops hand to one elementwise op alone are taken to be made within it.
    """
    points: list[int] = []
    touched: list[tuple[int, int]] = []
    sizes: list[int] = []
    values: list[bool] = []
    array_of: dict[int, int] = {}
    for position, instruction in enumerate(entry.instructions):
        if phases.phase[position] not in (FORWARD, BACKWARD) or instruction.opcode in FREE - {
            "reshape"
        }:
            continue
        point = len(points)
        points.append(position)
        for i in instruction.operands:
            source = source_of(entry, i)
            if source in array_of:
                touched.append((array_of[source], point))
        work = _work_bytes(entry, position, prices[position])
        if work:
            touched.append((len(sizes), point))
            sizes.append(work)
            values.append(False)
        if _is_computed(entry, position):
            array_of[position] = len(sizes)
            touched.append((len(sizes), point))
            sizes.append(size_of(instruction.shape))
            values.append(True)
    touched.sort()
    array_and_point = np.array(touched, np.int64).reshape(-1, 2)
    update = [
        position for position, phase in enumerate(phases.phase) if phase not in (FORWARD, BACKWARD)
    ]
    weight_bytes, weight, weight_op, weight_kind = weights_read(entry, phases, fed)
    copies = kept_copies(entry, prices)
    codes = Codes()
    for position in points:
        for key, size in prices[position].vertex_code.items():
            codes.add(key, size, position)
    sizes_of_code, code, code_op = codes.arrays()
    return Survey(
        [price.cycles for price in prices],
        sum(prices[n].cycles for n in update),
        np.array(points, np.int64),
        np.array(sizes, np.int64),
        np.array(values, np.bool_),
        array_and_point[:, 0],
        array_and_point[:, 1],
        op_code=[float(price.code_bytes) for price in prices],
        code_bytes=sizes_of_code,
        code=code,
        code_op=code_op,
        stack_bytes=stack_bytes,
        weight_bytes=weight_bytes,
        weight=weight,
        weight_op=weight_op,
        weight_kind=weight_kind,
        update_op=[
            0.0 if phases.phase[n] in (FORWARD, BACKWARD) else price.cycles
            for n, price in enumerate(prices)
        ],
        copies=tuple(
            CopyOfWeight(
                size, 0, tuple(op for op in ops if phases.phase[op] in (FORWARD, BACKWARD))
            )
            for (_, size), ops in copies.items()
        ),
    )


def with_weights_beside(survey: Survey) -> Survey:
    """Return a survey in which weights, and copies of them, are there from first to last touch."""
    if not len(survey.weight) and not len(survey.kept):
        return survey
    first, last = _ends(survey)
    touched, at, by = [survey.touched], [survey.touched_at], [survey.ops_of_touches]
    count = len(survey.array_bytes)
    is_held = np.isin(survey.weight_kind[survey.weight], (STATE, CONSTANT))
    every = np.ones(len(survey.kept), np.bool_)  # what is made of weights among them
    for number, op, used in (
        (survey.weight, survey.weight_op, is_held), (survey.kept, survey.kept_op, every),
    ):  # fmt: skip
        is_touched = used & (op >= 0) & (first[op] >= 0)
        for point in (first, last):
            touched.append(count + number[is_touched])
            at.append(point[op[is_touched]])
            by.append(op[is_touched])
        count += len(survey.weight_bytes) if number is survey.weight else 0
    rows = np.stack((np.concatenate(touched), np.concatenate(at), np.concatenate(by)))
    both = np.unique(rows, axis=1)
    sizes = np.concatenate((survey.array_bytes, survey.weight_bytes, survey.kept_bytes))
    values = np.zeros(len(sizes), np.bool_)
    values[: len(survey.is_value)] = survey.is_value
    nothing = np.zeros(0, np.int64)
    return replace(
        survey, array_bytes=sizes, is_value=values,
        touched=both[0], touched_at=both[1], touched_op=both[2],
        kept_bytes=nothing, kept=nothing, kept_op=nothing,
    )  # fmt: skip


def _ends(survey: Survey) -> tuple[Numbers, Numbers]:
    """Return the first and the last point of each op, or -1."""
    points = np.arange(len(survey.point_op))
    known = survey.point_op >= 0
    first = np.full(len(survey.cycles), -1)
    last = first.copy()
    first[survey.point_op[known][::-1]] = points[known][::-1]
    last[survey.point_op[known]] = points[known]
    return first, last


def fed_positions(entry: Computation, wrapping: Wrapping) -> list[int]:
    """Return the positions of parameters that are no state and no weights."""
    places = parameter_positions(entry)
    numbers = [n for feed in wrapping.feeds for n in feed.places] + list(wrapping.inputs)
    return [i for number in numbers for i in places[number]]


def weights_read(
    entry: Computation, phases: Phases, fed: Collection[int]
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Return `weight_bytes`, `weight`, `weight_op` and `weight_kind` of an entry's survey."""
    places = parameter_positions(entry)
    not_weights = {*fed, *(i for pair in phases.per_micro_batch for i in places[pair.parameter])}
    pairs = (*phases.updated, *phases.kept)
    state = {position for pair in pairs for position in places[pair.parameter]}
    made_of: list[frozenset[int]] = []
    behind: dict[int, frozenset[int]] = {}
    readers: dict[int, set[int]] = {}
    for position, instruction in enumerate(entry.instructions):
        sources = frozenset[int]().union(*(made_of[i] for i in instruction.operands))
        if instruction.parameter_number >= 0:
            sources = frozenset() if position in not_weights else frozenset((position,))
        elif phases.phase[position] in (FORWARD, BACKWARD) and instruction.opcode != "tuple":
            for source in sources:  # what a tuple hands to a loop, the loop reads
                readers.setdefault(source, set()).add(position)
            sources = frozenset()
        elif instruction.opcode not in _WRITTEN_OUT and sources:
            behind[position] = frozenset(n for i in sources for n in behind.get(i, (i,)))
            sources = frozenset((position,))
        made_of.append(sources)
    kinds = {n: STATE if n in state else CONSTANT for n in readers if n not in behind}
    for n in [n for n in readers if n in behind]:
        kinds[n] = CAST
        for i in behind[n] - kinds.keys():
            kinds[i] = STATE_CAST if i in state else CONSTANT_CAST
            readers.setdefault(i, set()).update(readers[n])
    weights = sorted(kinds)
    touches = [(number, op) for number, n in enumerate(weights) for op in sorted(readers[n])]
    both = np.array(touches, np.int64).reshape(-1, 2)
    sizes = np.array([size_of(entry.instructions[n].shape) for n in weights], np.int64)
    return sizes, both[:, 0], both[:, 1], np.array([kinds[n] for n in weights], np.int64)


def _work_bytes(entry: Computation, position: int, price: OpPrice) -> int:
    """Return the bytes that an op needs while it runs, copies of its operands included."""
    needed = price.work_bytes
    for i, size in zip(entry.instructions[position].operands, price.given_bytes, strict=False):
        if entry.instructions[source_of(entry, i)].parameter_number < 0:
            size = max(0, size - size_of(entry.instructions[i].shape))
        needed += size
    return needed


def _is_computed(entry: Computation, position: int) -> bool:
    """Whether an op leaves an array behind."""
    instruction = entry.instructions[position]
    if isinstance(instruction.shape, TupleShape) or instruction.opcode in ("reshape", "bitcast"):
        return False
    users = set(entry.users[position])
    if instruction.opcode in ELEMENTWISE and len(users) == 1:
        return entry.instructions[next(iter(users))].opcode not in ELEMENTWISE
    return bool(users)
