"""Puts ops on the rows of a large array together, so that a few rows at a time stay in cache.

A layer norm of a program is a sum, a sum of squares and elementwise ops, each in a compute set of
its own; on whole tensors each reads and writes all of memory. Here they become one region of rows,
the codelet of softmaxes that are one vertex on the device. Every element goes through the same ops
in the same order, and a row's sum has the same terms in the same order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from math import prod
from typing import NamedTuple

from hloipu_runtime.codelets.core.arranging import sizes_of
from hloipu_runtime.codelets.core.call_writer import MOST_ELEMENTS
from hloipu_runtime.codelets.core.constants import text_of
from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.codelets.ops.fused_reduce import FusedReduce, as_region
from hloipu_runtime.codelets.ops.reduce import Reduce
from hloipu_runtime.codelets.ops.row_region import RowRegion
from hloipu_runtime.kernels.core.blocks import BLOCK_ELEMENTS
from hloipu_runtime.kernels.native.rows import FEWEST_SUMMED
from hloipu_runtime.program.mapping import Sizes
from hloipu_runtime.program.program import Array, Value
from hloipu_runtime.program.steps import ValueId
from hloipu_runtime.simulate.functional.nodes import Node

_REDUCING = (FusedReduce, Reduce, RowRegion)
MOST_MEMBERS = 64
"""Nodes of one region: *assumed*; its code grows with them."""
_NOTHING = Expression((), (), ())
Adds = Callable[[Node], bool]
"""Adds a node to a chain, if it is an op on its rows."""
Form = tuple[ValueId, tuple[int, ...]]
"""A value, and the dimensions of the rows' space that its own follow."""


class _Op(NamedTuple):
    """An op on rows, as a region's steps. Values have numbers: operands come first."""

    labels: Sequence[Sequence[int]]
    steps: Sequence[tuple[Expression, Sequence[int]]]
    """Expressions, and the values that are their operands."""
    reductions: Sequence[tuple[int, int, str, str]]
    results: Sequence[int]


def _op_of(node: Node, rank: int, starts: Sequence[str]) -> _Op | None:
    """Return a node as an op on rows of a space; `starts`: what its reductions start from."""
    what = node.what
    if isinstance(what, FusedReduce) and not what.parts:
        what = as_region(what, tuple(starts))
    match what:
        case Elementwise(expression=expression, labels=labels):
            count = len(labels)
            results = range(count, count + len(expression.results))
            return _Op(labels, [(expression, range(count))], (), results)
        case Reduce(parts=(), body=None, monoid=monoid) if len(node.writes) == 1:
            return _Op([range(rank)], [(_NOTHING, ())], [(0, 0, monoid, starts[0])], [1])
        case RowRegion() as region:
            steps = list(zip(region.expressions, region.sources, strict=True))
            return _Op(region.labels, steps, region.reductions, region.results)
    return None


@dataclass
class _Chain:
    """A region so far. Its values have numbers: operands count down from -1 until it is whole."""

    sizes: Sizes
    kept: int
    """Leading dimensions, which number the rows; the others are reduced."""
    members: list[int] = field(default_factory=list)
    """Positions of nodes."""
    operands: dict[Form, str] = field(default_factory=dict)
    """Their element types."""
    number_of: dict[ValueId, int] = field(default_factory=dict)
    """Of what the members make."""
    count: int = 0
    """Values that are numbered, operands left out."""
    steps: list[tuple[Expression, tuple[int, ...]]] = field(default_factory=list)
    reductions: list[tuple[int, int, str, str]] = field(default_factory=list)

    def add(self, node: Node, table: Sequence[Value], constants: dict[ValueId, Array]) -> bool:
        """Add a node where it is an op on these rows; say whether it is."""
        rank = len(self.sizes)
        along = set(range(self.kept, rank))
        shape = table[node.writes[0]].shape if node.writes else None
        if isinstance(node.what, Elementwise):
            inits: Sequence[ValueId] = ()
        elif isinstance(node.what, _REDUCING) and set(node.what.dimensions) == along:
            inits = node.reads[1 if isinstance(node.what, Reduce) else len(node.what.labels) :]
        else:
            return False
        if any(constants.get(v) is None for v in inits):
            return False
        starts = [text_of(constants[v], table[v].element_type) for v in inits]
        op = _op_of(node, rank, starts)
        if op is None:
            return False
        reads = [(v, tuple(x)) for v, x in zip(node.reads, op.labels, strict=False)]
        if not all(self._takes(v, labels, table[v].shape) for v, labels in reads):
            return False
        if isinstance(node.what, Elementwise):
            is_full = any(along & {*labels} for _, labels in reads)
            if shape != (self.sizes if is_full else self.sizes[: self.kept]):
                return False
        self._take(op, node, [(form, table[form[0]].element_type) for form in reads])
        return True

    def _takes(self, value: ValueId, labels: Sizes, shape: Sizes) -> bool:
        """Whether a value may be read: along its own dimensions of the space, in order."""
        if shape != tuple(self.sizes[d] for d in labels if d < len(self.sizes)):
            return False
        inside = value in self.number_of
        return list(labels) == (list(range(len(labels))) if inside else sorted(labels))

    def _take(self, op: _Op, node: Node, reads: Sequence[tuple[Form, str]]) -> None:
        numbers = []
        for form, kind in reads:
            if form[0] not in self.number_of:
                self.operands.setdefault(form, kind)
            place = list(self.operands).index(form) if form in self.operands else 0
            numbers.append(self.number_of.get(form[0], -1 - place))

        def new(count: int) -> None:
            numbers.extend(range(self.count, self.count + count))
            self.count += count

        waiting = list(op.reductions)
        for k, (expression, given) in enumerate(op.steps):
            self.steps.append((expression, tuple(numbers[x] for x in given)))
            new(len(expression.results))
            while waiting and waiting[0][0] == k:
                _, value, monoid, init = waiting.pop(0)
                self.reductions.append((len(self.steps) - 1, numbers[value], monoid, init))
                new(1)
        self.number_of.update(zip(node.writes, (numbers[x] for x in op.results), strict=True))

    def node(self, last: Node, left: Sequence[ValueId]) -> Node:
        """Return the region as a node in the place of the last one; `left`: what others read."""
        before = len(self.operands)

        def final(number: int) -> int:
            return -1 - number if number < 0 else before + number

        what = RowRegion(
            labels=tuple(labels for _, labels in self.operands),
            rank=len(self.sizes),
            dimensions=tuple(range(self.kept, len(self.sizes))),
            operand_types=tuple(self.operands.values()),
            expressions=tuple(expression for expression, _ in self.steps),
            sources=tuple(tuple(map(final, given)) for _, given in self.steps),
            reductions=tuple((k, final(x), monoid, init) for k, x, monoid, init in self.reductions),
            results=tuple(final(self.number_of[v]) for v in left),
        )
        return Node(what, last.place, tuple(v for v, _ in self.operands), tuple(left))


