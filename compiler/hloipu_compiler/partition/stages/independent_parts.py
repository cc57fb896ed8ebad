"""Finds independent parts of a stage, without annotations.

Ops of a stage hang together where one reads another's result, or both read a weight. Stages that
end in something that all parts go into, or begin with what all read, would be one part. So ops near
the end are tried as those that join the others: all from which at most so many cycles are left, for
bounds at which values meet; and ops near the beginning as what comes before the parts. What is
taken is that with which the stage ends soonest, parts spread evenly.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import isqrt
from typing import NamedTuple

from hloipu_compiler.ir.graph import Computation

JOIN = -1
"""In place of the number of a branch: an op that joins branches, or comes before them."""
_FEWEST_TRIES = 8
_MOST_WORK = 1 << 20
"""Ops looked at over all tries: pairs of bounds."""


class Parts(NamedTuple):
    """What was found."""

    branch: Mapping[int, int]
    """Position -> branch, or `JOIN`."""
    used: int
    """Branches that have ops."""
    cycles: float
    """Of the fullest branch, and of what joins them."""


def independent_parts(
    entry: Computation,
    members: Sequence[int],
    weights: Mapping[int, frozenset[int]],
    cycles: Sequence[float],
    count: int,
    *,
    most: int = 1024,
) -> Parts:
    """Return the members, ascending, of a stage spread over so many branches.

    `weights`: by position of an op, the weights that it reads; `cycles`: of every op; `most`: pairs
    of bounds that are tried, fewer where there are more than a thousand members.
    """
    return _Finding(entry, members, weights, cycles, count).best(most)


class _Finding:
    def __init__(
        self,
        entry: Computation,
        members: Sequence[int],
        weights: Mapping[int, frozenset[int]],
        cycles: Sequence[float],
        count: int,
    ) -> None:
        inside = frozenset(members)
        self.members = members
        self.weights = weights
        self.cycles = cycles
        self.count = count
        self.reads = {
            n: tuple(dict.fromkeys(i for i in entry.instructions[n].operands if i in inside))
            for n in members
        }
        self.users = {
            n: tuple(dict.fromkeys(u for u in entry.users[n] if u in inside)) for n in members
        }
        self.since: dict[int, float] = {}
        """Cycles from the beginning of the stage to the end of each op."""
        self.left: dict[int, float] = {}
        """Cycles from the beginning of each op to the end of the stage."""
        for n in members:
            last = max((self.since[i] for i in self.reads[n]), default=0.0)
            self.since[n] = last + max(cycles[n], 1.0)
        for n in reversed(members):
            rest = max((self.left[u] for u in self.users[n]), default=0.0)
            self.left[n] = rest + max(cycles[n], 1.0)

    def best(self, most: int) -> Parts:
        """Return the parts with which the stage ends soonest, of those on most branches."""
        readers = Counter(weight for n in self.members for weight in self.weights.get(n, ()))
        parting, meeting = set(), set()
        for n in self.members:
            shares = any(readers[weight] > 1 for weight in self.weights.get(n, ()))
            if len(self.reads[n]) > 1 or shares:
                meeting.add(self.left[n])
            if len(self.users[n]) > 1:
                parting.add(self.since[n])
        most = max(_FEWEST_TRIES, min(most, _MOST_WORK // max(len(self.members), 1)))
        lows = [0.0, *sorted(parting)][: max(1, min(len(parting) + 1, isqrt(most) // 2))]
        highs = [0.0, *sorted(meeting)][: max(1, most // len(lows))]
        tried = (self._parts(low, high) for low in lows for high in highs)
        return min(tried, key=lambda x: (-x.used, x.cycles))

    def _parts(self, low: float, high: float) -> Parts:
        """Return the parts where ops at most so far from the beginning or the end may be no part.

        `low`: cycles until such an op is through; `high`: cycles from when it begins.
        """
        groups = _Groups()
        before, after = [], []
        for n in self.members:
            if self.since[n] <= low:
                before.append(n)
            elif self.left[n] <= high:
                after.append(n)
            else:
                groups.add(n, self.cycles[n])
                groups.unite_all((n, *(i for i in self.reads[n] if i in groups.parent)))
                groups.unite_readers(n, self.weights.get(n, ()))
        joined = 0.0
        for n in after:
            joined += self._placed(groups, n, self.reads[n])
        for n in reversed(before):
            joined += self._placed(groups, n, self.users[n])
        branch_of, loads = self._spread(groups)
        branch_by_op = {
            n: branch_of[groups.root(n)] if n in groups.parent else JOIN for n in self.members
        }
        return Parts(branch_by_op, sum(load >= 0 for load in loads), max(loads) + joined)

    def _placed(self, groups: "_Groups", n: int, near: Sequence[int]) -> float:
        """Put an op into the one part that it hangs together with; return its cycles if none is.

        `near`: what it reads, at the end, or what reads it, in the beginning.
        """
        weights = self.weights.get(n, frozenset())
        root = groups.one_of(n, near, weights)
        if root == JOIN:
            groups.joining.add(n)
            return self.cycles[n]
        groups.add(n, self.cycles[n])
        groups.unite(n, root)
        groups.unite_readers(n, weights)
        return 0.0

    def _spread(self, groups: "_Groups") -> tuple[dict[int, int], list[float]]:
        """Return a branch for each group, the dearest first to the emptiest, and their cycles.

        A branch that has none has -1.
        """
        roots = [n for n in groups.parent if groups.root(n) == n]
        roots.sort(key=lambda root: -groups.cycles[root])
        loads = [-1.0] * self.count
        branch_by_root = {}
        for root in roots:
            emptiest = min(range(self.count), key=loads.__getitem__)
            branch_by_root[root] = emptiest
            loads[emptiest] = max(loads[emptiest], 0.0) + groups.cycles[root]
        return branch_by_root, loads


class _Groups:
    """Ops that hang together; each group goes by one of its ops, its root."""

    def __init__(self) -> None:
        self.parent: dict[int, int] = {}
        self.cycles: dict[int, float] = {}
        """Of each root's group."""
        self.reader: dict[int, int] = {}
        """Weight -> an op that reads it."""
        self.joining: set[int] = set()

    def add(self, n: int, cycles: float) -> None:
        """Add an op as a group of its own."""
        self.parent[n] = n
        self.cycles[n] = cycles

    def root(self, n: int) -> int:
        while self.parent[n] != n:
            self.parent[n] = self.parent[self.parent[n]]
            n = self.parent[n]
        return n

    def unite(self, a: int, b: int) -> None:
        """Make one group of those of two ops."""
        a, b = self.root(a), self.root(b)
        if a != b:
            self.parent[a] = b
            self.cycles[b] += self.cycles[a]

    def unite_all(self, members: Sequence[int]) -> None:
        """Make one group of those of several ops."""
        for n in members[1:]:
            self.unite(members[0], n)

    def unite_readers(self, n: int, weights: Iterable[int]) -> None:
        """Make one group of an op's and of those that read the same weights."""
        for weight in weights:
            self.unite(n, self.reader.setdefault(weight, n))

    def one_of(self, n: int, near: Sequence[int], weights: Iterable[int]) -> int:
        """Return the root of the one group that an op belongs to, itself if it begins one.

        `JOIN` where it hangs together with several, or with what joins others; what has not been
        put anywhere yet does not count.
        """
        if any(i in self.joining for i in near):
            return JOIN
        roots = {self.root(i) for i in near if i in self.parent}
        roots |= {self.root(self.reader[weight]) for weight in weights if weight in self.reader}
        if len(roots) > 1:
            return JOIN
        return roots.pop() if roots else n
