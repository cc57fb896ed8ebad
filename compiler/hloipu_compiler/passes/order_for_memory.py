"""Orders instructions for the least peak of live bytes.

Three orders are tried: the text's own, a list schedule that takes what frees most next, and a walk
from the result that takes large subtrees first, as XLA's memory schedulers do
(openxla/xla: xla/hlo/analysis/hlo_memory_scheduler.cc). Each is tried once more with ops moved:
what is read late only, such as values of a block that is computed again, comes late; what frees
more than it makes, such as the gradient of a weight, comes early. The text's order stays unless
another is clearly better: in the most bytes that are live at once or, with no more of these, in the
mean. Effects keep their order. Time n log n.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from heapq import heapify, heappop, heappush
from types import MappingProxyType
from typing import ClassVar

from hloipu_compiler.analysis.call_graph import CallSite, call_sites
from hloipu_compiler.analysis.live_bytes import Buffers, Running, buffers_of, live_bytes
from hloipu_compiler.analysis.order import effectful_computations, has_side_effect
from hloipu_compiler.ir.graph import Computation, Module, control_predecessors
from hloipu_compiler.memo import Memo, Same
from hloipu_compiler.passes.framework.pass_base import Pass
from hloipu_compiler.passes.framework.registry import register
from hloipu_compiler.passes.framework.rewriting import in_order
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.frozen import dataclass

_MOST = 1 << 60
_STAYS = (-1, 0)
"""Rank of what is not moved; of what is: the old place of the first, then bytes taken away."""
_MOST_READERS = 64
"""Of a value, to be looked at; what more read is taken to be there all the time."""
_MOST_MAKERS = 3
"""Of values that come early together with what alone reads them. Assumed: a weight's gradient is a
product, transposed, converted and scaled."""


def ordered_for_memory(
    module: Module,
    percent: int,
    least_bytes: int,
    added_up: Mapping[str, frozenset[int]] = MappingProxyType({}),
    *,
    few_bytes: int | None = None,
) -> Module:
    """Return the module with its computations in better orders; the same one if none is.

    `added_up`: arrays of computations' results that take no memory once they are there;
    `few_bytes`: nothing but what frees so many bytes more than it makes is moved; None: all may be.
    """
    effectful = effectful_computations(module)
    now = dict(module.computation)
    extra: dict[str, int] = {}
    changed = False
    sites = {} if few_bytes is None else call_sites(module)
    for name in Running(module).names:
        old = now[name]
        buffers = buffers_of(old, now, extra, added_up.get(name, frozenset()))
        callers = _read_by_callers(old, sites.get(name, ()), buffers)
        buffers = buffers._replace(kept=buffers.kept | callers)
        order, peak = _best_order(old, buffers, effectful, (percent, least_bytes), few_bytes)
        extra[name] = max(0, peak - buffers.given_bytes)
        if not isinstance(order, range):
            now[name] = in_order(old, order)
            changed = True
    if not changed:
        return module
    return replace(module, computations=tuple(now[c.name] for c in module.computations))


def _read_by_callers(
    computation: Computation, sites: Sequence[CallSite], buffers: Buffers
) -> frozenset[int]:
    """Return the buffers of parameters that a caller reads again after its call.

    Such as the inputs of a stage that computes its values again: no op frees them.
    """
    kept: set[int] = set()
    for caller, at in sites:
        call = caller.instructions[at]
        if call.opcode == "call":
            for i, parameter in zip(call.operands, computation.parameters, strict=True):
                if any(user > at for user in caller.users[i]):
                    kept.update(b for part in buffers.holds[parameter] for b in part)
    return frozenset(kept)


def _best_order(
    computation: Computation,
    buffers: Buffers,
    effectful: frozenset[str],
    least: tuple[int, int],
    few_bytes: int | None,
) -> tuple[Sequence[int], int]:
    """Return the best order found, and the most bytes live in it; the text's own is a range."""
    percent, least_bytes = least
    text = range(len(computation.instructions))
    live = live_bytes(buffers, text)
    peak, total = max(live, default=0), sum(live)
    best: Sequence[int] = text
    if peak < least_bytes:
        return best, peak
    before = predecessors(computation, effectful)
    better = moved if few_bytes is None else partial(freed_early, few_bytes=few_bytes)
    # Where layers are to stay equal, one large gradient at the peak does not keep all others late.
    worst = 0 if few_bytes is None else -peak * percent / 100
    orders = [better(text, buffers, before)]
    if few_bytes is None:
        orders += _others(computation, buffers, before)
    while orders:
        order = orders.pop(0)
        live = live_bytes(buffers, order)
        less, all_along = peak - max(live), (total - sum(live)) / len(live)
        if less >= max(least_bytes, peak * percent / 100) or (
            less >= worst and all_along >= max(least_bytes, total / len(live) * percent / 100)
        ):
            best, peak, total = order, max(live), sum(live)
            orders.append(better(order, buffers, before))  # moving some may let others move
    return best, peak


