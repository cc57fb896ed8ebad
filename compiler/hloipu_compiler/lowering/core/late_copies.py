"""Moves remote copies, and loads of parameters, next to the steps that use their values.

So tiles hold what comes from there for as short as can be. Every copy that stands alone pays the
access again; small ones, that take no longer than an access, stay together where they were written.

Parameters are loaded late where memory is scarce: weights of networks take much memory until they
are read for the first and, often, only time.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import NamedTuple

from hloipu_compiler.ir.graph import Computation
from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.values import TileTensor, Value, value_on_tiles
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.collective import RemoteCopy
from hloipu_runtime.program.program import Role, Variable
from hloipu_runtime.program.steps import Step, Sync, ValueId, VariableId, inner_steps
from hloipu_runtime.program.uses import touched_by


def late_copies(
    steps: Sequence[Step], variables: Sequence[Variable], machine: Machine
) -> list[Step]:
    """Return steps in an order in which large remote copies go late from there, early to there.

    Time grows with what the steps touch.
    """
    moved = [x for x in steps if isinstance(x, RemoteCopy) and _is_large(x, variables, machine)]
    if not moved:
        return list(steps)
    fetches = {id(copy) for copy in moved if variables[copy.source].role is Role.REMOTE}
    stores = {id(copy) for copy in moved} - fetches
    touched = {id(step): _touched(step) for step in steps}
    later = _before_use(list(steps), fetches, touched, barriers_lead=True)
    return _before_use(later[::-1], stores, touched, barriers_lead=False)[::-1]


def early_parts(steps: Sequence[Step], parts: Sequence[range]) -> list[Step]:
    """Return steps with parts of them as early as what they touch lets them come.

    Parts are apart from each other, in order.
    """
    if not parts:
        return list(steps)
    moved = {number for part in parts for number in part}
    last: dict[VariableId, int] = {}
    after: dict[int, list[Step]] = {}
    seen = 0
    for part in parts:
        for number in range(seen, part.start):
            if number not in moved:
                last.update(dict.fromkeys(_touched(steps[number]), number))
        seen = part.stop
        mine = [steps[number] for number in part]
        touched = frozenset[VariableId]().union(*map(_touched, mine))
        place = max((last.get(v, -1) for v in touched), default=-1)
        after.setdefault(place, []).extend(mine)
        last.update(dict.fromkeys(touched, place))
    early = after.get(-1, [])
    for number, step in enumerate(steps):
        if number not in moved:
            early.append(step)
        early += after.get(number, ())
    return early


def _before_use(
    steps: list[Step],
    moved: set[int],
    touched: Mapping[int, frozenset[VariableId]],
    *,
    barriers_lead: bool,
) -> list[Step]:
    """Return steps with some of them right before the first one that touches what they do.

    `touched`: what each step touches, by its identity, as in `moved`. `barriers_lead`: barriers
    belong to the step behind them, and nothing comes in between.
    """
    next_touch: dict[VariableId, int] = {}
    before: dict[int, list[Step]] = {}
    end = len(steps)
    for number in range(end - 1, -1, -1):
        step = steps[number]
        if id(step) in moved:
            place = min((next_touch.get(v, end) for v in touched[id(step)]), default=end)
            before.setdefault(place, []).append(step)
            next_touch.update(dict.fromkeys(touched[id(step)], place))
        else:
            next_touch.update(dict.fromkeys(touched[id(step)], number))
    ordered: list[Step] = []
    for number in range(end + 1):
        waiting = before.get(number, [])[::-1]
        if waiting:
            place = len(ordered)
            while barriers_lead and place and isinstance(ordered[place - 1], Sync):
                place -= 1
            ordered[place:place] = waiting
        if number < end and id(steps[number]) not in moved:
            ordered.append(steps[number])
    return ordered


def _touched(step: Step) -> frozenset[VariableId]:
    """Return all that a step touches; it calls no functions."""
    inner = (_touched(each) for each in inner_steps(step))
    return touched_by(step).union(*inner)


def _is_large(copy: RemoteCopy, variables: Sequence[Variable], machine: Machine) -> bool:
    variable, remote = variables[copy.source], machine.remote
    rate = remote.read_bytes_per_second
    if variables[copy.destination].role is Role.REMOTE:
        rate = remote.write_bytes_per_second
    bits = prod(variable.shape) * ELEMENT_TYPES[variable.element_type].bits
    return bits * 10**9 > 8 * rate * remote.access_nanoseconds


_TOGETHER = 32
"""One part in so many of a tile's memory may be taken by what comes in together, ahead of its use.
Assumed: small beside what there is, yet few round trips to the host."""


class _Arrival(NamedTuple):
    stream: str
    target: TileTensor
    first_use: int


class Arrivals:
    """Parameters that have not come in yet."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.waiting: dict[ValueId, _Arrival] = {}
        """In the order of their first uses."""

    def wait(self, arrivals: Iterable[tuple[str, TileTensor, int]]) -> None:
        """Take up streams, their values and the positions at which these are read first."""
        ordered = sorted((_Arrival(*x) for x in arrivals), key=lambda x: x.first_use)
        self.waiting = {x.target.value: x for x in ordered}

    def need(self, operands: Iterable[Sequence[Value]]) -> None:
        """Write the steps that bring in what is read now, and with it what is read next."""
        if not self.waiting:
            return
        values = [value_on_tiles(leaf) for leaves in operands for leaf in leaves]
        for value in values:
            if value is not None and value in self.waiting:
                self._bring(value)

    def finish(self) -> None:
        """Write the steps that bring in what is left."""
        for value in list(self.waiting):
            self._come(value)

    def _bring(self, value: ValueId) -> None:
        bytes_left = self.builder.machine.memory.bytes_per_tile // _TOGETHER
        bytes_left -= self._come(value)
        for other in list(self.waiting):
            if self._size(other) > bytes_left:
                return
            bytes_left -= self._come(other)

    def _size(self, value: ValueId) -> int:
        return self.builder.variables[self.waiting[value].target.variable].bytes_per_tile

    def _come(self, value: ValueId) -> int:
        """Write the step that brings one value in; return its bytes on a tile."""
        size = self._size(value)
        stream, target, _ = self.waiting.pop(value)
        self.builder.emit(s.Sync())
        self.builder.emit(s.StreamIn(stream, target.variable, target.value))
        return size


def first_uses(computation: Computation) -> dict[int, int]:
    """Return the position of the first instruction that reads each parameter, by its position."""
    first_use_by_parameter: dict[int, int] = {}
    parameters = frozenset(computation.parameters)
    for position, instruction in enumerate(computation.instructions):
        for operand in instruction.operands:
            if operand in parameters:
                first_use_by_parameter.setdefault(operand, position)
    return first_use_by_parameter
