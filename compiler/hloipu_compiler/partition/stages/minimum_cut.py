"""Minimum cut in a network of values: which to keep, which to compute again from those."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

INFINITE = 1 << 60
"""Capacity of what cannot be cut."""


@dataclass
class MinimumCut:
    """A network between what is needed and the end; nodes: values, and ~values computed again."""

    edges: dict[object, dict[object, int]] = field(default_factory=dict)
    """Node -> node -> what may still flow."""

    BEGIN, END = "begin", "end"

    def require(self, node: object) -> None:
        """Say that a value is needed."""
        self.link(self.BEGIN, node, INFINITE)

    def link(self, source: object, to: object, capacity: int) -> None:
        """Add an edge."""
        forward = self.edges.setdefault(source, {})
        forward[to] = min(INFINITE, forward.get(to, 0) + capacity)
        self.edges.setdefault(to, {}).setdefault(source, 0)

    def solved(self) -> set[object]:
        """Return the nodes on the needed side of a least cut (Dinitz, 1970).

        Of several least cuts that with the fewest nodes there, whatever the order of edges.
        """
        while True:
            level = self._levels()
            if self.END not in level:
                return set(level)
            self._fill(level)

    def _levels(self) -> dict[object, int]:
        """Return how many edges away from the begin what can still be reached is."""
        level: dict[object, int] = {self.BEGIN: 0}
        waiting: list[object] = [self.BEGIN]
        for node in waiting:
            if node == self.END:
                break  # what is as far away is on no shortest path
            further = level[node] + 1
            for to, left in self.edges[node].items():
                if left > 0 and to not in level:
                    level[to] = further
                    waiting.append(to)
        return level

    def _fill(self, level: Mapping[object, int]) -> None:
        """Send flow along shortest paths until each of them has a full edge."""
        edges = self.edges
        onward: dict[object, list[object]] = {}
        path: list[object] = [self.BEGIN]
        while path:
            node = path[-1]
            if node == self.END:
                pairs = list(pairwise(path))
                flow = min(edges[a][b] for a, b in pairs)
                full = len(path)
                for at, (a, b) in enumerate(pairs):
                    edges[a][b] -= flow
                    edges[b][a] += flow
                    if not edges[a][b]:
                        full = min(full, at)
                del path[full + 1 :]
                continue
            out = edges[node]
            if node not in onward:
                onward[node] = [to for to in out if level.get(to) == level[node] + 1]
            ahead = onward[node]
            while ahead and not out[ahead[-1]]:
                ahead.pop()
            if ahead:
                path.append(ahead[-1])
                continue
            path.pop()
            if path:
                onward[path[-1]].pop()
