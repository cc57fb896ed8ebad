"""Puts the steps of a sort over tiles together: on whole tensors it is one sort.

`codelets/ops/sort.py` says which steps sort a dimension that is cut into parts, and why. Where a
program's steps are those, one after another, and keys and places order all elements, what they
leave does not depend on how they went about it.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.codelets.core.tensors import Array, Block
from hloipu_runtime.codelets.ops.sort import Sort
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.program.mapping import Sizes
from hloipu_runtime.program.program import Value
from hloipu_runtime.program.steps import Definition, ValueId
from hloipu_runtime.simulate.functional.nodes import Node
from hloipu_runtime.simulate.functional.whole_tensors import whole_block


@dataclass(frozen=True)
class WholeSort(Codelet):
    """Sorts operands that are seen in one shape and left in another."""

    sort: Sort
    shape: Sizes
    """In which the sorted dimension is one."""

    def run(self, operands: Sequence[Block], results: Sequence[Block]) -> list[Array]:
        """Sort whole tensors."""
        block = whole_block(self.shape)
        given = [block._replace(array=x.data.reshape(self.shape)) for x in operands]
        ordered = self.sort.run(given, [block] * len(results))
        return [x.reshape(y.part) for x, y in zip(ordered, results, strict=True)]


def with_whole_sorts(
    nodes: list[Node], table: Sequence[Value], results: frozenset[ValueId]
) -> list[Node]:
    """Return the nodes of a block with the steps of each sort over tiles as one node.

    `results` outlive the block.
    """
    if not any(_begins(node) for node in nodes):
        return nodes
    readers: dict[ValueId, list[int]] = {}
    for n, node in enumerate(nodes):
        for value in dict.fromkeys(node.reads):
            readers.setdefault(value, []).append(n)
    dropped: set[int] = set()
    joined: dict[int, Node] = {}
    for n, node in enumerate(nodes):
        if _begins(node):
            members = _steps(n, nodes, table, readers, results)
            if members:
                dropped.update(members)
                last = nodes[members[-1]]
                left = [v for v in last.writes if v in readers or v in results]
                kept = 1 + max((last.writes.index(v) for v in left), default=0)
                what = _as_one(node, table)
                joined[members[-1]] = Node(what, last.place, node.reads, last.writes[:kept])
    return [joined.get(n, node) for n, node in enumerate(nodes) if n not in dropped or n in joined]


def _begins(node: Node) -> bool:
    """Whether a node sorts the blocks, every other one backwards, by keys."""
    what = node.what
    if not isinstance(what, Sort) or not what.keys or what.rises_and_falls:
        return False
    return what.alternating >= 0 and what.dimension == what.alternating + 1


def _as_one(first: Node, table: Sequence[Value]) -> WholeSort:
    assert isinstance(first.what, Sort)
    d, seen = first.what.alternating, table[first.reads[0]].shape
    sort = replace(first.what, dimension=d, alternating=-1)
    return WholeSort(sort, (*seen[:d], seen[d] * seen[d + 1], *seen[d + 2 :]))


def _steps(
    first: int,
    nodes: Sequence[Node],
    table: Sequence[Value],
    readers: dict[ValueId, list[int]],
    results: frozenset[ValueId],
) -> list[int]:
    """Return the positions of all steps of the sort that a node begins; none: they are not it."""
    begin = nodes[first].what
    assert isinstance(begin, Sort)
    d, seen = begin.alternating, table[nodes[first].reads[0]].shape
    outer, parts, behind = seen[:d], seen[d], seen[d + 1 :]
    carried, members = nodes[first].writes, [first]
    run, dimension, last = 1, d + 1, d + 1
    while not results.intersection(carried):
        following = [readers.get(v, []) for v in carried]
        if any(len(x) != 1 for x in following):
            break
        positions = [x[0] for x in following]
        members += dict.fromkeys(positions)
        node = nodes[positions[0]]
        if not isinstance(node.what, Sort):
            views = [
                seen_otherwise(nodes[n], v, table) for n, v in zip(positions, carried, strict=True)
            ]
            carried = tuple(v for v in views if v is not None)
            if len(carried) < len(views):
                break
            continue
        shape = table[carried[0]].shape
        if dimension < last:
            dimension += 1
            is_next = shape == seen
        else:
            run, dimension, last, seen = 2 * run, d + 1, len(shape) - len(behind), shape
            factors = shape[d + 1 : last]
            powers = all(n > 0 and not n & (n - 1) for n in factors)
            is_next = powers and shape == (*outer, parts // run, *factors, *behind)
            is_next = is_next and prod(factors) == run
        alternating = d if run < parts else -1
        step = replace(begin, dimension=dimension, alternating=alternating, rises_and_falls=True)
        if not is_next or node.what != step or node.reads != carried:
            break
        carried = node.writes
        if run == parts and dimension == last:
            return members
    return []


def seen_otherwise(node: Node, value: ValueId, table: Sequence[Value]) -> ValueId | None:
    """Return what a node makes of a value if that is the same in another shape."""
    what = node.what
    if not isinstance(what, Definition) or what.base is not None or len(what.pieces) != 1:
        return None
    (piece,) = what.pieces
    whole = tuple((0, n) for n in table[what.value].shape)
    same = piece.view == table[what.value].shape and not any(piece.shift) and piece.box == whole
    return what.value if same and piece.value == value else None
