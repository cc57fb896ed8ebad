"""Chooses forms of exchanges by the memory of their tiles: the fastest whose code has room.

Which exchanges, is a problem of covering: each form spares bytes on some tiles and costs cycles as
often as the exchange runs, and what each tile lacks has to be spared. The cheapest form for each
byte that is still lacking comes first, as in Dobson 1982 (Worst-case analysis of greedy heuristics
for integer programming with nonnegative data, Mathematics of Operations Research 7).
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.costs.estimate import estimate
from hloipu_runtime.costs.exchange_form import ExchangeForm, Way
from hloipu_runtime.costs.forms import phases
from hloipu_runtime.costs.step_costs import step_charges
from hloipu_runtime.memory.charges import receivers, senders
from hloipu_runtime.memory.liveness import Ranges
from hloipu_runtime.memory.messages import points_of
from hloipu_runtime.memory.plan import IpuMemory, MemoryPlan, kept_bytes
from hloipu_runtime.memory.requests import Classes
from hloipu_runtime.program.steps import Exchange, Transfer

Numbers = NDArray[np.int64]

_TRIES = 4
"""Times that forms are chosen, each time for what the memory plan of the last choice lacked."""


def with_chosen_forms(plan: MemoryPlan) -> MemoryPlan:
    """Return the plan with the fastest forms but where tiles lack memory for code or messages.

    If that does not make it fit, or no faster, the plan as it is.
    """
    forms = plan.forms.fastest()
    if not plan.code_memory or not plan.has_room_beside or (plan.fits and not plan.forms.price):
        return plan
    if plan.lacks_in_any_order or plan.lacks_with_any_forms:
        return plan
    latest = plan.with_forms(forms).placed() if plan.forms.price else plan
    for _ in range(_TRIES):
        if latest.fits:
            break
        smaller = _Choosing(latest).smaller()
        if smaller is None:
            return plan
        forms = forms.with_smaller(smaller)
        latest = latest.with_forms(forms).placed()
    if not latest.fits or (plan.fits and _cycles(plan) < _cycles(latest)):
        return plan
    return latest


def _cycles(plan: MemoryPlan) -> int:
    costs = step_charges(plan.program, plan.machine, plan.forms)
    return estimate(plan.program, plan.machine, costs=costs).spent.total.cycles


def _lacking_bytes(plan: MemoryPlan, ipu: IpuMemory) -> Numbers:
    """Return what each class of tiles lacks, of all its memory and of that for code."""
    executable = min(plan.machine.memory.executable_bytes, plan.available_bytes)
    return np.stack([ipu.needed_bytes - plan.available_bytes, ipu.code_bytes - executable])


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
        """Number of copies of its code."""
        return self.steps.total()

    def spared_bytes(self, end: _End, form: ExchangeForm) -> tuple[int, int]:
        """Return how many bytes fewer stay on a tile at one end with another form, and of code."""
        now, then = end.way(self.form), end.way(form)
        kept_bytes, code_bytes = now.kept_bytes - then.kept_bytes, now.code_bytes - then.code_bytes
        return self.count * kept_bytes, self.count * code_bytes


class _Choosing:
    """Chooses forms for what each class of tiles lacks."""

    def __init__(self, plan: MemoryPlan) -> None:
        self.lacking = [_lacking_bytes(plan, ipu) for ipu in plan.ipus]
        """By IPU: of all memory and of that for code, by class; negative where some is left."""
        exchanges = [(step, n) for step, n in phases(plan.program) if isinstance(step, Exchange)]
        self.items = _items(plan, self.lacking, exchanges)
        self.free: list[dict[int, Numbers]] = []
        """By IPU, exchange and class: bytes of messages that make no tile fuller than it is."""
        self.raised = [np.zeros(ipu.classes.count, np.int64) for ipu in plan.ipus]
        """By IPU and class: by how much more messages make tiles fuller."""
        if self.may_spare_all():
            asked = {number for item in self.items for number in item.steps}
            steps = {id(step): step for step, _ in exchanges if id(step) in asked}
            points = points_of(plan.liveness.region, steps)
            self.free = [_free_bytes(plan, ipu, points) for ipu in plan.ipus]

    def may_spare_all(self) -> bool:
        """Whether what is lacking is no more than all transfers spare, each at best."""
        left = [lacking_bytes.copy() for lacking_bytes in self.lacking]
        for item in self.items:
            for end in item.ends:
                spared = np.array([item.spared_bytes(end, form) for form in item.forms])
                left[end.ipu][:, end.classes] -= np.maximum(spared.max(axis=0), 0)[:, None]
        return not any((lacking_bytes > 0).any() for lacking_bytes in left)

    def smaller(self) -> dict[Transfer, ExchangeForm] | None:
        """Return forms that spare what is lacking; None where none do."""
        if not self.free:
            return None
        waiting = [(0.0, number) for number in range(len(self.items))]
        useless: list[tuple[float, int]] = []
        is_same = not waiting
        changed: dict[int, int] = {}
        while any((lacking_bytes > 0).any() for lacking_bytes in self.lacking):
            if not waiting:
                if is_same:
                    return None
                # Messages that made a tile too full may have room beside less code.
                waiting, useless, is_same = useless, [], True
                continue
            _, number = heappop(waiting)
            item = self.items[number]
            is_lacking = any((self.lacking[x.ipu][:, x.classes] > 0).any() for x in item.ends)
            prices = [self.price(item, form) for form in item.forms] if is_lacking else [np.inf]
            price = min(prices)
            if price == np.inf:
                useless.append((0.0, number))
            elif waiting and price > waiting[0][0]:
                heappush(waiting, (price, number))
            else:
                changed.setdefault(number, item.runs * item.form.cycles)
                self.take(item, item.forms[prices.index(price)])
                heappush(waiting, (0.0, number))
                is_same = False
        dearest = sorted(
            changed, key=lambda n: changed[n] - self.items[n].runs * self.items[n].form.cycles
        )
        for number in dearest:
            self.take_back(self.items[number])
        return {self.items[n].transfer: self.items[n].form for n in changed}

    def price(self, item: _Item, form: ExchangeForm) -> float:
        """Return the cycles of a form for each byte that it spares where bytes are lacking."""
        spared_bytes = [item.spared_bytes(end, form) for end in item.ends]
        if max(map(max, spared_bytes)) <= 0:
            return np.inf
        useful = 0
        for end, spared in zip(item.ends, spared_bytes, strict=True):
            lacking = self.lacking[end.ipu][:, end.classes]
            after = lacking - np.array(spared)[:, None]
            after[0] += self.raising(item, end, form)
            useful += int((np.maximum(lacking, 0) - np.maximum(after, 0)).sum())
        if useful <= 0:
            return np.inf
        return item.runs * max(0, form.cycles - item.form.cycles) / useful

    def raising(self, item: _Item, end: _End, form: ExchangeForm) -> Numbers | int:
        """Return by how much a form's messages make tiles fuller than at their fullest moments."""
        more = end.way(form).buffer_bytes - end.way(item.form).buffer_bytes
        if more <= 0:
            return 0
        free = self.free[end.ipu]
        least = min((free[n][end.classes] for n in item.steps), key=np.min)
        raised: Numbers = np.maximum(0, more - least - self.raised[end.ipu][end.classes])
        return raised

    def take(self, item: _Item, form: ExchangeForm) -> None:
        for end in item.ends:
            raised = self.raising(item, end, form)
            self.raised[end.ipu][end.classes] += raised
            self.lacking[end.ipu][0, end.classes] += raised
            spared = np.array(item.spared_bytes(end, form))
            self.lacking[end.ipu][:, end.classes] -= spared[:, None]
            for number in item.steps:
                more = end.way(form).buffer_bytes - end.way(item.form).buffer_bytes
                self.free[end.ipu][number][end.classes] -= more
        item.form = form

    def take_back(self, item: _Item) -> None:
        """Give a transfer the fastest form with which no tile lacks bytes."""
        smaller = item.form
        for form in sorted(item.forms, key=lambda form: form.cycles):
            if form.cycles >= smaller.cycles:
                break
            self.take(item, form)
            if not any((self.lacking[end.ipu][:, end.classes] > 0).any() for end in item.ends):
                return
        self.take(item, smaller)


