"""Puts the slices of a scatter's windows together: on whole tensors it is one scatter.

A tile has room for few windows, so that these come in slices, each scattered into what the one
before it left (`planners/writing_plans.py` of the compiler). Windows are combined in row-major
order of their indices. Where slices follow one another along the first dimension of these that
counts, one scatter of all windows combines the same ones in the same order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from hloipu_runtime.codelets.indexed.scatter import Scatter
from hloipu_runtime.codelets.indexed.scatter_parts import batch_places
from hloipu_runtime.program.program import Value
from hloipu_runtime.program.steps import Definition, ValueId
from hloipu_runtime.simulate.functional.nodes import Node


class _Slice(NamedTuple):
    """What a scatter takes of all windows."""

    wholes: tuple[ValueId, ...]
    """All indices, and all updates."""
    low: int
    high: int
    end: int
    """Of the dimension that is cut: where the slice begins and ends, and its size."""


def with_whole_scatters(
    nodes: list[Node], table: Sequence[Value], results: frozenset[ValueId]
) -> list[Node]:
    """Return the nodes of a block with the slices of each scatter as one node.

    `results` outlive the block.
    """
    if sum(isinstance(node.what, Scatter) for node in nodes) < 2:
        return nodes
    readers: dict[ValueId, list[int]] = {}
    for n, node in enumerate(nodes):
        for value in dict.fromkeys(node.reads):
            readers.setdefault(value, []).append(n)
    definitions = {x.what.value: x.what for x in nodes if isinstance(x.what, Definition)}
    slices = {n: _slice(node, definitions, table) for n, node in enumerate(nodes)}
    dropped: set[int] = set()
    joined: dict[int, Node] = {}
    for first, begin in slices.items():
        if begin is None or begin.low:
            continue
        chain, high = [first], begin.high
        while high < begin.end:
            following = _next(nodes[chain[-1]], nodes, readers, results)
            after = slices[following] if following >= 0 else None
            if after is None or after != begin._replace(low=high, high=after.high):
                break
            chain.append(following)
            high = after.high
        if high == begin.end and len(chain) > 1:
            dropped.update(chain)
            data = nodes[first].reads[: len(nodes[first].writes)]
            joined[chain[-1]] = replace(nodes[chain[-1]], reads=(*data, *begin.wholes))
    if not joined:
        return nodes
    kept = [joined.get(n, node) for n, node in enumerate(nodes) if n not in dropped or n in joined]
    read = {*results, *(v for node in kept for v in node.reads)}
    return [x for x in kept if not isinstance(x.what, Definition) or x.what.value in read]


def _next(
    node: Node,
    nodes: Sequence[Node],
    readers: Mapping[ValueId, Sequence[int]],
    results: frozenset[ValueId],
) -> int:
    """Return the position of the same scatter into what a scatter leaves for it alone; or -1."""
    tables = node.writes
    following = {n for v in tables for n in readers.get(v, ())}
    if len(following) != 1 or results.intersection(tables):
        return -1
    (n,) = following
    data, windows = nodes[n].reads[: len(tables)], nodes[n].reads[len(tables) :]
    is_next = nodes[n].what == node.what and data == tables and not {*tables} & {*windows}
    return n if is_next else -1


def _slice(
    node: Node, definitions: Mapping[ValueId, Definition], table: Sequence[Value]
) -> _Slice | None:
    """Return a scatter's windows as part of all; None where its operands are no such slices."""
    what, count = node.what, len(node.writes)
    windows = [definitions.get(v) for v in node.reads[count:]]
    if not isinstance(what, Scatter):
        return None
    pieces = [x.pieces[0] for x in windows if x and x.base is None and len(x.pieces) == 1]
    if len(pieces) < len(windows) or any(x.view != table[x.value].shape for x in pieces):
        return None
    pairs = [
        (d, place)
        for d, place in batch_places(what.dims, len(pieces[0].view))
        if d not in what.dims.scatter_indices_batching_dims and pieces[0].view[d] > 1
    ]
    if not pairs:
        return None
    cuts = set()
    for piece, d in zip(pieces, (pairs[0][0], *(pairs[0][1],) * count), strict=True):
        ranges = [
            (low + x, high + x) for (low, high), x in zip(piece.box, piece.shift, strict=True)
        ]
        if any(
            x != (0, n) for k, (x, n) in enumerate(zip(ranges, piece.view, strict=True)) if k != d
        ):
            return None
        cuts.add((*ranges[d], piece.view[d]))
    if len(cuts) != 1:
        return None
    return _Slice(tuple(x.value for x in pieces), *cuts.pop())
