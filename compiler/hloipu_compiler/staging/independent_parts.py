"""Parts of a stage that do not depend on one another, found where no annotation tells them.

Ops of a stage hang together where one reads another's result, or both read a weight. Stages that
end in something that all parts go into would be one part; so ops near the end are tried as that
which joins the others: all from which at most so many cycles are left, for every such bound at
which values meet. What is taken is that with which the stage ends soonest, parts spread evenly.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hloipu_compiler.ir.graph import Computation

JOIN = -1
"""In place of the number of a branch: an op that joins branches, or comes before them."""
_MOST_BOUNDS = 256
_MOST_WORK = 4_000_000
"""Ops looked at over all bounds."""


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
) -> Parts:
    """Return the members, ascending, of a stage spread over so many branches.

    `weights`: by position of an op, the weights that it reads; `cycles`: of every op. Work grows
    with members, times at most 256 bounds.
    """
    return _Finding(entry, members, weights, cycles, count).best()


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
        self.left = self._left(entry, inside)

    def _left(self, entry: Computation, inside: frozenset[int]) -> dict[int, float]:
        """Return the cycles from the beginning of each op to the end of the stage."""
        found: dict[int, float] = {}
        for n in reversed(self.members):
            after = max((found[u] for u in entry.users[n] if u in inside), default=0.0)
            found[n] = after + max(self.cycles[n], 1.0)
        return found

    def best(self) -> Parts:
        """Return the parts with which the stage ends soonest, of those on most branches."""
        meetings = {self.left[n] for n in self.members if len(self.reads[n]) > 1}
        most = max(8, min(_MOST_BOUNDS, _MOST_WORK // max(len(self.members), 1)))
        bounds = [0.0, *sorted(meetings)[:most]]
        return min((self._parts(bound) for bound in bounds), key=lambda x: (-x.used, x.cycles))

    def _parts(self, bound: float) -> Parts:
        """Return the parts where ops with no more cycles left than `bound` may join others."""
        groups = _Groups()
        for n in self.members:
            if self.left[n] > bound:
                groups.add(n, self.cycles[n])
                for i in self.reads[n]:
                    groups.unite(n, i)
                for weight in self.weights.get(n, ()):
                    groups.unite(n, groups.reader.setdefault(weight, n))
        joined = 0.0
        for n in self.members:
            if self.left[n] <= bound:
                root = groups.one_of(n, self.reads[n], self.weights.get(n, frozenset()))
                if root == JOIN:
                    groups.joining.add(n)
                    joined += self.cycles[n]
                    continue
                groups.add(n, self.cycles[n])
                groups.unite(n, root)
                for weight in self.weights.get(n, ()):
                    groups.reader.setdefault(weight, n)
        branch_of, loads = self._spread(groups)
        found = {n: branch_of[groups.root(n)] if n in groups.parent else JOIN for n in self.members}
        return Parts(found, sum(load >= 0 for load in loads), max(loads) + joined)

    def _spread(self, groups: "_Groups") -> tuple[dict[int, int], list[float]]:
        """Return a branch for each group, the dearest first to the emptiest, and their cycles.

        A branch that has none has -1.
        """
        roots = [n for n in groups.parent if groups.root(n) == n]
        roots.sort(key=lambda root: -groups.cycles[root])
        loads = [-1.0] * self.count
        found = {}
        for root in roots:
            emptiest = min(range(self.count), key=loads.__getitem__)
            found[root] = emptiest
            loads[emptiest] = max(loads[emptiest], 0.0) + groups.cycles[root]
        return found, loads


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
        """Return the root of an op's group."""
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

    def one_of(self, n: int, reads: Sequence[int], weights: frozenset[int]) -> int:
        """Return the root of the one group that an op belongs to, itself if it begins one.

        `JOIN` where it reads what several make, or what joins others.
        """
        if any(i in self.joining for i in reads):
            return JOIN
        found = {self.root(i) for i in reads}
        found |= {self.root(self.reader[weight]) for weight in weights if weight in self.reader}
        if len(found) > 1:
            return JOIN
        return found.pop() if found else n
