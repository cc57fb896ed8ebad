"""Writes steps on small tile memories as one compiled function.

A codelet on a grid of tiles is written as the same one on whole arrays with the grid's dimensions
in front, where its calls on the tiles do just that; see `functional/loop_writer.py`. Memories stay
where they are from run to run, and everything is read from them and written to them.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.codelets.core.grids import pair, piece_runs, split
from hloipu_runtime.codelets.core.native_lowering import storage_type
from hloipu_runtime.codelets.core.placing import follows, same_memory, whole_of_parts
from hloipu_runtime.codelets.core.tensors import Block
from hloipu_runtime.codelets.dense.dot import Dot, cut_dimensions, folded_dot
from hloipu_runtime.codelets.indexed.dynamic_slice import (
    DynamicSlice,
    DynamicUpdateSlice,
    widened,
)
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.codelets.ops.fused_reduce import FusedReduce, as_region
from hloipu_runtime.codelets.ops.reduce import Reduce
from hloipu_runtime.codelets.ops.row_region import RowRegion
from hloipu_runtime.kernels.core.blocks import compact
from hloipu_runtime.kernels.core.monoids import identity
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.kernels.native.regions import Held, Memory, Place, Register
from hloipu_runtime.kernels.native.text import is_known_type
from hloipu_runtime.kernels.reduction import order_of_sum, sums_by_ones
from hloipu_runtime.program.mapping import Sizes
from hloipu_runtime.program.program import Array, Value
from hloipu_runtime.program.steps import ValueId
from hloipu_runtime.simulate.exact.vertices import same_in_each_run, straight_on_tiles
from hloipu_runtime.simulate.functional.loop_writer import MOST_NODES, Written
from hloipu_runtime.simulate.functional.nodes import Node
from hloipu_runtime.simulate.functional.region_products import RegionProducts
from hloipu_runtime.simulate.functional.region_reductions import RegionReductions
from hloipu_runtime.simulate.functional.region_values import Refused, cut_of

MOST_ELEMENTS = 1 << 16
"""In memory, of the parts of an operand on all tiles, in the mean over calls: numpy takes little
longer for larger ones (assumed). What compiling saves is calls, so that a few may be on more."""


class TileRegion(RegionReductions, RegionProducts):
    """Steps one after another; what cannot be told to have the bits of the calls is Refused."""

    def __init__(self) -> None:
        self._table: list[Value] = []
        super().__init__(self._table, [], [])
        self.memories: dict[int, Memory] = {}
        """What the tiles' memories lie in, by the address of the array."""
        self._targets: dict[ValueId, Place] = {}
        """Where values of an expression go."""
        self._calls = 0
        self._elements = 0
        """Of the largest array of each call."""

    @property
    def is_large(self) -> bool:
        """Whether calls are on so much that compiling them gains little."""
        return self._elements > MOST_ELEMENTS * self._calls

    def written(self, memories: list[Array]) -> Written:
        """Return the text, and add to a list what it is given; raises Refused if it is too long."""
        if self.region.usual_nodes > MOST_NODES or self.is_large:
            raise Refused
        memories[:] = (memory.stand_in for memory in self.memories.values())
        names = tuple(f"%memory.{k}" for k in range(len(memories)))
        return Written(self.region, names, tuple(range(len(memories))), (), self.multiplies)

    def compute(
        self, codelet: Codelet, operands: Sequence[Block], results: Sequence[Block],
        types: Sequence[str],
    ) -> None:  # fmt: skip
        """Write a codelet on a class of tiles; `types` are those of all operands and results."""
        self._count_call([x.data for x in (*operands, *results)])
        targets = [
            self.place(x.data, kind)
            for x, kind in zip(results, types[len(operands) :], strict=True)
        ]
        same = same_in_each_run(codelet, operands, results)
        made: list[Held]
        if same is not None:
            made = [self.place(x, types[-1]) for x in same]
        else:
            given = [
                self.place(x.data, kind)
                for x, kind in zip(operands, types[: len(operands)], strict=True)
            ]
            if isinstance(codelet, DynamicSlice | DynamicUpdateSlice):
                self._windowed(codelet, given, targets[0], (*operands, *results), types)
                return
            straight = straight_on_tiles(codelet, operands, results)
            if straight is not None or _is_in_any_order(codelet):
                made = self._made(codelet, given, targets, (*operands, *results), types)
            else:
                made = [self._sum_where_it_lies(codelet, given, operands, results)]
        for k, (held, target) in enumerate(zip(made, targets, strict=True)):
            if isinstance(held, Place) and held.view.shape != target.view.shape:
                made[k] = held.seen(held.view.reshape(target.view.shape, copy=False))
        self.put(made, targets)

    def put(self, made: Sequence[Held], targets: Sequence[Place]) -> None:
        """Write arrays to memories; what lies in one of those is set aside first."""
        sources = list(made)
        for k, (held, target) in enumerate(zip(made, targets, strict=True)):
            if (
                isinstance(held, Place)
                and not _is_same(held, target)
                and any(
                    held.memory is x.memory and np.may_share_memory(held.view, x.view)
                    for x in targets
                )
            ):
                aside = self.region.temporary(held.view.shape, held.type)
                self.region.copy(held, aside)
                sources[k] = aside
        for source, target in zip(sources, targets, strict=True):
            if isinstance(source, Register) or not _is_same(source, target):
                self.region.copy(source, target)

    def _count_call(self, arrays: Sequence[Array]) -> None:
        """Count a call on arrays, of which none is empty."""
        if not all(x.size for x in arrays):
            raise Refused
        self._calls += 1
        self._elements += max(compact(x).size for x in arrays)

    def place(self, array: Array, element_type: str) -> Place:
        """Return an array in a tile memory."""
        kind = storage_type(element_type)
        if not is_known_type(kind):
            raise Refused
        root = _owner(array)
        memory = self.memories.get(id(root))
        if memory is None:
            memory = self.memories[id(root)] = Memory(f"%memory.{len(self.memories)}", 0, root)
        return Place(memory, array, kind)

    def _free_state(self, written: ValueId) -> Place | None:
        return self._targets.get(written)

    def _doubt(self, place: Place, *, is_in_order: bool = False) -> None:
        if place.memory.pointer == "%arena":  # tiles' memories lie as they do
            super()._doubt(place, is_in_order=is_in_order)

    def _made(
        self, codelet: Codelet, given: list[Place], targets: list[Place],
        blocks: Sequence[Block], types: Sequence[str],
    ) -> list[Held]:  # fmt: skip
        operands, results = blocks[: len(given)], blocks[len(given) :]
        axes = len(results[0].grid)
        match codelet:
            case Elementwise():
                labels = _behind(axes, codelet.labels)
                arranged = [
                    self._arranged(x, own, axes + codelet.rank)
                    for x, own in zip(given, labels, strict=True)
                ]
                shape, expression = results[0].data.shape, codelet.expression
                if min(expression.results) < len(given):  # else nobody reads an operand later
                    return self._expression(expression, arranged, shape)
                writes = [self._new_value(kind, shape) for kind in types[len(given) :]]
                self._targets = dict(zip(writes, targets, strict=True))
                return self._expression(expression, arranged, shape, writes)
            case Dot():
                return [self._product_on_tiles(codelet, given, operands, results[0])]
            case Reduce(parts=()):
                node = self._node_of(given, types, len(results), inits=len(results))
                lifted = replace(codelet, dimensions=_shifted(axes, codelet.dimensions))
                return self._reduce(lifted, node)
            case FusedReduce(parts=()):
                node = self._node_of(given, types, len(results), inits=len(results))
                return self._fused(_lifted(codelet, axes), node)
            case Reduce() | FusedReduce():
                return self._pieces(codelet, given, types, axes)
            case RowRegion():
                reduced = {value for _, value, *_ in codelet.reductions}
                if any(
                    x in reduced and not block.data.flags.c_contiguous
                    for x, block in zip(codelet.results, results, strict=True)
                ):
                    raise Refused  # it is added up in the order of where the result lies
                return self._rows(_lifted(codelet, axes), self._node_of(given, types, 0))
        raise Refused

    def _sum_where_it_lies(
        self, codelet: Codelet, given: Sequence[Place], operands: Sequence[Block],
        results: Sequence[Block],
    ) -> Held:  # fmt: skip
        """Add up many elements in the order in which they lie, as `Reduce.on_arrays` does."""
        if not isinstance(codelet, Reduce) or codelet.on_arrays(operands, results) is None:
            raise Refused
        assert codelet.monoid  # reductions by a body are done in any order
        (x, init), axes = given, len(results[0].grid)
        along = _shifted(axes, codelet.dimensions)
        strides = None if x.view.flags.c_contiguous else x.view.strides
        order, axis, back = order_of_sum(x.view.shape, strides, along)
        moved = x.view.transpose(order)
        if axis is None or moved.strides[-1] != moved.itemsize or sums_by_ones(moved, axis):
            raise Refused
        kept = tuple(n for d, n in enumerate(moved.shape) if d != axis)
        target = self.region.temporary(kept, x.type)
        self._fold("add", x.seen(moved), target, axis)
        index: tuple[Any, ...] = (*(0 for _ in init.view.shape), ...)
        first = self.region.one(init.seen(init.view[index]))
        with self.region.each(kept, [target]) as ((at,), access):
            value = self.region.load(x.type, at, access)
            op = "fadd" if x.type in ("f32", "f64") else "add"
            self.region.store(x.type, self.region.op(op, x.type, first, value), at, access)
        return target.seen(target.view.transpose(back))

    def _node_of(
        self, given: list[Place], types: Sequence[str], results: int, *, inits: int = 0
    ) -> Node:
        """Return operands as the values of a node; the last ones are inits of a reduction."""
        reads = []
        for k, (place, kind) in enumerate(zip(given, types, strict=False)):
            if k >= len(given) - inits:
                if place.view.size > 1 and any(place.view.strides):
                    raise Refused  # tiles hold memory of their own, which may differ
                index: tuple[Any, ...] = (*(0 for _ in place.view.shape), ...)
                place = place.seen(place.view[index])
            else:
                place = self.region.row_major(place)
            reads.append(self._new_value(kind, place.view.shape))
            self.held[reads[-1]] = place
        writes = tuple(self._new_value(kind, ()) for kind in types[len(types) - results :])
        return Node(None, "", tuple(reads), writes if results else ())  # type: ignore[arg-type]

    def _new_value(self, kind: str, shape: Sizes) -> ValueId:
        self._table.append(Value(kind, shape))
        return len(self._table) - 1

    def _pieces(
        self, codelet: Reduce | FusedReduce, given: list[Place], types: Sequence[str],
        axes: int,
    ) -> list[Held]:  # fmt: skip
        """Reduce pieces of dimensions, which become dimensions of their own, short last ones apart.

        As the plain path, which computes expressions on the whole before.
        """
        labels = _labels_of(codelet, given, axes)
        cut = dict(zip(_shifted(axes, codelet.dimensions), codelet.parts, strict=False))
        sizes = {
            label: size
            for place, own in zip(given, labels, strict=True)
            for label, size in zip(own, place.view.shape, strict=True)
        }
        runs = [piece_runs(sizes[label], part) for label, part in cut.items()]
        if all(len(own) == 1 for own in runs):
            return self._equal_pieces(codelet, given, types, axes)
        counts = [sum((stop - start) // size for start, stop, size in own) for own in runs]
        targets: list[Place] = []
        for chosen in product(*runs):
            taken = {x: slice(*run[:2]) for x, run in zip(cut, chosen, strict=True)}
            parts = [
                place.seen(cut_of(place.view, [taken.get(x, slice(None)) for x in own]))
                for place, own in zip(given, labels, strict=True)
            ]
            made = self._equal_pieces(codelet, parts, types, axes)
            at = tuple(
                slice(start // part, start // part + (stop - start) // size)
                for (start, stop, size), part in zip(chosen, cut.values(), strict=True)
            )
            for k, held in enumerate(made):
                if not isinstance(held, Place):
                    raise Refused
                if k == len(targets):
                    shape = held.view.shape
                    whole = (*shape[:axes], *counts, *shape[axes + len(cut) :])
                    targets.append(self.region.temporary(whole, held.type))
                into = cut_of(targets[k].view, (*(slice(None),) * axes, *at))
                self.region.copy(held, targets[k].seen(into))
        return list(targets)

    def _equal_pieces(
        self, codelet: Reduce | FusedReduce, given: list[Place], types: Sequence[str],
        axes: int,
    ) -> list[Held]:  # fmt: skip
        """Reduce pieces of one size, or one that is shorter."""
        cut = dict(zip(_shifted(axes, codelet.dimensions), codelet.parts, strict=False))
        labels = _labels_of(codelet, given, axes)
        rank = axes + codelet.rank if isinstance(codelet, FusedReduce) else given[0].view.ndim
        at = [d + sum(c < d for c in cut) for d in range(rank)]
        sizes = [1] * (rank + len(cut))
        seen, told = [], []
        for place, own in zip(given, labels, strict=True):
            place, numbers = self.region.row_major(place), list[int]()
            for label, size in zip(own, place.view.shape, strict=True):
                part = min(size, cut.get(label, size))
                sizes[at[label]] = size // part if label in cut else size
                if label in cut:
                    sizes[at[label] + 1] = part
                numbers += (at[label], at[label] + 1) if label in cut else (at[label],)
            view = place.view.reshape([sizes[d] for d in numbers], copy=False)
            seen.append(place.seen(view))
            told.append(numbers)
        counts = (*range(axes), *(at[d] for d in cut))
        reduced = {at[d] + (d in cut) for d in _shifted(axes, codelet.dimensions)}
        results = (*counts, *(d for d in range(len(sizes)) if d not in reduced.union(counts)))
        order = _order_of_sums(sizes, counts)
        along = tuple(k for k, d in enumerate(order) if d in reduced)
        if isinstance(codelet, Reduce):
            moved = [x.seen(x.view.transpose(order)) for x in seen]
            kind = codelet.element_types
            made: Sequence[Held] = (
                self._pairwise(codelet.body, self._slabs(moved, along))
                if codelet.body is not None
                else [
                    self._monoid(codelet.monoid, kind[k], x, along, self._identity(codelet, k))
                    for k, x in enumerate(moved)
                ]
            )
        else:
            fused = replace(
                codelet,
                labels=tuple(tuple(order.index(d) for d in numbers) for numbers in told),
                rank=len(order),
                dimensions=along,
                parts=(),
            )
            region = as_region(fused, ("0",) * len(codelet.element_types))
            node = self._node_of(seen, types, 0)
            shapes = [x.view.shape for x in seen]
            inits = [self._identity(codelet, k) for k in range(len(codelet.element_types))]
            made = self._steps(region, node.reads, shapes, inits, codelet.element_types)
        kept = [d for d in order if d not in reduced]
        back = [kept.index(d) for d in results]
        shape = [sizes[d] for d in kept]
        return [
            x.seen(x.view.reshape(shape, copy=False).transpose(back)) if isinstance(x, Place) else x
            for x in made
        ]

    def _identity(self, codelet: Reduce | FusedReduce, result: int) -> str:
        kind = codelet.element_types[result]
        start = np.asarray(identity(codelet.monoid, storage_dtype(kind)), storage_dtype(kind))
        return self.region.one(self.region.constant(start, storage_type(kind)))

    def _windowed(
        self, codelet: DynamicSlice | DynamicUpdateSlice, given: list[Place], target: Place,
        blocks: Sequence[Block], types: Sequence[str],
    ) -> None:  # fmt: skip
        """Copy a window where all tiles together have it as one."""
        updates = isinstance(codelet, DynamicUpdateSlice)
        count = 2 if updates else 1
        blocks, given, small_at = list(blocks), list(given), 1 if updates else len(blocks) - 1
        small = blocks[small_at] = widened(blocks[small_at], codelet.dropped)
        if updates:
            given[1] = given[1].seen(given[1].view.reshape(small.data.shape, copy=False))
        else:
            target = target.seen(target.view.reshape(small.data.shape, copy=False))
        large = blocks[0]
        first, second = (small, large) if updates else (large, small)
        wholes = [
            whole_of_parts(large, shared=not updates), whole_of_parts(small, shared=updates),
            whole_of_parts(blocks[-1]),
        ]  # fmt: skip
        see_large, see_small, see_result = wholes
        if see_large is None or see_small is None or see_result is None:
            raise Refused
        if not all(follows(first, d, second, d) for d in range(len(large.whole))):
            raise Refused
        starts = self._node_of(given[count:], types[count:], 0, inits=len(given) - count).reads
        result = target.seen(see_result(target.view))
        data = given[0].seen(see_large(given[0].view))
        if not updates:
            self.put([self._window(data, small.whole, starts)], [result])
            return
        if not same_memory(large.data, blocks[-1].data):
            self.put([data], [result])
        update = given[1].seen(see_small(given[1].view))
        self.put([update], [self._window(result, small.whole, starts)])

    def _product_on_tiles(
        self, dot: Dot, given: Sequence[Place], operands: Sequence[Block], result: Block
    ) -> Held:
        """Multiply as `Dot.straight_on_grid` does."""
        lhs, rhs = operands
        taken = pair(lhs, rhs)
        folded = folded_dot(dot, taken.varies, len(lhs.part), len(rhs.part))
        dims, a, b = folded.dimensions, taken.lhs, taken.rhs
        if dot.part:
            left, right = dims.lhs_contracting[0], dims.rhs_contracting[0]
            (run,) = piece_runs(a.shape[left], dot.part)
            a, b, dims = split(a, left, *run), split(b, right, *run), cut_dimensions(dims)
        product = self._arranged_product(given[0].seen(a), given[1].seen(b), dims)
        product = self._rounded(product, dot.element_type)
        places: tuple[Any, ...] = tuple(slice(None) if any(both) else None for both in taken.varies)
        view = product.view.transpose(folded.order)[(*places, ...)]
        return product.seen(np.broadcast_to(view, result.data.shape))


def _labels_of(
    codelet: Reduce | FusedReduce, given: Sequence[Place], axes: int
) -> Sequence[Sequence[int]]:
    """Return the dimension of the space, grid axes in front, that each of an operand's follows."""
    if isinstance(codelet, FusedReduce):
        return _behind(axes, codelet.labels)
    return (tuple(range(given[0].view.ndim)),) * len(given)


def _is_in_any_order(codelet: Codelet) -> bool:
    """Whether it does the same however tiles' parts lie: its bits are those of `run` anyway."""
    return isinstance(codelet, Elementwise) or (isinstance(codelet, Reduce) and not codelet.monoid)


def _is_same(place: Place, other: Place) -> bool:
    return place.memory is other.memory and same_memory(place.view, other.view)


def _order_of_sums(sizes: Sequence[int], first: Sequence[int]) -> list[int]:
    """Return the order in which `reduce_monoid` goes through dimensions of a row-major array.

    `first` are those that are put in front before that.
    """
    moved = [*first, *(d for d in range(len(sizes)) if d not in first)]
    stand_in = np.empty(sizes, np.int8).transpose(moved)
    if not stand_in.flags.c_contiguous:
        order = sorted(range(len(moved)), key=lambda k: -stand_in.strides[k])
        return [moved[k] for k in order]
    return moved


def _shifted(axes: int, dimensions: Sequence[int]) -> Sizes:
    return tuple(axes + d for d in dimensions)


def _behind(axes: int, labels: Sequence[Sequence[int]]) -> tuple[Sizes, ...]:
    return tuple((*range(axes), *_shifted(axes, own)) for own in labels)


def _lifted(codelet: Any, axes: int) -> Any:
    """Return a fused reduction or a region of rows with grid axes in front."""
    return replace(
        codelet,
        labels=_behind(axes, codelet.labels),
        rank=axes + codelet.rank,
        dimensions=_shifted(axes, codelet.dimensions),
    )


def _owner(array: Array) -> Array:
    """Return the array in whose memory another one lies."""
    owner: Any = array
    while True:
        base = getattr(owner, "base", None)
        if base is None:
            break
        owner = base
    if not isinstance(owner, np.ndarray):
        raise Refused
    return owner
