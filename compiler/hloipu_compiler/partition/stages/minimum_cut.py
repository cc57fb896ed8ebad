"""Minimum cut in a network of values: which to keep, which to compute again from those."""

from dataclasses import dataclass, field

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
        """Return the nodes on the needed side of a least cut (Edmonds and Karp, 1972)."""
        while True:
            before: dict[object, object] = {self.BEGIN: self.BEGIN}
            waiting: list[object] = [self.BEGIN]
            for node in waiting:
                if node == self.END:
                    break
                for to, left in self.edges[node].items():
                    if left > 0 and to not in before:
                        before[to] = node
                        waiting.append(to)
            if self.END not in before:
                return set(before)
            path = [self.END]
            while path[-1] != self.BEGIN:
                path.append(before[path[-1]])  # type: ignore[arg-type]
            pairs = list(zip(path[1:], path, strict=False))
            flow = min(self.edges[a][b] for a, b in pairs)
            for a, b in pairs:
                self.edges[a][b] -= flow
                self.edges[b][a] += flow