def _others(
    computation: Computation, buffers: Buffers, before: Sequence[tuple[int, ...]]
) -> Iterator[list[int]]:
    """Yield the orders to try besides the text's own."""
    for order in (by_greed(buffers, before), by_depth(computation, buffers, before)):
        yield order
        yield moved(order, buffers, before)


def moved(order: Sequence[int], buffers: Buffers, before: Sequence[tuple[int, ...]]) -> list[int]:
    """Return an order in which no value is there for longer than others gain by it."""
    return freed_early(made_late(order, buffers, before), buffers, before)


def predecessors(computation: Computation, effectful: frozenset[str]) -> list[tuple[int, ...]]:
    """Return what must come before each instruction: operands, control, the effect before."""
    predecessors_of_each: list[tuple[int, ...]] = []
    last_effect = -1
    for at, op in enumerate(computation.instructions):
        before = dict.fromkeys(op.operands)
        for name in control_predecessors(op):
            before[computation.position[name]] = None
        if has_side_effect(op) or not effectful.isdisjoint(op.attributes.called):
            if last_effect >= 0:
                before[last_effect] = None
            last_effect = at
        predecessors_of_each.append(tuple(before))
    return predecessors_of_each


def by_greed(buffers: Buffers, before: Sequence[tuple[int, ...]]) -> list[int]:
    """Return a list schedule: of what can run, what frees most bytes net of those it makes."""
    count = len(before)
    after, readers = _followers(before), _readers(buffers)
    left = [len(r) + (_MOST if b in buffers.kept else 0) for b, r in enumerate(readers)]
    # What nobody reads takes no memory once it is there.
    gain = [-sum(buffers.sizes[b] for b in makes if left[b]) for makes in buffers.makes]
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


def made_late(
    order: Sequence[int], buffers: Buffers, before: Sequence[tuple[int, ...]]
) -> list[int]:
    """Return an order in which what is read late only is made right before that.

    As long as what it reads, and nothing else keeps until then, is no larger: at no instruction is
    more live for it, but for that at which it is made.
    """
    moves = _Moves(order, buffers)
    after = _followers(before)
    for at in reversed(order):
        first = min((moves.place[i] for i in after[at]), default=moves.old[at])
        if first > moves.old[at] + 1 and moves.freed((at,), (first, -1)) <= moves.bytes_made((at,)):
            moves.place[at] = first
    return moves.order()


def freed_early(
    order: Sequence[int], buffers: Buffers, before: Sequence[tuple[int, ...]], few_bytes: int = 0
) -> list[int]:
    """Return an order in which what frees more than it makes comes as early as it can.

    With what it alone reads, as a product that is transposed, or by itself: where its operands are
    there, or behind the last one that reads the same. `few_bytes`: more than so many are freed.
    """
    moves = _Moves(order, buffers, few_bytes)
    after = _followers(before)
    for at in order:
        for group in dict.fromkeys((moves.with_makers(at, before, after), (at,))):
            place = moves.early_place(group, before)
            if place is not None:
                moves.move(group, place, before)
                break
    return moves.order()


