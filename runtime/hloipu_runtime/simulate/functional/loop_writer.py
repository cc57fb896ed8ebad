"""Writes a loop, or nodes one after another, as one compiled function on small arrays.

What is written has the bits of the plain path: the same instructions, numpy's own loops and
products on arrays that lie alike, and sums in the same order. What cannot be told to be so is
refused: it then stays Python's.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.codelets.dense.dot import Dot
from hloipu_runtime.codelets.indexed.dynamic_slice import DynamicSlice, DynamicUpdateSlice
from hloipu_runtime.codelets.indexed.gather import Gather
from hloipu_runtime.codelets.indexed.scatter import Scatter
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.codelets.ops.fused_reduce import FusedReduce
from hloipu_runtime.codelets.ops.join import Pad
from hloipu_runtime.codelets.ops.reduce import Reduce
from hloipu_runtime.codelets.ops.row_region import RowRegion
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.kernels.native.regions import Held, Memory, Place, Region, Register
from hloipu_runtime.program.program import Array, Value
from hloipu_runtime.program.steps import Definition, Repeat, RepeatWhile, ValueId
from hloipu_runtime.simulate.functional.known_values import is_known
from hloipu_runtime.simulate.functional.nodes import Node
from hloipu_runtime.simulate.functional.region_products import RegionProducts
from hloipu_runtime.simulate.functional.region_reductions import RegionReductions
from hloipu_runtime.simulate.functional.region_values import (
    Refused,
    Sizes,
    cut_of,
    empty_as,
)
from hloipu_runtime.simulate.functional.region_windows import RegionWindows
from hloipu_runtime.simulate.functional.whole_tensors import Values, cuts_of, whole_block

MOST_NODES = 400
"""Usual ones: LLVM takes some four seconds, in which no interrupt is taken."""


class Written(NamedTuple):
    """A loop as a compiled function's text."""

    region: Region
    memories: tuple[str, ...]
    """Names of the memory of `outside`, then of `left`."""
    outside: tuple[ValueId, ...]
    """Values that others make."""
    left: tuple[ValueId, ...]
    """Values that a loop carries from turn to turn, in row-major arrays, or nodes leave."""
    multiplies: bool
    """Whether BLAS must be told to use one thread."""
    strides: tuple[Sizes | None, ...] = ()
    """Of what nodes leave; None: row-major."""


def written_loop(node: Node, table: Sequence[Value], first: Values, values: Values) -> Written:
    """Return a loop's text for outside values that lie as these; raises Refused."""
    return _Writer(table, first, values).loop(node)


def written_nodes(
    nodes: Sequence[Node],
    results: Sequence[ValueId],
    table: Sequence[Value],
    first: Values,
    values: Values,
) -> Written:
    """Return the text of nodes one after another, which leave some results; raises Refused."""
    return _Writer(table, first, values).nodes(nodes, results)


