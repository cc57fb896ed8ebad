"""Reduce: monoids and regions over dimensions, whole or with some dimensions cut into pieces."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from hloipu_runtime.codelets.core.codelet import ALL, Codelet, Index, Indexing, codelet
from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.codelets.core.grids import (
    are_stored_once,
    moved,
    one_by_one,
    one_of,
    piece_runs,
    shared_axes,
    split,
    spread,
)
from hloipu_runtime.codelets.core.straight import Call, Straight, one_call
from hloipu_runtime.codelets.core.tensors import Array, Blocks, Bound, OnArrays, Sizes, Tensors
from hloipu_runtime.codelets.costs.reduce import (
    Reducing,
    convolution_summing_work,
    reduce_room_bytes,
    reduce_work,
)
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.kernels.core.monoids import UFUNCS, finish, identity
from hloipu_runtime.kernels.core.quiet import quietly
from hloipu_runtime.kernels.core.rounding import is_narrow, round_to
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.machine.costs import TileWork
from hloipu_runtime.machine.model import Machine

if TYPE_CHECKING:
    from hloipu_runtime.codelets.core.call_writer import CallWriter

_NOWHERE = (None,)


@codelet
class Reduce(Codelet):
    """Reduces operands together over dimensions; operands are n arrays, then n init scalars.

    With `parts` the first of the dimensions are cut into pieces of so many elements each: there
    are no init scalars, and results have leading dimensions that count the pieces. A reduce over
    those dimensions, with the init scalars, combines them.
    """

    name: ClassVar[str] = "reduce"
    is_compiled: ClassVar[bool] = True
    dimensions: tuple[int, ...]
    monoid: str
    """Its name, for each operand alone; "": `body` says how."""
    body: Expression | None
    """The reducer on scalars: accumulators, then values; None where a monoid does it."""
    element_types: tuple[str, ...]
    """Of the results."""
    parts: tuple[int, ...] = ()
    associative: bool | None = None
    """Whether a body may be applied pairwise; None: decided by the count."""
    of_convolution: bool = False
    """Whether it adds the partial sums of a convolution along the leading dimensions."""

    @property
    def code_kind(self) -> str:
        """That of its monoid."""
        return f"{self.name}-{self.monoid}"

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Return a label for each dimension of the results; pieces are a label too."""
        arrays = operands if self.parts else operands[: len(operands) // 2]
        pieces = len(self.parts)
        dimensions = [ALL] * len(operands[0].shape)
        kept = [d for d in range(len(dimensions)) if d not in self.dimensions]
        for position, d in enumerate(kept):
            dimensions[d] = Index(pieces + position)
        for label, part in enumerate(self.parts):
            dimensions[self.dimensions[label]] = Index(label, part, 0, part)
        shape = results[0].shape
        labels = tuple(Index(label) for label in range(len(shape)))
        inits: tuple[tuple[Index, ...], ...] = () if self.parts else ((),) * len(arrays)
        return Indexing(
            shape, (*((tuple(dimensions),) * len(arrays)), *inits), (labels,) * len(results)
        )

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Reduce; what tiles share is reduced once."""
        places = [None] * len(results)
        return list(self._on_grid(operands, results)([x.data for x in operands], places))

    def bound(self, operands: Blocks, results: Blocks) -> Bound:
        """Return `run`; of small whole arrays numpy's own reduction, where that is the same."""
        if results[0].grid and all(block.array is not None for block in operands):
            return self._on_grid(operands, results)
        if self.body is not None and not (results[0].grid or self.parts):
            return self._by_numpy(self._general(operands, results), operands, 0)
        short = None if results[0].grid else self._short(operands, results)
        if short is None:
            return self._general(operands, results)
        return lambda arrays, outs: [short(*arrays)]

    def _general(self, operands: Blocks, results: Blocks) -> Bound:
        """Return `run`; of whole arrays in one go what it calls."""
        if results[0].grid or self.parts:
            return super().bound(operands, results)
        count = len(results)
        from hloipu_runtime.kernels.reduction import reduce

        def run(arrays: Sequence[Array], outs: Sequence[Array | None]) -> Sequence[Array]:
            how: Any = self.monoid or self._region
            made = reduce(
                arrays[:count], arrays[count:], self.dimensions, how, self.element_types,
                associative=self.associative, out=outs[0],
            )  # fmt: skip
            return [np.asarray(x) for x in made]

        return run

    def _by_numpy(self, by_body: Bound, operands: Blocks, rank: int) -> Bound:
        """Return `run`, behind `rank` grid axes, or numpy's own search for an extremum."""
        if len(self.dimensions) != 1 or self.body is None or 0 in operands[0].part:
            return by_body
        largest = self._keeps_largest
        if largest is None:
            return by_body
        from hloipu_runtime.codelets.ops.arg_reduction import by_places

        return by_places(by_body, rank + self.dimensions[0], largest=largest)

    def _on_grid(self, operands: Blocks, results: Blocks) -> Bound:
        """Return `run` on arrays that lie as those of the blocks do."""
        count = len(results)
        cut = shared_axes(operands[:count])
        grid = operands[0].grid
        rank = len(grid)
        computed = tuple(1 if x != slice(None) else n for x, n in zip(cut, grid, strict=True))
        kept: tuple[Any, ...] = (*cut, ...)
        dimensions = tuple(rank + d for d in self.dimensions)
        scalars = [one_of(block) for block in operands[count:]]
        if self.parts:
            seen = self._seen_in_pieces((*computed, *operands[0].part), rank)
            if seen is None:
                return lambda arrays, outs: [
                    spread(x, grid, computed) for x in self._pieces([a[kept] for a in arrays], rank)
                ]
            return lambda arrays, outs: [
                spread(x, grid, computed)
                for x in self._equal_pieces([seen(a[kept]) for a in arrays], rank)
            ]
        how: Any = self.monoid or self._region
        in_place = computed == tuple(grid)

        from hloipu_runtime.kernels.reduction import reduce

        def run(arrays: Sequence[Array], outs: Sequence[Array | None]) -> Sequence[Array]:
            inits: Any = [one(x) for one, x in zip(scalars, arrays[count:], strict=True)]
            if any(init is None for init in inits):
                blocks = [b._replace(array=x) for b, x in zip(operands, arrays, strict=True)]
                dtypes = [x.dtype for x in arrays[:count]]
                return one_by_one(self.run, blocks, results, dtypes)
            reduced = reduce(
                [x[kept] for x in arrays[:count]], inits, dimensions, how, self.element_types,
                associative=self.associative, out=outs[0] if in_place else None,
            )  # fmt: skip
            return [spread(x, grid, computed) for x in reduced]

        return run if self.body is None else self._by_numpy(run, operands, rank)

    def on_arrays(self, operands: Blocks, results: Blocks) -> OnArrays | None:
        """Return sums of many elements of one operand, how it lies decided once; and searches."""
        if self.body is not None:
            return self._search_on_arrays(operands, results)
        from hloipu_runtime.codelets.core.call_writer import MOST_ELEMENTS

        if self.monoid != "add" or self.parts or len(results) != 1 or _needs_finishing(self._type):
            return None
        (x, init), (result,) = operands, results
        if x.data.size <= MOST_ELEMENTS or not are_stored_once((init,)):
            return None
        if any(axis != slice(None) for axis in shared_axes((x,))) or not result.part:
            return None
        first: tuple[Any, ...] = (*(0 for _ in init.data.shape), ...)
        start = init.data[first]
        arrays = [x.data, start, result.data]
        if any(np.may_share_memory(result.data, read) for read in arrays[:2]):
            return None
        from hloipu_runtime.kernels.reduction import monoid_reduction

        along = tuple(len(x.grid) + d for d in self.dimensions)
        strides = None if x.data.flags.c_contiguous else x.data.strides
        reduced = monoid_reduction(x.data.shape, strides, x.data.dtype, "add", along, True)
        add = np.add
        return OnArrays(
            lambda: add(arrays[1], reduced(arrays[0]), out=arrays[2]), arrays, (0, 1, 2)
        )

    def _search_on_arrays(self, operands: Blocks, results: Blocks) -> OnArrays | None:
        """Return the search for an extremum in arrays that stay where they are."""
        largest = self._keeps_largest
        if largest is None or len(self.dimensions) != 1 or 0 in operands[0].data.shape:
            return None
        if not are_stored_once(operands[2:3]):
            return None
        from hloipu_runtime.codelets.ops.arg_reduction import search_on_arrays

        axis, piece = len(results[0].grid) + self.dimensions[0], self.parts[0] if self.parts else 0
        general = self.bound(operands, results)
        run = search_on_arrays(operands, results, axis, piece, general, largest=largest)
        return OnArrays(run, [], ())

    def ignores(self, unused: Sequence[Sequence[bool]]) -> bool:
        """Let a monoid make results that nobody reads, but take in no such elements."""
        return bool(self.monoid) and not any(unused[0][d] for d in self.dimensions)

    def straight(self, operands: Blocks, results: Blocks) -> Straight | None:
        """Return the reduction of one array as one call."""
        if self.parts or len(results) != 1:
            return None
        summed = self._short_sum(operands[0].part, results[0].part)
        if summed is not None:
            return summed
        function = self._short(operands, results)
        if function is None:
            general = self._general(operands, results)
            function = lambda *arrays: general(arrays, _NOWHERE)[0]  # noqa: E731
        many = prod(operands[0].part[d] for d in self.dimensions) > 1
        is_fresh = self.monoid in ("add", "multiply") or (bool(self.monoid) and many)
        return one_call(function, 2, results[0].part, is_fresh=is_fresh)

    def straight_on_grid(self, operands: Blocks, results: Blocks) -> Straight | None:
        """Return reductions by a monoid as calls, of small parts."""
        from hloipu_runtime.codelets.core.call_writer import MOST_ELEMENTS, CallWriter

        count, grid = len(results), results[0].grid
        rank = len(operands[0].part)
        shapes = [grid + block.part for block in operands]
        if not (self.monoid and self.dimensions and 0 < prod(shapes[0]) <= MOST_ELEMENTS):
            return None
        if not are_stored_once(operands[count:]):
            return None
        writer = CallWriter(shapes)
        rows = [writer.arranged(k, range(rank), rank, len(grid)) for k in range(count)]
        return writer.straight(self.written(writer, rows, count, results))

    def written(
        self, writer: "CallWriter", rows: Sequence[int], first_init: int, results: Blocks
    ) -> list[int]:
        """Write reductions of rows by the monoid, from operands on that are the same on all tiles.

        Returns the numbers of the results.
        """
        grid = results[0].grid
        along = tuple(len(grid) + d for d in self.dimensions)
        numbers = []
        for n, (row, block) in enumerate(zip(rows, results, strict=True)):
            if self.parts:
                alone = replace(self, element_types=self.element_types[n : n + 1])
                shape = writer.shapes[row]
                pieces = alone._pieces_of_one(shape, len(grid))
                prepare = alone._as_numpy_does(shape, len(grid))
                numbers.append(
                    writer.computed(pieces, (row,), grid + block.part, on_arrays=prepare)
                )
                continue
            init = writer.first(first_init + n)
            number = writer.reduction(self.monoid, self.element_types[n], row, init, along)
            numbers.append(writer.reshaped(number, grid + block.part))
        return numbers

    def _pieces_of_one(self, shape: Sizes, rank: int) -> Callable[[Array], Array]:
        """Return what the only operand makes, row-major, piece by piece, behind grid axes."""
        seen, dtype, kind = self._seen_in_pieces(shape, rank), storage_dtype(self._type), self._type
        if seen is None:
            return lambda x: self._pieces([x], rank)[0]
        like = seen(np.empty(shape, dtype))
        along = tuple(rank + len(self.parts) + d for d in self.dimensions)
        from hloipu_runtime.kernels.reduction import monoid_reduction

        strides = None if like.flags.c_contiguous else like.strides
        reduced = monoid_reduction(like.shape, strides, dtype, self.monoid, along, False)
        if not _needs_finishing(kind):
            return lambda x: reduced(seen(x))
        return lambda x: finish(reduced(seen(x)), kind)

    def _as_numpy_does(self, shape: Sizes, rank: int) -> Any:
        """Return `Call.on_arrays` of `_pieces_of_one`, where numpy takes the same order, or any."""
        from hloipu_runtime.codelets.core.call_writer import numbers_on_arrays, pieces_on_arrays
        from hloipu_runtime.kernels.reduction import is_plain

        if len(self.dimensions) != 1:
            return None
        (d,), kind = self.dimensions, ELEMENT_TYPES[self._type]
        if kind.is_integer and kind.bits >= 8:
            starts = np.arange(0, shape[rank + d], self.parts[0])
            reduce = UFUNCS[self.monoid].reduceat
            prepare = partial(numbers_on_arrays, reduce, starts, rank + d, rank)
            return prepare if shape[rank + d] else None
        seen = self._seen_in_pieces(shape, rank)
        if seen is None or self.monoid != "add" or self._type not in ("f32", "f64"):
            return None
        is_same = is_plain(seen(np.empty(shape)).shape, rank + 1 + d)
        return partial(pieces_on_arrays, seen, rank + 1 + d) if is_same else None

    def _seen_in_pieces(self, shape: Sizes, rank: int) -> Callable[[Array], Array] | None:
        """Return a view of arrays of a shape in which counts of pieces stand behind grid axes.

        None where a last piece is shorter, or there are none.
        """
        cut = dict(zip((rank + d for d in self.dimensions), self.parts, strict=False))
        if any(not shape[d] or (shape[d] > n and shape[d] % n) for d, n in cut.items()):
            return None
        sizes: list[int] = []
        last, count_of = [], {}
        for d, size in enumerate(shape):
            part = min(size, cut.get(d, size))
            if d in cut:
                count_of[d] = len(sizes)
                sizes.append(size // part)
            last.append(len(sizes))
            sizes.append(part)
        order = (*last[:rank], *(count_of[d] for d in cut), *last[rank:])
        return lambda x: x.reshape(sizes).transpose(order)

    def _short_sum(self, shape: Sizes, result: Sizes) -> Straight | None:
        """Return a sum of small arrays along one axis as numpy's own, and the init added to it."""
        axis = self._only_axis(flat=False)
        from hloipu_runtime.kernels.reduction import is_short

        if axis is None or self.monoid != "add" or not result or not is_short(shape, axis):
            return None
        kind, dtype = self._type, storage_dtype(self._type)
        calls = (
            Call(np.add.reduce, (0, 2), 3, result, None,
                 is_fresh=True, takes_out=False, in_place=False),
            Call(np.add, (1, 3), 4, result, dtype, is_fresh=True, takes_out=True, in_place=True),
        )  # fmt: skip
        if not is_narrow(kind):
            return Straight({2: axis}, calls, (4,))
        rounding = Call(lambda x: round_to(x, kind), (4,), 5, result, None,
                        is_fresh=True, takes_out=False, in_place=False)  # fmt: skip
        return Straight({2: axis}, (*calls, rounding), (5,))

    def _short(self, operands: Blocks, results: Blocks) -> Callable[..., Array] | None:
        """Return the reduction of a small whole array, with its init, by numpy's own.

        Which of two zeros wins an extremum numpy leaves open: where one does, `run` decides.
        """
        shape = operands[0].part
        flat = len(self.dimensions) == len(shape) > 1
        shape = (prod(shape),) if flat else shape
        axis = self._only_axis(flat)
        from hloipu_runtime.kernels.reduction import is_short, rows_reduced

        if axis is None or not is_short(shape, axis):
            return None
        general = self._general(operands, results)
        monoid, sums, count_nonzero = UFUNCS[self.monoid], self.monoid == "add", np.count_nonzero
        start = float(identity(self.monoid, storage_dtype(self._type)))
        by_rows = axis == len(shape) - 1 and not sums

        def run(x: Array, init: Array) -> Array:
            if flat:
                if not x.flags.c_contiguous:
                    return general((x, init), _NOWHERE)[0]
                x = x.reshape(shape)
            reduced = rows_reduced(x, monoid) if by_rows else monoid.reduce(x, axis)
            if sums:
                return finish(np.asarray(monoid(init, reduced)), self._type)
            if init.item() != start or count_nonzero(reduced) != reduced.size:
                return general((x, init), _NOWHERE)[0]
            return np.asarray(reduced)

        return run

    def _pieces(self, arrays: list[Array], rank: int, cut: int = 0) -> list[Array]:
        """Reduce piece by piece, short last ones apart; their counts come right after the grid."""
        if cut == len(self.parts):
            return self._equal_pieces(arrays, rank)
        dim = rank + cut + self.dimensions[cut]
        found = [
            self._pieces([moved(split(x, dim, *run), dim, rank + cut) for x in arrays],
                         rank, cut + 1)
            for run in piece_runs(arrays[0].shape[dim], self.parts[cut])
        ]  # fmt: skip
        if len(found) == 1:
            return found[0]
        return [np.concatenate(parts, axis=rank + cut) for parts in zip(*found, strict=True)]

    def _equal_pieces(self, pieces: list[Array], rank: int) -> list[Array]:
        """Reduce pieces of one size, whose counts stand before all dimensions."""
        dimensions = [rank + len(self.parts) + d for d in self.dimensions]
        if self.monoid:
            from hloipu_runtime.kernels.reduction import reduce_monoid

            return [
                finish(np.asarray(reduce_monoid(x, self.monoid, dimensions)), kind)
                for x, kind in zip(pieces, self.element_types, strict=True)
            ]
        largest = self._keeps_largest
        if largest is not None and len(dimensions) == 1 and 0 not in pieces[0].shape:
            from hloipu_runtime.codelets.ops.arg_reduction import best_of_places

            values, places = pieces
            best = best_of_places(values, places, dimensions[0], largest=largest)
            if best is not None:
                return best
        return _fold(pieces, dimensions, self._region)

    @property
    def _type(self) -> str:
        return self.element_types[0]

    def _only_axis(self, flat: bool) -> int | None:
        """Return the axis of a plain reduction of floats; of one over all dimensions it is 0."""
        if self.parts or not (self._type in ("f32", "f64") or is_narrow(self._type)):
            return None
        if len(self.element_types) > 1 or self.monoid not in ("add", "minimum", "maximum"):
            return None
        if flat:
            return 0
        return self.dimensions[0] if len(self.dimensions) == 1 else None

    @cached_property
    def _keeps_largest(self) -> bool | None:
        """Whether a body keeps the largest value and its place, or the smallest; None: neither."""
        from hloipu_runtime.codelets.ops.arg_reduction import keeps_largest

        return None if self.body is None else keeps_largest(self.body)

    @property
    def _region(self) -> Callable[..., list[Array]]:
        assert self.body is not None
        from hloipu_runtime.codelets.core.expression import region

        return region(self.body)

    def combined_with(
        self, combine: Codelet, others: Sequence[Array | None]
    ) -> tuple[Codelet, int] | None:
        """Return the reduction in one go, where pieces are combined by the same reducer."""
        if not self.parts or not isinstance(combine, Reduce) or combine.parts:
            return None
        pieces = len(self.parts)
        if not {*range(pieces)} <= {*combine.dimensions}:
            return None
        if (combine.monoid, combine.body) != (self.monoid, self.body):
            return None
        if self.of_convolution and is_narrow(self._type):
            return None  # each partial sum is rounded
        # Dimensions of the partials count pieces, then come those that this one kept, in order.
        last = len(self.dimensions) + max(combine.dimensions)
        kept = [d for d in range(last + 1) if d not in self.dimensions]
        more = tuple(kept[d - pieces] for d in combine.dimensions if d >= pieces)
        both = tuple(sorted((*self.dimensions, *more)))
        types = combine.element_types
        return replace(self, dimensions=both, parts=(), element_types=types), len(others)

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Return the work of reducing one tile's parts."""
        arrays = operands[: len(results)]
        if self.of_convolution:
            return convolution_summing_work(machine, arrays[0], results[0])
        return reduce_work(
            Reducing(machine, arrays, results, self.dimensions, self.monoid, self.body)
        )

    def room_bytes(self, machine: Machine, operands: Tensors, results: Tensors) -> int:
        """Return the room for what the workers leave of each other's outputs."""
        if self.of_convolution:
            return 0
        return reduce_room_bytes(
            Reducing(machine, operands, results, self.dimensions, self.monoid, self.body)
        )


def _needs_finishing(kind: str) -> bool:
    """Whether what a reduction makes is not yet of its type."""
    return is_narrow(kind) or (ELEMENT_TYPES[kind].is_integer and ELEMENT_TYPES[kind].bits < 8)


def _fold(
    arrays: Sequence[Array], dimensions: Sequence[int], body: Callable[..., list[Array]]
) -> list[Array]:
    """Fold over dimensions pairwise, in row-major order, without init values."""
    wanted = sorted(dimensions)
    kept = [d for d in range(arrays[0].ndim) if d not in wanted]
    shape = [arrays[0].shape[d] for d in kept]
    count = prod(arrays[0].shape[d] for d in wanted)
    slabs = [x.transpose((*wanted, *kept)).reshape(count, *shape) for x in arrays]
    if count == 0 or 0 in shape:
        return [np.zeros(shape, x.dtype) for x in slabs]
    with quietly():
        from hloipu_runtime.kernels.reduction_regions import fold_pairwise

        return [np.asarray(x) for x in fold_pairwise(slabs, body)]