class _Moves:
    """An order in which instructions are moved."""

    def __init__(self, order: Sequence[int], buffers: Buffers, few_bytes: int = 0) -> None:
        self.old = [0] * len(order)
        for new, at in enumerate(order):
            self.old[at] = new
        self.place = list(self.old)
        """Of each instruction; among equals the rank decides, and then the old place."""
        self._rank = [_STAYS] * len(self.old)
        """Among those at one place, before `old`."""
        self._buffers = buffers
        self._few_bytes = few_bytes
        self._readers = _readers(buffers)
        self._read = OTHERS_MEMO.of(Same(buffers), dict)

    def bytes_made(self, group: tuple[int, ...]) -> int:
        """Return the bytes that instructions make, and that stay for others or the end."""
        buffers = self._buffers
        made = (b for at in group for b in buffers.makes[at])
        return sum(
            buffers.sizes[b]
            for b in made
            if b in buffers.kept or not all(i in group for i in self._readers[b])
        )

    def with_makers(
        self, at: int, before: Sequence[tuple[int, ...]], after: Sequence[list[int]]
    ) -> tuple[int, ...]:
        """Return what is taken away, as a gradient that is added up, behind what it is made of.

        If it reads one thing that it alone reads, by itself or through others. Else it alone: small
        values such as means over steps would end up in the midst of layers, each elsewhere, and a
        convolution at what one operand is made of.
        """
        buffers, old = self._buffers, self.old
        group, makers = {at}, 0
        if self.bytes_made((at,)) or not any(buffers.makes[at]):
            return (at,)
        waiting = [(-old[i], i) for i in before[at]]
        heapify(waiting)
        while waiting:
            _, i = heappop(waiting)
            is_given = not before[i] and any(buffers.holds[i])
            if i in group or is_given or not group.issuperset(after[i]):
                continue
            makers += bool(buffers.makes[i])
            if makers > _MOST_MAKERS:
                break
            group.add(i)
            for each in before[i]:
                heappush(waiting, (-old[each], each))
        if any((before[i] or any(buffers.holds[i])) and i not in group for i in before[at]):
            return (at,)
        return tuple(sorted(group, key=lambda i: old[i]))

    def early_place(self, group: tuple[int, ...], before: Sequence[tuple[int, ...]]) -> int | None:
        """Return where instructions free more than they make, that is earlier; None: nowhere."""
        around = {i for member in group for i in before[member]}.difference(group)
        old, now = self.old[group[0]], min(self.place[i] for i in group)
        first = max((self.place[i] for i in around), default=now)
        bytes_made = self.bytes_made(group)
        is_taken = not bytes_made and any(self._buffers.makes[i] for i in group)
        if is_taken and first <= now:  # they cost nothing wherever they are
            return first
        if first >= now - 1:
            return None
        others = [
            max((self.place[i] for i in readers), default=-1)
            for readers in self._others(group).values()
            if all(self.old[i] < old for i in readers)
        ]
        for place in dict.fromkeys((first, max((first, *others)))):
            freed = self.freed(group, (place, old))
            if place < now - 1 and freed > bytes_made + self._few_bytes:
                return place
        return None

    def move(self, group: tuple[int, ...], place: int, before: Sequence[tuple[int, ...]]) -> None:
        """Put instructions at a place: what is taken away behind its operands, small ones first.

        So equal layers have their gradients in one order, whatever that of the result is.
        """
        around = {i for member in group for i in before[member]}.difference(group)
        behind = max([_STAYS, *(self._rank[i] for i in around if self.place[i] == place)])
        if self.bytes_made(group):
            rank = max((self.old[group[0]], 0), behind)
        else:
            size = sum(self._buffers.sizes[b] for b in self._buffers.makes[group[-1]])
            rank = behind[0], max(size, behind[1])
        for member in group:
            self.place[member], self._rank[member] = place, rank

    def freed(self, group: tuple[int, ...], place: tuple[int, int]) -> int:
        """Return the bytes that instructions read as the last ones, were they at a place."""
        return sum(
            self._buffers.sizes[b]
            for b, others in self._others(group).items()
            if all((self.place[i], self.old[i]) < place for i in others)
        )

    def _others(self, group: tuple[int, ...]) -> dict[int, list[int]]:
        """Return the buffers that instructions read and do not make, with their other readers."""
        if (known := self._read.get(group)) is not None:
            return known
        buffers = self._buffers
        made = {b for i in group for b in buffers.makes[i]}
        read = dict.fromkeys(b for i in group for b in buffers.reads[i])
        others = self._read[group] = {
            b: [i for i in self._readers[b] if i not in group]
            for b in read
            if b not in made and b not in buffers.kept and len(self._readers[b]) <= _MOST_READERS
        }
        return others

    def order(self) -> list[int]:
        every = zip(self.place, self._rank, self.old, strict=True)
        return [at for *_, at in sorted((*key, at) for at, key in enumerate(every))]


def _followers(before: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """Return what must come after each instruction."""
    after: list[list[int]] = [[] for _ in before]
    for at, needed in enumerate(before):
        for i in needed:
            after[i].append(at)
    return after


def _readers(buffers: Buffers) -> list[list[int]]:

    def readers_of_each() -> list[list[int]]:
        readers: list[list[int]] = [[] for _ in buffers.sizes]
        for at, read in enumerate(buffers.reads):
            for b in read:
                readers[b].append(at)
        return readers

    return READERS_MEMO.of(Same(buffers), readers_of_each)


READERS_MEMO: "Memo[list[list[int]]]" = Memo(1)
"""Of the computation at hand, of which several orders are tried."""


OTHERS_MEMO: "Memo[dict[tuple[int, ...], dict[int, list[int]]]]" = Memo(1)
"""What `_Moves._others` returned for groups of instructions of the computation at hand."""


@register
@dataclass(frozen=True, slots=True)
class OrderForMemory(Pass):
    """Puts instructions into the order in which least is live at once, where that pays."""

    name: ClassVar[str] = "order-for-memory"
    least_gain_percent: int = 5
    """By which the most bytes that are live at once must fall for the text's order to change."""
    least_gain_bytes: int = 1 << 20
    """By which they must fall besides: a thousandth of the memory of an IPU."""
    only_frees: bool = False
    """Whether nothing but what frees more than it makes is moved, so that equal layers stay so."""
    few_bytes: int = 0
    """With `only_frees`: what frees no more than so many bytes stays, as it takes as much."""

    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        """Return the module in a better order."""
        least = self.least_gain_percent, self.least_gain_bytes
        few_bytes = self.few_bytes if self.only_frees else None
        return ordered_for_memory(module, *least, plan.added_up, few_bytes=few_bytes), plan