def _items(
    plan: MemoryPlan, lacking: list[Numbers], exchanges: list[tuple[Exchange, int]]
) -> list[_Item]:
    """Return the transfers with forms to choose from at tiles that lack bytes."""
    variables = plan.program.variables
    items: dict[Transfer, _Item | None] = {}
    for step, runs in exchanges:
        for transfer in step.transfers:
            if transfer not in items:
                source, target = variables[transfer.source], variables[transfer.destination]
                carried, forms = plan.forms.of(transfer), plan.forms.choices(transfer)
                items[transfer] = None
                if carried is None or len(forms) < 2:
                    continue
                grids = senders(transfer, source), receivers(transfer, target)
                ends = (
                    _End(source.ipu, plan.ipus[source.ipu].classes.members[grids[0]], True),
                    _End(target.ipu, plan.ipus[target.ipu].classes.members[grids[1]], False),
                )
                if any((lacking[end.ipu][:, end.classes] > 0).any() for end in ends):
                    items[transfer] = _Item(transfer, carried.form, forms, ends)
            if (item := items[transfer]) is not None:
                item.runs += runs
                item.steps[id(step)] += 1
    return [item for item in items.values() if item is not None]


def _free_bytes(
    plan: MemoryPlan, ipu: IpuMemory, points: Mapping[int, Ranges]
) -> dict[int, Numbers]:
    """Return how much less than at its fullest moment is live at exchanges, by class."""
    changes: list[tuple[int, int, Classes]] = []
    live_ranges = [
        (kept_bytes(variable, plan.machine), variable.mapping.tiles, ranges)
        for variable, ranges in zip(plan.program.variables, plan.liveness.ranges, strict=True)
        if variable.ipu == ipu.ipu and ranges
    ]
    live_ranges += [(message.size_bytes, message.tiles, message.ranges) for message in ipu.messages]
    for size, tiles, ranges in live_ranges:
        classes = ipu.classes.members[tiles]
        for first, last in ranges:
            changes += ((first, size, classes), (last + 1, -size, classes))
    changes.sort(key=lambda change: change[0], reverse=True)
    live = np.zeros(ipu.classes.count, np.int64)
    # What ends slots of pipelines has no point of its own, and its messages are not charged.
    free = {number: ipu.live.most_bytes.copy() for number in points}
    for first, number in sorted((first, n) for n, ranges in points.items() for first, _ in ranges):
        while changes and changes[-1][0] <= first:
            _, size, classes = changes.pop()
            live[classes] += size
        free[number] = np.minimum(free[number], ipu.live.most_bytes - live)
    return free