class _Writer(RegionReductions, RegionProducts, RegionWindows):
    def nodes(self, nodes: Sequence[Node], results: Sequence[ValueId]) -> Written:
        self._begin(results, {v: v for v in results})
        self._block(nodes, results)
        for value in results:
            self._lay_as_it_lies(value)
        self._carry([(v, v) for v in results])
        self.region.line("ret void")
        return self._end(results)

    def _begin(self, left: Sequence[ValueId], turn_of: dict[ValueId, ValueId]) -> None:
        """Give memory to what is left to the next turn, or to others."""
        for k, value in enumerate(left):
            self.state[value] = self._carried(value, f"%left.{k}")
        self.turn_of = turn_of

    def _end(self, left: Sequence[ValueId]) -> Written:
        if self.region.usual_nodes > MOST_NODES:
            raise Refused
        names = (*self.outside.values(), *(x.memory.pointer for x in self.state.values()))
        views = [x.view for x in self.state.values()]
        strides = tuple(None if x.flags.c_contiguous else x.strides for x in views)
        return Written(
            self.region, names, tuple(self.outside), tuple(left), self.multiplies, strides
        )

    def loop(self, node: Node) -> Written:
        loop = node.what
        assert isinstance(loop, Repeat | RepeatWhile)
        carried, body = loop.carried, node.blocks[-1]
        if sum(len(block.nodes) for block in node.blocks) > MOST_NODES:
            raise Refused
        turns = tuple(x.turn for x in carried)
        following = {x.following: x.turn for x in reversed(carried)}
        self._begin(turns, following)

        def begin() -> None:
            for turn, place in self.state.items():
                self.held[turn] = place if prod(place.view.shape) > 1 else self._loaded(place)

        def condition() -> str:
            assert isinstance(loop, RepeatWhile)
            self._block(node.blocks[0].nodes, (loop.predicate_value, *turns))
            return self.region.one(self._value(loop.predicate_value))

        def going() -> None:
            self._block(body.nodes, tuple(following))
            self._carry([(x.turn, x.following) for x in carried])

        asked = condition if isinstance(loop, RepeatWhile) else None
        self.region.turns(going, condition=asked, begin=begin)
        return self._end(turns)

    def _carried(self, value: ValueId, name: str) -> Place:
        shape, kind = self._form(value)
        stand_in = np.empty(shape, storage_dtype(self.table[value].element_type))
        return Place(Memory(name, 0, stand_in), stand_in, kind)

    def _lay_as_it_lies(self, value: ValueId) -> None:
        """Let nodes leave a value as the plain path does, of which it may be a view."""
        held, place = self._value(value), self.state[value]
        if isinstance(held, Place) and not held.view.flags.c_contiguous:
            if min(held.view.strides) <= 0:
                raise Refused
            stand_in = empty_as(held.view.shape, place.view.dtype, held.view.strides)
            memory = place.memory._replace(stand_in=stand_in)
            self.state[value] = Place(memory, stand_in, place.type)

    def _carry(self, pairs: Sequence[tuple[ValueId, ValueId]]) -> None:
        """Write what is carried on to where the next turn reads it."""
        moving: list[tuple[Held, Place]] = []
        for turn, following in pairs:
            source, target = self._value(following), self.state[turn]
            if isinstance(source, Place):
                both = source.view, target.view
                is_alike = all(x.flags.c_contiguous for x in both)
                if not is_alike and source.view.strides != target.view.strides:
                    raise Refused  # the plain path would carry it on as it lies
                if self._is_unsure(source):
                    raise Refused
                if source.memory is target.memory:
                    continue
            moving.append((source, target))
        targets = {id(target.memory) for _, target in moving}
        for k, (source, target) in enumerate(moving):
            if isinstance(source, Place) and id(source.memory) in targets:
                copy = self.region.temporary(source.view.shape, source.type)
                self.region.copy(source, copy)
                moving[k] = copy, target
        for source, target in moving:
            self.region.copy(source, target)

    def _block(self, nodes: Sequence[Node], kept: Sequence[ValueId]) -> None:
        """Write the nodes of a block; `kept` outlive it."""
        self.last = {}
        for n, node in enumerate(nodes):
            for value in node.reads:
                self.last[value] = n
        self.last |= dict.fromkeys(kept, float("inf"))
        for n, node in enumerate(nodes):
            self.now = n
            if not is_known(node, self.first):
                self._node(node)

    def _node(self, node: Node) -> None:
        what = node.what
        for v in (*node.reads, *node.writes):
            if 0 in self.table[v].shape:
                raise Refused
        match what:
            case Definition():
                made = [self._definition(what, node)]
            case Elementwise():
                made = self._elementwise(what, node)
            case DynamicSlice():
                made = [self._slice(what, node)]
            case DynamicUpdateSlice():
                made = [self._update(what, node)]
            case Dot(part=0):
                made = [self._dot(what, node)]
            case Reduce(parts=()):
                made = self._reduce(what, node)
            case FusedReduce(parts=()):
                made = self._fused(what, node)
            case RowRegion():
                made = self._rows(what, node)
            case Gather():
                made = [self._gather(what, node)]
            case Scatter():
                made = [self._scatter(what, node)]
            case Pad():
                made = [self._pad(what, node)]
            case Codelet(rearranges=True):
                made = [self._seen(what, node)]
            case _:
                raise Refused
        for v, held in zip(node.writes, made, strict=True):
            shape, _ = self._form(v)
            if isinstance(held, Place):
                if held.view.shape != shape:
                    held = held.seen(held.view.reshape(shape, copy=False))
                if prod(shape) == 1:
                    held = self._loaded(held)
            self.held[v] = held

    def _seen(self, what: Codelet, node: Node) -> Held:
        """Return what only looks at its operand otherwise."""
        (source,), shape = map(self._value, node.reads), self.table[node.writes[0]].shape
        if isinstance(source, Register):
            if prod(shape) == 1:
                return source._replace(shape=shape)
            target = self.region.temporary(shape, source.type)
            self.region.fill(target, source.name)
            self._doubt(target)
            return target
        run = what.bound([whole_block(source.view.shape)], [whole_block(shape)])
        return self._view(source, run([source.view], [None])[0])

    def _view(self, source: Place, view: Array) -> Place:
        if not np.may_share_memory(view, source.memory.stand_in):
            raise Refused
        return source.seen(view)

    def _definition(self, what: Definition, node: Node) -> Held:
        shape = self._form(what.value)[0]
        if what.base is None and len(what.pieces) == 1:
            (piece,) = what.pieces
            source = self._value(piece.value)
            if isinstance(source, Register):
                return source._replace(shape=shape)
            view = cut_of(source.view.reshape(piece.view), cuts_of(piece)[0])
            return self._view(source, view)
        pieces = [(self._value(p.value), p.view, *cuts_of(p)) for p in what.pieces]
        if what.base is None:
            target = self._place_for(what.value, [x for x, *_ in pieces])
        else:
            target = self._overwritten(what.value, what.base, [x for x, *_ in pieces])
        for source, viewed, origin, box in pieces:
            part = target.seen(cut_of(target.view, box))
            if isinstance(source, Place):
                source = self._view(source, cut_of(source.view.reshape(viewed), origin))
            self.region.copy(source, part)
        return target

    def _elementwise(self, what: Elementwise, node: Node) -> list[Held]:
        shape = self.table[node.writes[0]].shape
        operands = [
            self._arranged(self._value(v), labels, what.rank)
            for v, labels in zip(node.reads, what.labels, strict=True)
        ]
        return self._expression(what.expression, operands, shape, node.writes)
