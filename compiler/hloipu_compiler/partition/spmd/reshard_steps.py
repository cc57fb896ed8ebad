"""The steps that bring a value from one sharding to another with the fewest bytes between devices.

A value of local size L, in bytes, with collectives among g devices:

    cut         a dimension is divided by parts that divide nothing yet               no bytes
    permute     each device gets a block of the same sizes that another has            L
    exchange    parts go from the end of one dimension to the end of another's         L (g-1) / g
    gather      the parts at the end of a dimension no longer divide it                L (g-1)
    reduce      partial results are combined on all devices                          2 L (g-1) / g
    scatter     partial results are combined, each device has a block of a dimension   L (g-1) / g

Dijkstra's search over shardings finds the fewest bytes, then the fewest steps. Few permutes are
tried: those whose dimensions begin as they are to end. Sources: openxla/shardy
`shardy/dialect/sdy/transforms/export/reshard_to_collectives.cc` (the steps); Chan et al.,
"Collective communication: theory, practice, and experience" (2007), table I (bytes).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from heapq import heappop, heappush
from math import gcd, lcm, prod
from typing import Any, NamedTuple

import numpy as np

from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.partition.spmd.axes import DeviceAxes, bits

Axes = tuple[int, ...]
Split = tuple[Axes, ...]
"""The parts that divide each dimension of a value."""

_MOST_STATES = 400
"""Shardings that are looked at before what differs is gathered and cut: a bound on time, far above
what meshes of three axes need."""


_MOST_APART = 4
"""Parts of a mesh that are moved one by one: shardings are as many as their permutations."""


class State(NamedTuple):
    """How a value is divided, and along which parts devices hold partial results."""

    split: Split
    partial: Axes = ()


class Move(Enum):
    """What one step does, as above."""

    CUT = auto()
    PERMUTE = auto()
    EXCHANGE = auto()
    GATHER = auto()
    REDUCE = auto()
    SCATTER = auto()


class Step(NamedTuple):
    """One step from a sharding to another."""

    kind: Move
    dimension: int
    """That is cut, gathered, scattered or gives parts away; -1 where all change or none."""
    target: int
    """The dimension that takes parts in exchange; -1 where none does."""
    parts: Axes
    after: State


class Piece(NamedTuple):
    """Rows that some blocks read, each of one other block; arrays have an element for each."""

    starts: Any
    """In the blocks that have them."""
    length: int
    sources: Any
    targets: Any

    @property
    def rounds(self) -> list[Any]:
        """Which of them one permute each brings, or none: a block sends to one other at a time."""
        stays, every = self.sources == self.targets, np.arange(len(self.sources))
        if len(np.unique(self.sources)) == len(every):
            return [every]
        counts: Counter[int] = Counter()
        rounds: list[list[int]] = [np.flatnonzero(stays).tolist()]
        for i in np.flatnonzero(~stays).tolist():
            source = int(self.sources[i])
            counts[source] += 1
            rounds += [[]] * (counts[source] == len(rounds))
            rounds[counts[source]] = [*rounds[counts[source]], i]
        return [np.array(each) for each in rounds if each]

    @property
    def permutes(self) -> int:
        """How many permutes bring them."""
        return sum(bool((self.sources[i] != self.targets[i]).any()) for i in self.rounds)


class Steps(NamedTuple):
    """How a value gets its sharding."""

    steps: tuple[Step, ...]
    share: float
    """Elements that each device sends, by elements of the whole value."""


class Paths:
    """The cheapest steps on one mesh, each searched for once."""

    def __init__(self, axes: DeviceAxes) -> None:
        self.axes = axes
        self.known: dict[tuple[tuple[int, ...], State, Split], Steps] = {}

    def steps(self, sizes: Sequence[int], old: State, new: Split) -> Steps:
        """Return the steps with the fewest bytes from one sharding to another.

        Of sizes those factors matter alone that they have in common with numbers of blocks.
        """
        count = self.axes.device_count
        key = (tuple([gcd(size, count) for size in sizes]), old, new)
        if key not in self.known:
            self.known[key] = cheapest_steps(self.axes, *key)
        return self.known[key]

    def sent_bytes(self, shape: ArrayShape, old: State, new: Split) -> float:
        """Return the bytes that each device sends when an array gets another sharding."""
        if old.split == new and not old.partial:
            return 0.0
        extent = self.axes.extent
        counts = [lcm(extent(a), extent(b)) for a, b in zip(old.split, new, strict=True)]
        sizes = [-(-n // c) * c for n, c in zip(shape.dimensions, counts, strict=True)]
        return self.steps(sizes, old, new).share * prod(sizes) * shape.element_type.bits / 8


def cheapest_steps(axes: DeviceAxes, sizes: Sequence[int], old: State, new: Split) -> Steps:
    """Return the steps with the fewest bytes from `old` to `new` for a value of some sizes.

    On large meshes parts that stand together in both move together: an axis of 32 devices is one
    part, not five.
    """
    if len(axes.sizes) <= _MOST_APART:
        return _searched(axes, tuple(sizes), old, new)
    groups = _groups(len(axes.sizes), old, new)
    number = {group[0]: n for n, group in enumerate(groups)}

    def grouped(parts: Axes) -> Axes:
        return tuple(number[part] for part in parts if part in number)

    def apart(parts: Axes) -> Axes:
        return tuple(part for n in parts for part in groups[n])

    searched = _searched(
        DeviceAxes(tuple(map(axes.extent, groups))),
        tuple(sizes),
        State(tuple(map(grouped, old.split)), grouped(old.partial)),
        tuple(map(grouped, new)),
    )
    steps = (
        step._replace(
            parts=apart(step.parts),
            after=State(tuple(map(apart, step.after.split)), apart(step.after.partial)),
        )
        for step in searched.steps
    )
    return Steps(tuple(steps), searched.share)


def _groups(count: int, old: State, new: Split) -> list[Axes]:
    """Return the parts of a mesh, those together that follow each other wherever they divide."""
    after: dict[int, set[int]] = {part: set() for part in range(count)}
    before: dict[int, set[int]] = {part: set() for part in range(count)}
    for parts in (*old.split, old.partial, *new):
        for first, second in zip((-1, *parts), (*parts, -1), strict=True):
            after.get(first, set()).add(second)
            before.get(second, set()).add(first)
    following = {
        part: others[0]
        for part in range(count)
        if len(others := list(after[part])) == 1 and others[0] >= 0 and before[others[0]] == {part}
    }
    inside = set(following.values())
    groups = []
    for part in range(count):
        if part not in inside:
            group = [part]
            while group[-1] in following:
                group.append(following[group[-1]])
            groups.append(tuple(group))
    return groups


def _searched(axes: DeviceAxes, sizes: tuple[int, ...], old: State, new: Split) -> Steps:
    search, goal = _Search(axes, sizes, new), State(new)
    best: dict[State, tuple[float, int]] = {old: (0.0, 0)}
    came: dict[State, tuple[State, Step]] = {}
    waiting = [(0.0, 0, 0, old)]
    seen: set[State] = set()
    order = 0
    while waiting and len(seen) < _MOST_STATES:
        share, count, _, state = heappop(waiting)
        if state in seen:
            continue
        seen.add(state)
        if state == goal:
            return Steps(_joined(_back(came, old, goal)), share)
        for step, more in search.steps(state):
            price = (share + more, count + 1)
            if step.after not in best or price < best[step.after]:
                best[step.after] = price
                came[step.after] = state, step
                order += 1
                heappush(waiting, (*price, order, step.after))
    return search.plain(old)


def _back(came: dict[State, tuple[State, Step]], old: State, new: State) -> list[Step]:
    steps: list[Step] = []
    while new != old:
        new, step = came[new]
        steps.append(step)
    return steps[::-1]


def _joined(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return steps in which what is cut or scattered along one dimension goes at once."""
    joined: list[Step] = []
    for step in steps:
        last = joined[-1] if joined else None
        if (
            last is not None
            and step.kind in (Move.CUT, Move.SCATTER)
            and (step.kind, step.dimension) == (last.kind, last.dimension)
        ):
            joined[-1] = step._replace(parts=last.parts + step.parts)
        else:
            joined.append(step)
    return tuple(joined)


