"""Dominators of the dataflow graph, in one pass over the topological order.

In an acyclic graph the immediate dominator of a node is the lowest common ancestor, in the
dominator tree, of its predecessors. Ancestors are found with skip pointers (Myers, "An
applicative random-access stack", 1983): O(log n) a query, so n log n in all where walking up
parents would be quadratic on a long chain.
"""

from collections.abc import Sequence

from hloipu_compiler.ir.graph import Computation

ROOT = -1
"""The virtual node above every node without predecessors."""


def immediate_dominators(computation: Computation) -> tuple[int, ...]:
    """Return, for each position, the last one that every path from the inputs to it passes.

    `ROOT` where there is none.
    """
    return _dominators([x.operands for x in computation.instructions])


def immediate_post_dominators(computation: Computation) -> tuple[int, ...]:
    """Return, for each position, the first one that every path from it to the end passes.

    `ROOT` where its uses never meet again; the end is every instruction without users.
    """
    last = len(computation.instructions) - 1
    flipped = [tuple(last - user for user in users) for users in reversed(computation.users)]
    found = _dominators(flipped)
    return tuple(ROOT if x == ROOT else last - x for x in reversed(found))


def _dominators(predecessors: Sequence[Sequence[int]]) -> tuple[int, ...]:
    # Node k of the tree is position k - 1; node 0 is the virtual root.
    count = len(predecessors) + 1
    parent, skip, depth = [0] * count, [0] * count, [0] * count
    for node in range(1, count):
        above = [x + 1 for x in predecessors[node - 1]]
        dominator = above[0] if above else 0
        for other in above[1:]:
            if dominator == 0:
                break
            dominator = _meet(dominator, other, parent, skip, depth)
        parent[node] = dominator
        depth[node] = depth[dominator] + 1
        far = skip[dominator]
        even = depth[dominator] - depth[far] == depth[far] - depth[skip[far]]
        skip[node] = skip[far] if even else dominator
    return tuple(x - 1 for x in parent[1:])


def _meet(a: int, b: int, parent: list[int], skip: list[int], depth: list[int]) -> int:
    if depth[a] < depth[b]:
        a, b = b, a
    while depth[a] > depth[b]:
        a = skip[a] if depth[skip[a]] >= depth[b] else parent[a]
    while a != b:
        if skip[a] != skip[b]:
            a, b = skip[a], skip[b]
        else:
            a, b = parent[a], parent[b]
    return a
