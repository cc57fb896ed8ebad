"""Plans memory with the fastest exchanges whose code has room on the tiles that they are on.

Which exchanges, is a problem of covering: each form spares bytes on some tiles and costs cycles as
often as the exchange runs, and what each tile lacks has to be spared. The cheapest form for each
byte that is still lacking comes first, as in Dobson 1982 (Worst-case analysis of greedy heuristics
for integer programming with nonnegative data, Mathematics of Operations Research 7).
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.costs.exchange_form import ExchangeForm, Way
from hloipu_runtime.costs.forms import Forms, phases
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.memory.charges import receivers, senders
from hloipu_runtime.memory.liveness import Ranges
from hloipu_runtime.memory.messages import points_of
from hloipu_runtime.memory.plan import IpuMemory, MemoryPlan, kept_bytes, plan_with
from hloipu_runtime.memory.tile_classes import Classes
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import Exchange, Transfer

Numbers = NDArray[np.int64]

_TRIES = 4
"""Times that forms are chosen, each time for what the memory plan of the last choice lacked."""


def plan_memory(
    program: Program, machine: Machine, *, code_memory: bool = True, known: Forms | None = None
) -> MemoryPlan:
    """Return the memory plan of a proved program; it may need more than there is: see `fits`.

    Exchanges take their fastest forms, but for those whose code or messages tiles lack memory for.
    Where no forms make it fit, all code has one price, at which there is room for it. Without
    `code_memory`, code of vertices, control and exchanges is taken to need none. `known`: forms of
    a program with the same steps otherwise merged. Raises LimitError E5021 or E5022 for a program
    nested too deep or too long.
    """
    forms = Forms(program, machine, code_memory=code_memory, known=known)
    plan = plan_with(program, machine, forms, code_memory=code_memory)
    if not code_memory or not plan.has_room_beside or (plan.fits and not forms.price):
        return plan
    forms = forms.fastest()
    latest = plan_with(program, machine, forms) if forms.price != plan.forms.price else plan
    for _ in range(_TRIES):
        chosen = _Choosing(latest).chosen()
        if chosen is None:
            break
        forms = forms.with_smaller(chosen)
        latest = plan_with(program, machine, forms)
        if latest.fits:
            return latest
    return plan


def _lacking_bytes(plan: MemoryPlan, ipu: IpuMemory) -> Numbers:
    """Return what each class of tiles lacks, of all its memory or of that for code."""
    executable = min(plan.machine.memory.executable_bytes, plan.available_bytes)
    lacking = np.maximum(ipu.needed_bytes - plan.available_bytes, ipu.code_bytes - executable)
    return np.maximum(lacking, 0)


class _End(NamedTuple):
    """The tiles at one end of a transfer."""

    ipu: int
    classes: Classes
    is_sending: bool

    def way(self, form: ExchangeForm) -> Way:
        return form.sending if self.is_sending else form.receiving


@dataclass(slots=True, eq=False)
class _Item:
    """A transfer whose form may change."""

    transfer: Transfer
    form: ExchangeForm
    forms: tuple[ExchangeForm, ...]
    ends: tuple[_End, _End]
    runs: int = 0
    """How often its cycles are spent."""
    steps: Counter[int] = field(default_factory=Counter)
    """The exchanges that it is in, by their identity."""

    @property
    def count(self) -> int:
        """How often its code is there."""
        return self.steps.total()


class _Choosing:
    """Chooses forms for what each class of tiles lacks."""

    def __init__(self, plan: MemoryPlan) -> None:
        self.lacking = [_lacking_bytes(plan, ipu) for ipu in plan.ipus]
        """By IPU and class; negative where more is spared than was lacking."""
        self.items = list(_items(plan, self.lacking))
        steps = {id(step): step for step, _ in phases(plan.program) if isinstance(step, Exchange)}
        wanted = {number for item in self.items for number in item.steps}
        points = points_of(plan.liveness.region, {n: steps[n] for n in wanted})
        self.free = [_free_bytes(plan, ipu, points) for ipu in plan.ipus]
        """By IPU, exchange and class: bytes of messages that make no tile fuller than it may be."""

    def chosen(self) -> dict[Transfer, ExchangeForm] | None:
        """Return smaller forms that spare what is lacking; None where there are none."""
        waiting = [(0.0, number) for number in range(len(self.items))]
        heapify(waiting)
        taken: list[tuple[_Item, ExchangeForm]] = []
        while any((each > 0).any() for each in self.lacking):
            if not waiting:
                return None
            _, number = heappop(waiting)
            item = self.items[number]
            price, form = min(
                ((self.price(item, form), form) for form in item.forms), key=lambda x: x[0]
            )
            if price == np.inf:
                continue
            if waiting and price > waiting[0][0]:
                heappush(waiting, (price, number))
                continue
            taken.append((item, item.form))
            self.take(item, form)
            heappush(waiting, (0.0, number))
        for item, before in sorted(
            taken, key=lambda x: x[0].runs * (x[1].cycles - x[0].form.cycles)
        ):
            self.take_back(item, before)
        return {item.transfer: item.form for item, before in taken if item.form is not before}

    def price(self, item: _Item, form: ExchangeForm) -> float:
        """Return the cycles of a form for each byte that it spares where bytes are lacking."""
        useful = 0
        for end in item.ends:
            before, after = end.way(item.form), end.way(form)
            spared = item.count * (before.kept_bytes - after.kept_bytes)
            if spared < 0:
                return np.inf
            lacking = self.lacking[end.ipu][end.classes]
            useful += int(np.minimum(lacking, spared)[lacking > 0].sum())
            more = after.buffer_bytes - before.buffer_bytes
            if more > 0 and any(
                more > self.free[end.ipu][number][end.classes].min() for number in item.steps
            ):
                return np.inf
        if useful <= 0:
            return np.inf
        return item.runs * max(0, form.cycles - item.form.cycles) / useful

    def take(self, item: _Item, form: ExchangeForm) -> None:
        """Give a transfer another form."""
        for end in item.ends:
            before, after = end.way(item.form), end.way(form)
            spared = item.count * (before.kept_bytes - after.kept_bytes)
            self.lacking[end.ipu][end.classes] -= spared
            for number in item.steps:
                more = after.buffer_bytes - before.buffer_bytes
                self.free[end.ipu][number][end.classes] -= more
        item.form = form

    def take_back(self, item: _Item, before: ExchangeForm) -> None:
        """Give a transfer the form back that it had, if no tile lacks bytes then."""
        after = item.form
        self.take(item, before)
        if any((self.lacking[end.ipu][end.classes] > 0).any() for end in item.ends):
            self.take(item, after)


def _items(plan: MemoryPlan, lacking: list[Numbers]) -> Iterator[_Item]:
    """Yield the transfers with forms to choose from that tiles take part in which lack bytes."""
    program, variables = plan.program, plan.program.variables
    items: dict[Transfer, _Item | None] = {}
    for step, runs in phases(program):
        for transfer in step.transfers if isinstance(step, Exchange) else ():
            if transfer not in items:
                items[transfer] = None
                carried, forms = plan.forms.of(transfer), plan.forms.choices(transfer)
                if carried is None or len(forms) < 2:
                    continue
                source, target = variables[transfer.source], variables[transfer.destination]
                grids = (
                    (source.ipu, senders(transfer, source), True),
                    (target.ipu, receivers(transfer, target), False),
                )
                ends = [
                    _End(ipu, plan.ipus[ipu].classes.members[grid], is_sending)
                    for ipu, grid, is_sending in grids
                ]
                if any(lacking[end.ipu][end.classes].any() for end in ends):
                    item = _Item(transfer, carried.form, forms, (ends[0], ends[1]))
                    items[transfer] = item
            item = items[transfer]
            if item is not None:
                item.runs += runs
                item.steps[id(step)] += 1
    return (item for item in items.values() if item is not None)


def _free_bytes(
    plan: MemoryPlan, ipu: IpuMemory, points: Mapping[int, Ranges]
) -> dict[int, Numbers]:
    """Return what may come to what is live at points of exchanges, by exchange and class.

    No class gets fuller than at its fullest moment, or than a tile may be.
    """
    changes: list[tuple[int, int, int, Classes]] = []
    for variable, ranges in zip(plan.program.variables, plan.liveness.ranges, strict=True):
        if variable.ipu == ipu.ipu:
            size = kept_bytes(variable, plan.machine)
            classes = ipu.classes.members[variable.mapping.tiles] if ranges else slice(0, 0)
            for first, last in ranges:
                changes.append((first, 0, size, classes))
                changes.append((last + 1, 0, -size, classes))
    for message in ipu.messages:
        for first, last in message.ranges:
            classes = ipu.classes.members[message.tiles]
            changes.append((first, 0, message.size_bytes, classes))
            changes.append((last + 1, 0, -message.size_bytes, classes))
    asked = sorted((first, number) for number, ranges in points.items() for first, _ in ranges)
    changes.sort(key=lambda change: change[0])
    most = np.maximum(ipu.live_bytes, plan.available_bytes - ipu.floor)
    live = np.zeros(ipu.classes.count, np.int64)
    free: dict[int, Numbers] = {}
    place = 0
    for point, number in asked:
        while place < len(changes) and changes[place][0] <= point:
            _, _, size, classes = changes[place]
            live[classes] += size
            place += 1
        left = most - live
        free[number] = np.minimum(free[number], left) if number in free else left
    return free