class _Search:
    def __init__(self, axes: DeviceAxes, sizes: tuple[int, ...], new: Split) -> None:
        self.axes, self.sizes, self.new = axes, sizes, new
        self.wanted = [p for parts in new for p in parts]

    def steps(self, state: State) -> Iterator[tuple[Step, float]]:
        """Yield each step from a sharding, with the share of the value that a device sends."""
        split, partial = state
        local = self._local(split)
        used = bits(p for parts in split for p in parts) | bits(partial)
        for d in range(len(split)):
            for part in self.wanted:
                if not used >> part & 1 and self._divides(d, (*split[d], part)):
                    yield self._moved(Move.CUT, state, d, -1, (part,)), 0.0
            for count in range(1, len(split[d]) + 1):
                parts = split[d][-count:]
                extent = self.axes.extent(parts)
                yield self._moved(Move.GATHER, state, d, -1, parts), local * (extent - 1)
                for e in range(len(split)):
                    if e != d and self._divides(e, split[e] + parts):
                        share = local * (extent - 1) / extent
                        yield self._moved(Move.EXCHANGE, state, d, e, parts), share
        if not partial:
            for after in self._arrangements(split):
                if after != split:
                    yield Step(Move.PERMUTE, -1, -1, (), State(after)), local
            return
        extent = self.axes.extent(partial)
        yield Step(Move.REDUCE, -1, -1, partial, State(split)), 2 * local * (extent - 1) / extent
        for part in partial:
            size = self.axes.sizes[part]
            for d in range(len(split)):
                if self._divides(d, (*split[d], part)):
                    share = local * (size - 1) / size
                    yield self._moved(Move.SCATTER, state, d, -1, (part,)), share

    def plain(self, old: State) -> Steps:
        """Return steps that always serve: combine, gather what differs, cut."""
        state, steps, share = old, [], 0.0
        if old.partial:
            state = State(old.split)
            extent = self.axes.extent(old.partial)
            share += 2 * self._local(old.split) * (extent - 1) / extent
            steps.append(Step(Move.REDUCE, -1, -1, old.partial, state))
        for d, (before, after) in enumerate(zip(old.split, self.new, strict=True)):
            left = before[_common(before, after) :]
            if left:
                share += self._local(state.split) * (self.axes.extent(left) - 1)
                steps.append(self._moved(Move.GATHER, state, d, -1, left))
                state = steps[-1].after
        for d, after in enumerate(self.new):
            if state.split[d] != after:
                more = after[len(state.split[d]) :]
                steps.append(self._moved(Move.CUT, state, d, -1, more))
                state = steps[-1].after
        return Steps(tuple(steps), share)

    def _local(self, split: Split) -> float:
        return 1.0 / self.axes.extent(p for parts in split for p in parts)

    def _moved(self, kind: Move, state: State, d: int, target: int, parts: Axes) -> Step:
        after = list(state.split)
        if kind in (Move.GATHER, Move.EXCHANGE):
            after[d] = after[d][: -len(parts)]
        taker = target if kind == Move.EXCHANGE else d
        if kind != Move.GATHER:
            after[taker] += parts
        partial = state.partial
        if kind == Move.SCATTER:
            partial = tuple(p for p in partial if p not in parts)
        return Step(kind, d, target, parts, State(tuple(after), partial))

    def _divides(self, d: int, parts: Axes) -> bool:
        return self.sizes[d] % self.axes.extent(parts) == 0

    def _arrangements(self, split: Split) -> Iterator[Split]:
        """Yield shardings into blocks of the same sizes that begin as those wanted."""
        extents = [self.axes.extent(parts) for parts in split]
        starts = [self.axes.even(parts, n) for parts, n in zip(self.new, extents, strict=True)]
        taken = bits(p for parts in starts for p in parts)
        own = [p for parts in split for p in parts]
        others = [p for p in range(len(self.axes.sizes)) if p not in own]
        for rest in ((*own, *others), (*self.wanted, *own, *others)):
            left = [p for p in dict.fromkeys(rest) if not taken >> p & 1]
            after: list[Axes] = []
            for start, before, extent in zip(starts, split, extents, strict=True):
                filled = list(start)
                for p in dict.fromkeys((*before, *left)):
                    if p in left and extent % (self.axes.extent(filled) * self.axes.sizes[p]) == 0:
                        filled.append(p)
                        left.remove(p)
                after.append(tuple(filled))
            if [self.axes.extent(parts) for parts in after] == extents:
                yield tuple(after)


def _common(a: Axes, b: Axes) -> int:
    """Return how many parts two lists begin with alike."""
    count = 0
    while count < min(len(a), len(b)) and a[count] == b[count]:
        count += 1
    return count
