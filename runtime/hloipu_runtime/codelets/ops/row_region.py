"""Row regions: elementwise ops, reductions along the row, and what follows from them.

Softmax, layer and batch norms and their gradients are of this form. A row, all elements that share
the indices of the dimensions that are not reduced, is whole on one tile.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from hloipu_runtime.codelets.core.arranging import arranged, sizes_of
from hloipu_runtime.codelets.core.codelet import ALL, Codelet, Index, Indexing, codelet
from hloipu_runtime.codelets.core.constants import value_of
from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.codelets.core.straight import Straight, calls_in_buffers, run_calls
from hloipu_runtime.codelets.core.tensors import Array, Blocks, Bound, Sizes, Tensors
from hloipu_runtime.codelets.costs.expression_loops import expression_bytes
from hloipu_runtime.codelets.costs.rows import RowWork, row_work
from hloipu_runtime.codelets.ops.row_values import Reduction, RowValues, refused, row_values
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.kernels.core.blocks import BLOCK_ELEMENTS, aligned_empty, put
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.costs import TileWork
from hloipu_runtime.machine.model import Machine

if TYPE_CHECKING:
    from hloipu_runtime.codelets.core.call_writer import CallWriter
    from hloipu_runtime.codelets.core.expression import Plan


FEWEST_ELEMENTS = 1 << 14
"""From here on kernels of rows, whose call takes some 15 us, beat calls of numpy."""


@codelet
class RowRegion(Codelet):
    """Computes steps one after the other, each an expression, then reductions of values along rows.

    Numbers name values: operands come first, then of each step the expression's results and the
    reductions'. Dimension d of operand k follows dimension `labels[k][d]` of a space of `rank`
    dimensions, of which `dimensions` are reduced; a reduction's value has none of those. Each tile
    needs its rows whole.
    """

    name: ClassVar[str] = "row_region"
    is_compiled: ClassVar[bool] = True
    labels: tuple[tuple[int, ...], ...]
    rank: int
    dimensions: tuple[int, ...]
    operand_types: tuple[str, ...]
    expressions: tuple[Expression, ...]
    sources: tuple[tuple[int, ...], ...]
    """Of each expression: the values that are its operands."""
    reductions: tuple[tuple[int, int, str, str], ...]
    """Step, value, monoid, and the exact text of what it starts from; in the order of steps."""
    results: tuple[int, ...]

    @property
    def code_bytes(self) -> int:  # type: ignore[override]  # nobody writes it
        """Of code made of the expressions, a loop for each, and the reductions; assumed."""
        return expression_bytes(
            self.expressions,
            len(self.labels) + len(self.results),
            loops=len(self.expressions),
            reductions=len(self.reductions),
        )

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Return a label for each dimension that is not reduced."""
        kept = self._kept
        sizes = sizes_of(self.labels, [tensor.shape for tensor in operands], self.rank)
        place = {d: Index(n) for n, d in enumerate(kept)}
        return Indexing(
            tuple(sizes[d] for d in kept),
            tuple(tuple(place.get(d, ALL) for d in labels) for labels in self.labels),
            tuple(
                tuple(
                    place.get(d, ALL)
                    for d in range(self.rank)
                    if self.is_full(number) or d in place
                )
                for number in self.results
            ),
        )

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Compute; a few rows at a time where rows are what lies side by side."""
        places = [block.array for block in results]
        return list(self._by_cuts(operands, results)([block.data for block in operands], places))

    def bound(self, operands: Blocks, results: Blocks) -> Bound:
        """Return `run`, as calls where there are few elements, or a few rows at a time."""
        straight = self.straight(operands, results)
        if straight is not None:
            return run_calls(straight, len(operands))
        plain = self._row_by_row(operands, results) or self._by_cuts(operands, results)
        return self._by_kernels(operands, results, plain) or plain

    def _by_kernels(self, operands: Blocks, results: Blocks, plain: Bound) -> Bound | None:
        """Return the steps by compiled kernels as soon as these pay, and by `plain` before."""
        from hloipu_runtime.kernels.native.settings import is_there, settings

        grid = results[0].grid
        axes = len(grid)
        whole = grid + sizes_of(self.labels, [block.part for block in operands], self.rank)
        along = tuple(axes + d for d in self.dimensions)
        kept, elements = len(whole) - len(along), prod(whole)
        if elements < FEWEST_ELEMENTS or not is_there():
            return None
        from hloipu_runtime.codelets.ops.row_native import (
            Steps,
            are_kernels,
            as_rows,
            native_rows,
            row_form,
        )

        if not are_kernels(whole, along):
            return None
        shapes = [
            arranged(
                np.broadcast_to(np.zeros(()), grid + block.part), labels, self.rank, axes
            ).shape
            for block, labels in zip(operands, self.labels, strict=True)
        ]
        long = frozenset(d for d, n in enumerate(whole) if n > 1)
        steps = Steps(
            self.operand_types,
            tuple(frozenset(d for d, n in enumerate(shape) if n > 1) for shape in shapes),
            long - set(along),
            long & set(along),
            tuple(zip(self.expressions, self.sources, strict=True)),
            self._reductions,
            self.results,
            tuple(map(self.is_full, self.results)),
        )
        native, rows = native_rows(steps), prod(whole[:kept])
        lying = [
            (
                row_form(shape, whole, kept, is_full=is_full)
                if labels == (*sorted(labels),)
                else None,
                labels,
                is_full,
            )
            for shape, labels, is_full in zip(shapes, self.labels, steps.is_full, strict=True)
        ]
        forms = [self._form(number, whole, along) for number in self.results]
        shaped = [block.grid + block.part for block in results]

        def run(arrays: Sequence[Array], outs: Sequence[Array | None]) -> Sequence[Array]:
            if not settings().compiles or not native.is_ready(elements):
                return plain(arrays, outs)
            given: list[Array] = []
            for x, (form, labels, is_full) in zip(arrays, lying, strict=True):
                if form is not None and x.flags.c_contiguous:
                    given.append(x.reshape(form))
                    continue
                laid = as_rows(arranged(x, labels, self.rank, axes), whole, kept, is_full=is_full)
                if laid is None:
                    return plain(arrays, outs)
                given.append(laid)
            outs = [x if x is not None and x.flags.c_contiguous else None for x in outs]
            wholes = _places(outs, forms, whole)
            native.run(given, [x.reshape(rows, -1) for x in wholes], rows)
            return [x.reshape(shape) for x, shape in zip(wholes, shaped, strict=True)]

        return run

    def straight(self, operands: Blocks, results: Blocks) -> Straight | None:
        """Return the steps as calls, unless rows are computed a few at a time."""
        grid = results[0].grid
        axes = len(grid)
        whole = grid + sizes_of(self.labels, [block.part for block in operands], self.rank)
        from hloipu_runtime.codelets.core.call_writer import MOST_ELEMENTS, CallWriter

        if not 0 < prod(whole) <= MOST_ELEMENTS:
            return None
        writer = CallWriter([grid + block.part for block in operands])
        values = [writer.arranged(k, x, self.rank, axes) for k, x in enumerate(self.labels)]
        written = self._written(writer, values, whole)
        if written is None:
            return None
        shapes = [grid + block.part for block in results]
        return writer.straight([writer.reshaped(*x) for x in zip(written, shapes, strict=True)])

    straight_on_grid = straight

    def _written(self, writer: "CallWriter", values: list[int], whole: Sizes) -> list[int] | None:
        """Write all steps on some rows; return the results, reduced dimensions with size 1."""
        along = tuple(len(whole) - self.rank + d for d in self.dimensions)
        single = tuple(1 if d in along else n for d, n in enumerate(whole))
        waiting = list(self._reductions)
        for step, (expression, sources) in enumerate(
            zip(self.expressions, self.sources, strict=True)
        ):
            numbers = writer.expression(expression, [values[number] for number in sources])
            if numbers is None:
                return None
            values += numbers
            while waiting and waiting[0].step == step:
                value, monoid, init = waiting.pop(0)[1:]
                kind = self._types[value]
                row = writer.spread(values[value], whole)
                start = writer.constant(value_of(init, kind))
                values.append(writer.reduction(monoid, kind, row, start, along))
        return [
            writer.spread(values[number], whole if self.is_full(number) else single)
            for number in self.results
        ]

    def _row_by_row(self, operands: Blocks, results: Blocks) -> Bound | None:
        """Return the steps as calls, on a few rows after the other; None where many lie apart."""
        from hloipu_runtime.codelets.core.call_writer import CallWriter

        grid = results[0].grid
        axes = len(grid)
        whole = grid + sizes_of(self.labels, [block.part for block in operands], self.rank)
        along = tuple(axes + d for d in self.dimensions)
        cuts = list(self._cuts(whole, along))
        if len(cuts) == 1 and prod(whole) > BLOCK_ELEMENTS:
            return None
        shapes = [
            arranged(
                np.broadcast_to(np.zeros(()), grid + block.part), labels, self.rank, axes
            ).shape
            for block, labels in zip(operands, self.labels, strict=True)
        ]
        known: dict[Sizes, Callable[..., list[Array]]] = {}
        for cut in cuts:
            rows = tuple(part.stop - part.start for part in cut)
            if rows not in known:
                parts = [
                    tuple(1 if n == 1 else size for n, size in zip(shape, rows, strict=True))
                    for shape in shapes
                ]
                writer = CallWriter(parts, in_cache=True)
                written = self._written(writer, list(range(len(parts))), rows)
                if written is None:
                    return None
                known[rows] = calls_in_buffers(writer.straight(written), len(parts))
        forms = [self._form(number, whole, along) for number in self.results]
        functions = [(known[tuple(part.stop - part.start for part in cut)], cut) for cut in cuts]

        def run(arrays: Sequence[Array], outs: Sequence[Array | None]) -> list[Array]:
            given = [
                arranged(x, labels, self.rank, axes)
                for x, labels in zip(arrays, self.labels, strict=True)
            ]
            wholes = _places(outs, forms, whole)
            for function, cut in functions:
                targets = [_part_of(x, cut) for x in wholes]
                put(targets, function([_part_of(x, cut) for x in given], targets))
            return self._reshaped(wholes, results)

        return run

    def _by_cuts(self, operands: Blocks, results: Blocks) -> Bound:
        """Return `run` on arrays of these sizes."""
        grid = results[0].grid
        axes = len(grid)
        whole = grid + sizes_of(self.labels, [block.part for block in operands], self.rank)
        along = tuple(axes + d for d in self.dimensions)
        cuts = [(x, tuple(p.stop - p.start for p in x)) for x in self._cuts(whole, along)]
        forms = [self._form(number, whole, along) for number in self.results]
        valued = {rows: self._valued(rows, along) for _, rows in cuts}

        def run(arrays: Sequence[Array], outs: Sequence[Array | None]) -> list[Array]:
            given = [
                arranged(x, labels, self.rank, axes)
                for x, labels in zip(arrays, self.labels, strict=True)
            ]
            wholes = _places(outs, forms, whole)
            buffers: dict[int, Array] = {}
            for cut, rows in cuts:
                parts, targets = given, wholes
                if len(cuts) > 1:
                    parts, targets = ([_part_of(x, cut) for x in y] for y in (given, wholes))
                places = {**buffers, **dict(zip(self.results, targets, strict=True))}
                values = valued[rows](parts, places, buffers)
                put(targets, [values[number] for number in self.results])
            return self._reshaped(wholes, results)

        return run

    def _form(self, number: int, whole: Sizes, along: Sizes) -> tuple[Sizes, np.dtype[Any]]:
        """Return the shape that a value has before it loses reduced dimensions, and its storage."""
        single = tuple(1 if d in along else n for d, n in enumerate(whole))
        return whole if self.is_full(number) else single, storage_dtype(self._types[number])

    def _reshaped(self, wholes: Sequence[Array], results: Blocks) -> list[Array]:
        return [
            x if self.is_full(number) else x.reshape(block.grid + block.part)
            for x, number, block in zip(wholes, self.results, results, strict=True)
        ]

    def _valued(
        self, shape: Sizes, along: Sizes
    ) -> Callable[[Sequence[Array], dict[int, Array], dict[int, Array]], list[Array]]:
        """Return what makes all values of some rows; reduced dimensions stay, with size 1.

        It is given where values may be written, and buffers that there are for the next rows.
        """
        from hloipu_runtime.codelets.ops.row_native import are_kernels
        from hloipu_runtime.kernels.reduction import reduce_monoid, take_in

        any_order = not are_kernels(shape, along)
        single = tuple(1 if d in along else n for d, n in enumerate(shape))
        steps = []
        for step, (plan, sources) in enumerate(zip(self._plans, self.sources, strict=True)):
            dtypes = {n: storage_dtype(self._types[n]) for n in self._values.numbers_by_step[step]}
            reductions = [
                (x.value, x.monoid, self._types[x.value], value_of(x.init, self._types[x.value]))
                for x in self._reductions
                if x.step == step
            ]
            steps.append((plan, sources, dtypes if plan.moves else {}, reductions))

        def run(
            parts: Sequence[Array], outs: dict[int, Array], buffers: dict[int, Array]
        ) -> list[Array]:
            values = list(parts)
            for plan, sources, dtypes, reductions in steps:
                given = [values[number] for number in sources]
                if dtypes and any(x.shape == shape for x in given):
                    places: list[Array | None] = []
                    for number, dtype in dtypes.items():
                        out = outs.get(number)
                        if out is None or out.shape != shape:
                            out = buffers[number] = aligned_empty(shape, dtype)
                        places.append(out)
                    values += plan.run(given, places, shape)
                else:
                    values += plan.run(given)
                for value, monoid, kind, start in reductions:
                    whole = values[value]
                    if whole.shape != shape:
                        whole = np.broadcast_to(whole, shape)
                    reduced = reduce_monoid(whole, monoid, along, any_order=any_order)
                    values.append(take_in(start, reduced, monoid, kind).reshape(single))
            return values

        return run

    def _cuts(self, whole: Sizes, along: Sizes) -> Iterator[tuple[slice, ...]]:
        """Yield which part of each dimension to compute at once: what stays in the cache."""
        rows = len(whole) - len(along)
        everything = tuple(slice(0, n) for n in whole)
        if prod(whole) <= BLOCK_ELEMENTS or not rows or along != tuple(range(rows, len(whole))):
            yield everything
            return
        axis = 0
        while axis < rows - 1 and prod(whole[axis + 1 :]) > BLOCK_ELEMENTS:
            axis += 1
        most = max(1, BLOCK_ELEMENTS // max(1, prod(whole[axis + 1 :])))
        count = over(whole[axis], over(whole[axis], most))
        for outer in np.ndindex(whole[:axis]):
            before = tuple(slice(n, n + 1) for n in outer)
            for start in range(0, whole[axis], count):
                part = slice(start, min(start + count, whole[axis]))
                yield (*before, part, *everything[axis + 1 :])

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Return the cycles of one tile; see `row_costs`."""
        sizes = sizes_of(self.labels, [tensor.shape for tensor in operands], self.rank)
        reduced = set(self.dimensions)
        full = self._values.is_full
        columns = [
            not is_full and any(d in reduced for d in labels)
            for is_full, labels in zip(full, self.labels, strict=False)
        ]
        work = RowWork(
            rows=prod(sizes[d] for d in self._kept),
            length=prod(sizes[d] for d in self.dimensions),
            types=self._types,
            is_full=full,
            is_column=(*columns, *(False for _ in full[len(columns) :])),
            expressions=self.expressions,
            sources=self.sources,
            reductions=tuple(
                (reduction.step, reduction.value, reduction.monoid)
                for reduction in self._reductions
            ),
            kept=frozenset(self.results) | self._values.crossing,
        )
        return row_work(machine, work)

    def may_overwrite(self, operand: int) -> bool:
        """Whether an operand of the first result's form is read before anything is written.

        Values that a later step reads again are written where the results are to be. A step's
        reductions follow its expression.
        """
        first = self.results[0]
        if operand in self.results or not self.is_full(first):
            return False
        if self.labels[operand] != tuple(range(self.rank)):
            return False
        before, after = self.operand_types[operand], self._types[first]
        if (storage_dtype(before), ELEMENT_TYPES[before].bits) != (
            storage_dtype(after),
            ELEMENT_TYPES[after].bits,
        ):
            return False
        stored = {
            number for number in (*self._values.crossing, *self.results) if self.is_full(number)
        }
        begins = min(
            (
                step
                for step, written in enumerate(self._values.numbers_by_step)
                if stored & set(written)
            ),
            default=-1,
        )
        if any(
            reduction.value == operand and reduction.step >= begins
            for reduction in self._reductions
        ):
            return False
        return all(operand not in sources for sources in self.sources[begins + 1 :])

    # --- what values are --------------------------------------------------------------------------

    @cached_property
    def _plans(self) -> "tuple[Plan, ...]":
        from hloipu_runtime.codelets.core.expression import plan_of

        return tuple(map(plan_of, self.expressions))

    @cached_property
    def _kept(self) -> Sizes:
        return tuple(d for d in range(self.rank) if d not in self.dimensions)

    @cached_property
    def _reductions(self) -> tuple[Reduction, ...]:
        return tuple(Reduction(*x) for x in self.reductions)

    @cached_property
    def _values(self) -> RowValues:
        known = row_values(
            self.labels,
            self.rank,
            self.dimensions,
            self.operand_types,
            tuple(zip(self.expressions, self.sources, strict=True)),
            self._reductions,
        )
        if any(not 0 <= number < len(known.types) for number in self.results):
            raise refused(f"its results are {self.results}")
        return known

    @property
    def _types(self) -> tuple[str, ...]:
        return self._values.types

    def is_full(self, number: int) -> bool:
        """Whether a value has an element for each element of all rows."""
        return self._values.is_full[number]


def _places(
    outs: Sequence[Array | None], forms: Sequence[tuple[Sizes, np.dtype[Any]]], whole: Sizes
) -> list[Array]:
    """Return where results of some forms are written: where they may be, or in fresh memory."""
    return [
        out if out is not None and out.shape == shape == whole else np.empty(shape, dtype)
        for out, (shape, dtype) in zip(outs, forms, strict=True)
    ]


def _part_of(array: Array, cut: Sequence[slice]) -> Array:
    """Return a part of an array that has one position where it repeats."""
    return array[
        tuple(slice(None) if n == 1 else part for n, part in zip(array.shape, cut, strict=True))
    ]
