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

from hloipu_runtime.codelets.core.arranging import sizes_of
from hloipu_runtime.codelets.core.call_writer import MOST_ELEMENTS
from hloipu_runtime.codelets.core.constants import text_of
from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.codelets.ops.fused_reduce import FusedReduce
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


@dataclass
class _Chain:
    """A region so far. Its values have numbers: operands count down from -1 until it is whole."""

    sizes: Sizes
    kept: int
    """Leading dimensions, which number the rows; the others are reduced."""
    members: list[int] = field(default_factory=list)
    """Positions of nodes."""
    operands: dict[Form, int] = field(default_factory=dict)
    operand_types: list[str] = field(default_factory=list)
    number_of: dict[ValueId, int] = field(default_factory=dict)
    """Of what the members make."""
    count: int = 0
    """Values that are numbered, operands left out."""
    steps: list[tuple[Expression, tuple[int, ...]]] = field(default_factory=list)
    reductions: list[tuple[int, int, str, str]] = field(default_factory=list)

    def source(self, value: ValueId, labels: Sequence[int], kind: str) -> int:
        """Return the number of what a member reads."""
        if value in self.number_of:
            return self.number_of[value]
        form = value, tuple(labels)
        if form not in self.operands:
            self.operands[form] = -1 - len(self.operands)
            self.operand_types.append(kind)
        return self.operands[form]

    def step(self, expression: Expression, sources: Sequence[int]) -> list[int]:
        """Add a step, and return the numbers of its results."""
        self.steps.append((expression, tuple(sources)))
        self.count += len(expression.results)
        return list(range(self.count - len(expression.results), self.count))

    def reduction(self, number: int, monoid: str, init: str) -> int:
        """Reduce a value after the last step, and return the number of that."""
        self.reductions.append((len(self.steps) - 1, number, monoid, init))
        self.count += 1
        return self.count - 1

    def takes(self, value: ValueId, labels: Sequence[int], shape: Sizes) -> bool:
        """Whether a value may be read: along its own dimensions of the space, in order."""
        wanted = tuple(self.sizes[d] for d in labels)
        if value in self.number_of:
            return tuple(labels) == tuple(range(len(labels))) and wanted == shape
        return wanted == shape and list(labels) == sorted(labels)

    def add(self, node: Node, table: Sequence[Value], constants: dict[ValueId, Array]) -> bool:
        """Add a node where it is an op on these rows; say whether it is."""
        what, rank = node.what, len(self.sizes)
        along = tuple(range(self.kept, rank))
        labels: Sequence[Sequence[int]]
        inits: tuple[ValueId, ...] = ()
        match what:
            case Elementwise():
                if table[node.writes[0]].shape not in (self.sizes, self.sizes[: self.kept]):
                    return False
                labels = what.labels
            case FusedReduce(part=0) | RowRegion():
                if (what.rank, what.dimensions) != (rank, along):
                    return False
                labels, inits = what.labels, node.reads[len(what.labels) :]
            case Reduce(part=0, body=None):
                if what.dimensions != along or len(node.writes) != 1:
                    return False
                labels, inits = (tuple(range(rank)),), node.reads[1:]
            case _:
                return False
        reads = node.reads[: len(labels)]
        if any(constants.get(v) is None for v in inits):
            return False
        if not all(self.takes(v, x, table[v].shape) for v, x in zip(reads, labels, strict=True)):
            return False
        if isinstance(what, Elementwise):
            full = any({*x} & {*along} for x in labels)
            if full != (table[node.writes[0]].shape == self.sizes):
                return False  # rows that are all alike
        sources = [
            self.source(v, x, table[v].element_type) for v, x in zip(reads, labels, strict=True)
        ]
        starts = [text_of(constants[v], table[v].element_type) for v in inits]
        made = self._add(what, sources, starts)
        self.number_of.update(zip(node.writes, made, strict=True))
        return True

    def _add(self, what: object, sources: Sequence[int], starts: Sequence[str]) -> list[int]:
        match what:
            case Elementwise():
                return self.step(what.expression, sources)
            case FusedReduce():
                (number,) = self.step(what.expression, sources)
                return [self.reduction(number, what.monoid, starts[0])]
            case Reduce():
                if not self.steps:
                    self.step(_NOTHING, ())
                return [self.reduction(sources[0], what.monoid, starts[0])]
            case RowRegion():
                numbers = list(sources)
                waiting = list(what.reductions)
                for k, (expression, given) in enumerate(
                    zip(what.expressions, what.sources, strict=True)
                ):
                    numbers += self.step(expression, [numbers[x] for x in given])
                    while waiting and waiting[0][0] == k:
                        _, value, monoid, init = waiting.pop(0)
                        numbers.append(self.reduction(numbers[value], monoid, init))
                return [numbers[x] for x in what.results]
        raise TypeError(f"{type(what).__name__} is no op on rows")

    def node(self, last: Node, left: Sequence[ValueId]) -> Node:
        """Return the region as a node in the place of the last one; `left`: what others read."""
        before = len(self.operands)

        def final(number: int) -> int:
            return -1 - number if number < 0 else before + number

        what = RowRegion(
            labels=tuple(labels for _, labels in self.operands),
            rank=len(self.sizes),
            dimensions=tuple(range(self.kept, len(self.sizes))),
            operand_types=tuple(self.operand_types),
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
    node: Node,
    nodes: Sequence[Node],
    readers: dict[ValueId, list[int]],
    table: Sequence[Value],
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