def with_row_chains(
    nodes: Sequence[Node],
    table: Sequence[Value],
    results: frozenset[ValueId],
    constants: dict[ValueId, Array],
) -> list[Node]:
    """Return the nodes of a block with those on the rows of a large array put together.

    `results` outlive the block; `constants` are known values.
    """
    readers: dict[ValueId, list[int]] = {}
    for n, node in enumerate(nodes):
        for value in node.reads:
            readers.setdefault(value, []).append(n)
    taken: set[int] = set()
    joined: dict[int, Node] = {}
    for begin, node in enumerate(nodes):
        chain = None if begin in taken else _begun(node, nodes, readers, table)
        if chain is None:
            continue
        adds = partial(chain.add, table=table, constants=constants)
        _extend(chain, nodes, begin, taken, readers, adds)
        if not _saves(chain, nodes, table):
            continue
        members = set(chain.members)
        left = [
            v for v in chain.number_of if v in results or not members.issuperset(readers.get(v, ()))
        ]
        if left:
            taken |= members
            last = max(members)
            joined[last] = chain.node(nodes[last], left)
    return [joined.get(n, node) for n, node in enumerate(nodes) if n not in taken or n in joined]


def _begun(
    node: Node, nodes: Sequence[Node], readers: dict[ValueId, list[int]], table: Sequence[Value]
) -> _Chain | None:
    """Return an empty chain on the rows that a node reduces, or what reads it, if they are many."""
    what = node.what
    if isinstance(what, Elementwise):
        shape = table[node.writes[0]].shape
        for n in readers.get(node.writes[0], ()):
            if isinstance(nodes[n].what, _REDUCING):
                chain = _begun(nodes[n], nodes, readers, table)
                return chain if chain is not None and chain.sizes == shape else None
        return None
    if not isinstance(what, _REDUCING):
        return None
    if isinstance(what, Reduce):
        sizes = table[node.reads[0]].shape
    else:
        shapes = [table[v].shape for v in node.reads[: len(what.labels)]]
        sizes = sizes_of(what.labels, shapes, what.rank)
    kept = len(sizes) - len(what.dimensions)
    columns = prod(sizes[kept:])
    if FEWEST_SUMMED <= columns <= BLOCK_ELEMENTS // 2 and prod(sizes) > MOST_ELEMENTS:
        return _Chain(sizes, kept)
    return None


def _extend(
    chain: _Chain,
    nodes: Sequence[Node],
    begin: int,
    taken: set[int],
    readers: dict[ValueId, list[int]],
    adds: Adds,
) -> None:
    """Add nodes that follow from those of a chain, up to the first other reader of these."""
    waiting = [begin]
    while waiting and len(chain.members) < MOST_MEMBERS:
        n = heappop(waiting)
        if chain.members and chain.members[-1] == n:
            continue
        if n in taken or not adds(nodes[n]):
            return
        chain.members.append(n)
        for value in nodes[n].writes:
            for reader in readers.get(value, ()):
                heappush(waiting, reader)


def _saves(chain: _Chain, nodes: Sequence[Node], table: Sequence[Value]) -> bool:
    """Whether two members read or write the same whole array."""
    seen: set[ValueId] = set()
    for n in chain.members:
        own = {v for v in (*nodes[n].reads, *nodes[n].writes) if table[v].shape == chain.sizes}
        if own & seen:
            return True
        seen |= own
    return False
