"""Orders instructions for the least peak of live bytes.

Three orders are tried: the text's own, a list schedule that takes what frees most next, and a walk
from the result that takes large subtrees first, as XLA's memory schedulers do
(openxla/xla: xla/hlo/analysis/hlo_memory_scheduler.cc). The text's stays unless another is clearly
better. Effects keep their order. Time n log n.
"""

from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import ClassVar

from hloipu_compiler.analysis.live_bytes import (
    Buffers,
    Running,
    buffers_of,
    live_bytes,
)
from hloipu_compiler.analysis.order import effectful_computations, has_side_effect
from hloipu_compiler.ir.graph import Computation, Module, control_predecessors
from hloipu_compiler.passes.framework.pass_base import Pass
from hloipu_compiler.passes.framework.registry import register
from hloipu_compiler.passes.framework.rewriting import with_operands
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.frozen import dataclass

_MOST = 1 << 60


def ordered_for_memory(module: Module, percent: int, least_bytes: int) -> Module:
    """Return the module with its computations in better orders; the same one if none is."""
    effectful = effectful_computations(module)
    now = dict(module.computation)
    extra: dict[str, int] = {}
    changed = False
    for name in Running(module).names:
        old = now[name]
        buffers = buffers_of(old, now, extra)
        order, peak = _best_order(old, buffers, effectful, percent, least_bytes)
        extra[name] = max(0, peak - buffers.given_bytes)
        if not isinstance(order, range):
            now[name] = reordered(old, order)
            changed = True
    if not changed:
        return module
    return replace(module, computations=tuple(now[c.name] for c in module.computations))


def _best_order(
    computation: Computation,
    buffers: Buffers,
    effectful: frozenset[str],
    percent: int,
    least_bytes: int,
) -> tuple[Sequence[int], int]:
    """Return the best order found, and the most bytes live in it; the text's own is a range."""
    text = range(len(computation.instructions))
    peak = max(live_bytes(buffers, text), default=0)
    wanted = min(peak * (100 - percent) // 100, peak - least_bytes)
    if buffers.least_peak > wanted:
        return text, peak
    before = predecessors(computation, effectful)
    best: Sequence[int] = text
    for order in (by_greed(buffers, before), by_depth(computation, buffers, before)):
        found = max(live_bytes(buffers, order))
        if found <= wanted:
            best, wanted, peak = order, found - 1, found
    return best, peak


def predecessors(computation: Computation, effectful: frozenset[str]) -> list[tuple[int, ...]]:
    """Return what must come before each instruction: operands, control, the effect before."""
    found: list[tuple[int, ...]] = []
    last_effect = -1
    for at, x in enumerate(computation.instructions):
        before = dict.fromkeys(x.operands)
        for name in control_predecessors(x):
            before[computation.position[name]] = None
        if has_side_effect(x) or not effectful.isdisjoint(x.attributes.called):
            if last_effect >= 0:
                before[last_effect] = None
            last_effect = at
        found.append(tuple(before))
    return found


def by_greed(buffers: Buffers, before: Sequence[tuple[int, ...]]) -> list[int]:
    """Return a list schedule: of what can run, what frees most bytes net of those it makes."""
    count = len(before)
    after: list[list[int]] = [[] for _ in range(count)]
    for at, needed in enumerate(before):
        for i in needed:
            after[i].append(at)
    readers: list[list[int]] = [[] for _ in buffers.sizes]
    for at, read in enumerate(buffers.reads):
        for b in read:
            readers[b].append(at)
    left = [len(r) + (_MOST if b in buffers.kept else 0) for b, r in enumerate(readers)]
    gain = [-sum(buffers.sizes[b] for b in makes) for makes in buffers.makes]
    for b, users in enumerate(readers):
        if left[b] == 1:
            gain[users[0]] += buffers.sizes[b]
    waiting = [len(needed) for needed in before]
    heap: list[tuple[int, int]] = []
    for at in range(count):
        if not waiting[at]:
            heappush(heap, (-gain[at], at))
    done = bytearray(count)
    order: list[int] = []
    while heap:
        worth, at = heappop(heap)
        if done[at] or worth != -gain[at]:
            continue  # it is there again with what it frees by now
        done[at] = 1
        order.append(at)
        for b in buffers.reads[at]:
            left[b] -= 1
            if left[b] == 1:
                last = next(i for i in readers[b] if not done[i])
                gain[last] += buffers.sizes[b]
                if not waiting[last]:
                    heappush(heap, (-gain[last], last))
        for i in after[at]:
            waiting[i] -= 1
            if not waiting[i]:
                heappush(heap, (-gain[i], i))
    return order


def by_depth(
    computation: Computation, buffers: Buffers, before: Sequence[tuple[int, ...]]
) -> list[int]:
    """Return a walk from the result, operands first, those with most below them before others."""
    below: list[int] = []
    for makes, some in zip(buffers.makes, before, strict=True):
        size = sum(buffers.sizes[b] for b in makes)
        below.append(min(_MOST, size + sum(below[i] for i in some)))
    count = len(before)
    placed = bytearray(count)
    opened = bytearray(count)
    order: list[int] = []
    ends = [at for at in range(count) if not computation.users[at] and at != computation.root]
    for start in (*ends, computation.root):
        stack = [start]
        while stack:
            at = stack[-1]
            if placed[at]:
                stack.pop()
            elif opened[at]:
                placed[at] = 1
                order.append(at)
                stack.pop()
            else:
                opened[at] = 1
                waiting = [i for i in before[at] if not placed[i]]
                stack += sorted(waiting, key=lambda i: (below[i], -i))
    return order


def reordered(computation: Computation, order: Sequence[int]) -> Computation:
    """Return a computation with its instructions in another order."""
    place = [0] * len(order)
    for new, at in enumerate(order):
        place[at] = new
    old = computation.instructions
    made = tuple(with_operands(old[at], tuple(place[i] for i in old[at].operands)) for at in order)
    return replace(computation, instructions=made, root=place[computation.root])


@register
@dataclass(frozen=True, slots=True)
class OrderForMemory(Pass):
    """Puts instructions into the order in which least is live at once, where that pays."""

    name: ClassVar[str] = "order-for-memory"
    least_gain_percent: int = 5
    """By which the most bytes that are live at once must fall for the text's order to change."""
    least_gain_bytes: int = 1 << 20
    """By which they must fall besides: a thousandth of the memory of an IPU."""

    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        """Return the module in a better order."""
        return ordered_for_memory(module, self.least_gain_percent, self.least_gain_bytes), plan
