"""Reductions of an expression's results, whose elements are never stored."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from math import prod
from typing import ClassVar

import numpy as np

from hloipu_runtime.codelets.core.arranging import arranged, sizes_of
from hloipu_runtime.codelets.core.codelet import ALL, Codelet, Index, Indexing, codelet
from hloipu_runtime.codelets.core.constants import text_of
from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.codelets.core.grids import are_stored_once, one_of
from hloipu_runtime.codelets.core.straight import Straight
from hloipu_runtime.codelets.core.tensors import Array, Block, Blocks, Bound, Tensor, Tensors
from hloipu_runtime.codelets.costs.combining import taking_issue
from hloipu_runtime.codelets.costs.emulation import Slots, conversion_slots
from hloipu_runtime.codelets.costs.expression_loops import (
    COLUMN_REGISTERS,
    expression_bytes,
    numbers_in,
)
from hloipu_runtime.codelets.costs.issuing import Issue, accumulated, load_issue, op_issue
from hloipu_runtime.codelets.costs.reduce import Reducing, reduce_room_bytes, reduce_work
from hloipu_runtime.codelets.ops.reduce import Reduce
from hloipu_runtime.codelets.ops.row_region import RowRegion
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.costs import TileWork
from hloipu_runtime.machine.model import Machine


@codelet
class FusedReduce(Codelet):
    """Reduces an expression's results by a monoid; operands are the expression's, then inits.

    Dimension d of operand k follows dimension `labels[k][d]` of what is reduced, which has `rank`
    dimensions. With `parts` the first of the `dimensions` are cut into pieces, and there are no
    inits: see `Reduce`.
    """

    name: ClassVar[str] = "fused_reduce"
    is_compiled: ClassVar[bool] = True
    expression: Expression
    labels: tuple[tuple[int, ...], ...]
    rank: int
    dimensions: tuple[int, ...]
    monoid: str
    element_types: tuple[str, ...]
    """Of the results: one of each that the expression has."""
    parts: tuple[int, ...] = ()

    @property
    def code_bytes(self) -> int:  # type: ignore[override]  # nobody writes it
        """Of code made of the expression and a reduction; assumed."""
        results = len(self.element_types)
        return expression_bytes(
            [self.expression], results + len(self.labels), loops=1, reductions=results
        )

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Return a label for each dimension of the result; pieces are a label too."""
        pieces = len(self.parts)
        place = [ALL] * self.rank
        for position, d in enumerate(d for d in range(self.rank) if d not in self.dimensions):
            place[d] = Index(pieces + position)
        for label, part in enumerate(self.parts):
            place[self.dimensions[label]] = Index(label, part, 0, part)
        shape = results[0].shape
        inits: tuple[tuple[Index, ...], ...] = () if self.parts else ((),) * len(results)
        return Indexing(
            shape,
            (*(tuple(place[d] for d in labels) for labels in self.labels), *inits),
            (tuple(Index(n) for n in range(len(shape))),) * len(results),
        )

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Compute the expression, a few rows at a time where they lie side by side, and reduce."""
        count = len(self.labels)
        if not results[0].grid and not self.parts:
            return as_region(self, self._texts([x.data for x in operands[count:]])).run(
                operands[:count], results
            )
        axes = len(results[0].grid)
        grid = results[0].grid
        sizes = sizes_of(self.labels, [x.part for x in operands[:count]], self.rank)
        arrays = [
            arranged(x.data, labels, self.rank, axes)
            for x, labels in zip(operands, self.labels, strict=False)
        ]
        from hloipu_runtime.codelets.core.expression import plan_of

        zeros = (0,) * self.rank
        blocks = [
            Block(np.broadcast_to(made, grid + sizes), grid, sizes, zeros, sizes)
            for made in plan_of(self.expression).run(arrays)
        ]
        return self._reduce.run([*blocks, *operands[count:]], results)

    def bound(self, operands: Blocks, results: Blocks) -> Bound:
        """Return `run`, a few rows at a time."""
        count = len(self.labels)
        if not results[0].grid and not self.parts:
            return self._by_rows(operands[:count], results)
        general = super().bound(operands, results)
        if self.parts or any(block.array is None for block in operands):
            return general
        by_rows = self._by_rows(operands[:count], results)
        takes = [one_of(block) for block in operands[count:]]

        def run(arrays: Sequence[Array], outs: Sequence[Array | None]) -> Sequence[Array]:
            inits = [one(x) for one, x in zip(takes, arrays[count:], strict=True)]
            known = [x for x in inits if x is not None]
            if len(known) < len(inits):
                return general(arrays, outs)
            return by_rows([*arrays[:count], *known], outs)

        return run

    def _by_rows(self, operands: Blocks, results: Blocks) -> Bound:
        """Return the reduction, made ready for each choice of values that it starts from."""

        @lru_cache(maxsize=4)
        def started_from(*values: bytes) -> Bound:
            inits = [
                np.frombuffer(x, storage_dtype(kind)).reshape(())
                for x, kind in zip(values, self.element_types, strict=True)
            ]
            return as_region(self, self._texts(inits)).bound(operands, results)

        count = len(operands)

        def run(arrays: Sequence[Array], outs: Sequence[Array | None]) -> Sequence[Array]:
            inits = [x.tobytes() for x in arrays[count:]]
            return started_from(*inits)(arrays[:count], outs)

        return run

    def _texts(self, inits: Sequence[Array]) -> tuple[str, ...]:
        """Return what each reduction starts from."""
        return tuple(text_of(x, kind) for x, kind in zip(inits, self.element_types, strict=True))

    def straight(self, operands: Blocks, results: Blocks) -> Straight | None:
        """Return the expression and the reduction as calls, of small arrays; of one result."""
        if len(results) > 1 or self.parts or results[0].grid:
            return None
        return self._as_calls(operands, results)

    def straight_on_grid(self, operands: Blocks, results: Blocks) -> Straight | None:
        """Return the expression and the reductions as calls, of small parts."""
        if not are_stored_once(operands[len(self.labels) :]):
            return None
        return self._as_calls(operands, results)

    def _as_calls(self, operands: Blocks, results: Blocks) -> Straight | None:
        from hloipu_runtime.codelets.core.call_writer import MOST_ELEMENTS, CallWriter

        count = len(self.labels)
        grid = results[0].grid
        axes = len(grid)
        sizes = grid + sizes_of(self.labels, [x.part for x in operands[:count]], self.rank)
        if not 0 < prod(sizes) <= MOST_ELEMENTS:
            return None
        writer = CallWriter([grid + x.part for x in operands])
        values = [writer.arranged(k, x, self.rank, axes) for k, x in enumerate(self.labels)]
        computed = writer.expression(self.expression, values)
        if computed is None:
            return None
        rows = [writer.spread(x, sizes) for x in computed]
        return writer.straight(self._reduce.written(writer, rows, count, results))

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Return the work of the reductions, and what of the expression their loop does not hide.

        One loop takes elements into the accumulators of all results.
        """
        count = len(self.labels)
        reduced, hidden = self._reduced(operands)
        work = reduce_work(Reducing(machine, reduced, results, self.dimensions, self.monoid))
        share = over(reduced[0].elements, machine.tile.worker_contexts)
        full = [x for x in operands[:count] if x.elements > 1]
        along = {*self.dimensions}
        # What repeats along all that is reduced stays in registers while a worker goes down.
        columns = [
            x for x, labels in zip(operands, self.labels, strict=False)
            if x.elements > 1 and along.isdisjoint(labels)
        ][:COLUMN_REGISTERS // 2]  # fmt: skip
        long = [x for x in full if x not in columns]
        takings = [taking_issue(machine, x.element_type, self.monoid, 1, share) for x in reduced]
        # As in any reduction, the first load is as wide as what is taken in.
        issue = Issue(main=max(taking.floats for taking in takings))
        for taking in takings:
            issue = issue.plus(taking)
        for x in long[1:]:
            issue = issue.plus(load_issue(x.element_type, share))
        for x in columns:
            issue = issue.plus(load_issue(x.element_type, min(share, x.elements)))
        numbers = numbers_in(
            self.expression, [n for n, x in enumerate(operands[:count]) if x.elements < 2]
        )
        for number, node in enumerate(self.expression.nodes, count):
            if node.op not in ("constant", "copy") and number not in hidden:
                issue = issue.plus(op_issue(machine, self.expression, node, share, numbers))
        slots = issue.slots
        more = max(0, slots.slots - sum(taking.slots.slots for taking in takings))
        types = sorted({x.element_type for x in full})
        added = Slots(more, min(more, slots.assumed)).plus(conversion_slots(machine, types, share))
        cycles = work.cycles + machine.tile.worker_contexts * added.slots
        return TileWork(cycles, cycles) if work.cycles else work

    def _reduced(self, operands: Tensors) -> tuple[list[Tensor], frozenset[int]]:
        """Return what is taken into accumulators, and the ops that these do by themselves."""
        sizes = sizes_of(self.labels, [x.shape for x in operands[: len(self.labels)]], self.rank)
        values = self.expression.results
        sums = frozenset(values if self.monoid == "add" else ())
        hidden, narrow = accumulated(self.expression, sums, frozenset())
        kinds = zip(values, self.expression.result_types, strict=True)
        return [Tensor("f16" if x in narrow else kind, sizes) for x, kind in kinds], hidden

    def room_bytes(self, machine: Machine, operands: Tensors, results: Tensors) -> int:
        """Return the room for what the workers leave of each other's outputs."""
        reduced, _ = self._reduced(operands)
        return reduce_room_bytes(Reducing(machine, reduced, results, self.dimensions, self.monoid))

    def combined_with(
        self, combine: Codelet, others: Sequence[Array | None]
    ) -> tuple[Codelet, int] | None:
        """Return the reduction in one go, where pieces are combined by the same monoid."""
        found = self._reduce.combined_with(combine, others)
        if found is None:
            return None
        whole, taken = found
        if not isinstance(whole, Reduce):
            return None
        return replace(
            self, dimensions=whole.dimensions, parts=(), element_types=whole.element_types
        ), taken

    @cached_property
    def _reduce(self) -> Reduce:
        return Reduce(self.dimensions, self.monoid, None, self.element_types, self.parts)


@lru_cache(maxsize=4096)
def as_region(codelet: FusedReduce, inits: tuple[str, ...]) -> RowRegion:
    """Return whole reductions as a region of rows of one step."""
    count, results = len(codelet.labels), len(inits)
    return RowRegion(
        labels=codelet.labels,
        rank=codelet.rank,
        dimensions=codelet.dimensions,
        operand_types=codelet.expression.operand_types,
        expressions=(codelet.expression,),
        sources=(tuple(range(count)),),
        reductions=tuple((0, count + n, codelet.monoid, init) for n, init in enumerate(inits)),
        results=tuple(range(count + results, count + 2 * results)),
    )
