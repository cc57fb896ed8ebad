"""Writes reductions of a region, in the order in which the plain path reduces."""

from collections.abc import Sequence
from math import prod

import numpy as np

from hloipu_runtime.codelets.core.arranging import sizes_of
from hloipu_runtime.codelets.core.constants import value_of
from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.codelets.core.native_lowering import storage_type
from hloipu_runtime.codelets.ops.fused_reduce import FusedReduce, as_region
from hloipu_runtime.codelets.ops.reduce import Reduce
from hloipu_runtime.codelets.ops.row_region import RowRegion
from hloipu_runtime.kernels.core.rounding import is_narrow
from hloipu_runtime.kernels.native.regions import Held, Memory, Place, Register
from hloipu_runtime.kernels.reduction import folds_in_order, is_by_columns
from hloipu_runtime.kernels.reduction_regions import SEQUENTIAL_STEPS
from hloipu_runtime.program.steps import ValueId
from hloipu_runtime.simulate.functional.nodes import Node
from hloipu_runtime.simulate.functional.region_expressions import RegionExpressions, rounding
from hloipu_runtime.simulate.functional.region_values import Refused, Sizes


class RegionReductions(RegionExpressions):
    """Reductions, alone and in regions of rows."""

    def _reduce(self, what: Reduce, node: Node) -> list[Held]:
        count = len(node.writes)
        operands = [self._value(v) for v in node.reads[:count]]
        inits = [self._value(v) for v in node.reads[count:]]
        shape = self.table[node.reads[0]].shape
        if what.monoid:
            return [
                self._monoid(
                    what.monoid,
                    kind,
                    self._whole(x, shape, what.monoid),
                    what.dimensions,
                    self.region.one(init),
                )
                for x, init, kind in zip(operands, inits, what.element_types, strict=True)
            ]
        return self._region(what, [self._whole(x, shape) for x in operands], inits)

    def _whole(self, held: Held, shape: Sizes, monoid: str = "") -> Place:
        """Return a value as a row-major array, which for sums the plain path must have so too."""
        if monoid != "add" or held.type not in ("f32", "f64"):
            return self.region.in_memory(held, shape)
        if isinstance(held, Register):
            if prod(shape) > 1:
                raise Refused
        elif self._is_unsure(held) or not held.view.flags.c_contiguous or held.view.shape != shape:
            raise Refused
        return self.region.in_memory(held, shape)

    def _monoid(
        self, monoid: str, element: str, x: Place, dimensions: Sequence[int], init: str
    ) -> Held:
        """Reduce by a monoid, then take in the init value."""
        region, kind, shape = self.region, x.type, x.view.shape
        is_float = kind in ("f32", "f64")
        if is_float and monoid not in ("add", "maximum", "minimum"):
            raise Refused
        if not is_float and storage_type(element) != element:
            raise Refused
        folds = folds_in_order(shape, tuple(dimensions), rounds=is_float and monoid == "add")
        if folds is None:
            raise Refused
        kept = tuple(n for d, n in enumerate(shape) if d not in dimensions)
        current = x
        for outer, count, inner in folds:
            reduced = region.temporary((outer, inner), kind)
            rows = current.seen(current.view.reshape(outer, count, inner))
            if is_float and inner == 1:
                columns = monoid == "add" and is_by_columns(outer, count)
                with region.each((outer, 1), [rows.seen(rows.view[:, 0]), reduced]) as (at, access):
                    combine = region.paired if columns else region.reduced
                    one = combine(monoid, kind, at[0], count)
                    region.store(kind, one, at[1], access)
            else:
                self._fold(monoid, rows, reduced, 1)
            current = reduced
        result = region.temporary(kept, kind)
        source = current.seen(current.view.reshape(kept))
        op = _op(monoid, kind)
        with region.each(kept, [source, result]) as ((one, other), access):
            value = region.load(kind, one, access)
            value = region.op(op, kind, init, value)
            if is_narrow(element) and monoid == "add":
                value = region.op(rounding(element, self.halves), "f32", value)
            region.store(kind, value, other, access)
        return result

    def _fold(self, monoid: str, rows: Place, target: Place, axis: int) -> None:
        """Reduce an axis one after another."""
        region, kind = self.region, rows.type
        count, kept = rows.view.shape[axis], target.view.shape
        op = _op(monoid, kind)
        moved = np.moveaxis(rows.view, axis, 0)
        with region.each(kept, [rows.seen(moved[0, ...]), target]) as ((one, other), access):
            value = region.load(kind, one, access)
            if op == "fadd":  # as numpy's reductions begin with zero
                value = region.op("fadd", kind, "0.0", value)
            region.store(kind, value, other, access)
        if count == 1:
            return
        rest = rows.seen(moved[1:])
        into = target.seen(np.broadcast_to(target.view, (count - 1, *kept)))
        with region.each((count - 1, *kept), [rest, into], is_parallel=False) as (
            (one, other), access,
        ):  # fmt: skip
            before, value = region.load(kind, other, access), region.load(kind, one, access)
            region.store(kind, region.op(op, kind, before, value), other, access)

    def _region(self, what: Reduce, operands: list[Place], inits: list[Held]) -> list[Held]:
        """Reduce by a body, as `reduce_region` does."""
        assert what.body is not None
        shape = operands[0].view.shape
        kept_shape = tuple(n for d, n in enumerate(shape) if d not in what.dimensions)
        slabs = self._slabs(operands, what.dimensions)
        count = len(slabs[0].view)
        associative = count > SEQUENTIAL_STEPS if what.associative is None else what.associative
        if not associative:
            return self._one_by_one(what.body, slabs, inits, kept_shape)
        return self._expression(what.body, [*inits, *self._pairwise(what.body, slabs)], kept_shape)

    def _slabs(self, operands: Sequence[Place], dimensions: Sequence[int]) -> list[Place]:
        """Return arrays row-major with the elements that are reduced in front, as one dimension."""
        shape = operands[0].view.shape
        wanted = sorted(dimensions)
        kept = [d for d in range(len(shape)) if d not in wanted]
        slabs = []
        for x in operands:
            moved = self.region.row_major(x.seen(x.view.transpose((*wanted, *kept))))
            slab = moved.view.reshape(prod(shape[d] for d in wanted), *(shape[d] for d in kept))
            slabs.append(moved.seen(slab))
        return slabs

    def _pairwise(self, body: Expression, slabs: list[Place]) -> list[Place]:
        """Combine neighbours along the first dimension until one is left."""
        while (count := len(slabs[0].view)) > 1:
            even = count - count % 2
            halves = [s.seen(s.view[start:even:2]) for start in (0, 1) for s in slabs]
            kept_shape = slabs[0].view.shape[1:]
            folded = self._expression(body, halves, (even // 2, *kept_shape))
            following: list[Place] = []
            for made, slab in zip(folded, slabs, strict=True):
                size = (count - even // 2, *kept_shape)
                if even == count and isinstance(made, Place):
                    following.append(made)
                    continue
                target = self.region.temporary(size, slab.type)
                self.region.copy(made, target.seen(target.view[: even // 2]))
                if even != count:
                    last = target.seen(target.view[even // 2 :])
                    self.region.copy(slab.seen(slab.view[-1:]), last)
                following.append(target)
            slabs = following
        return [s.seen(s.view[0, ...]) for s in slabs]

    def _one_by_one(
        self, body: Expression, slabs: list[Place], inits: list[Held], shape: Sizes
    ) -> list[Held]:
        region = self.region
        accumulators = [region.temporary(shape, s.type) for s in slabs]
        for init, target in zip(inits, accumulators, strict=True):
            region.fill(target, region.one(init))
        with region.counted(str(slabs[0].view.shape[0])) as (turn, _):
            parts = []
            for slab in slabs:
                offset = region.new(f"mul nsw i64 {turn}, {slab.view.strides[0]}")
                pointer = region.new(f"getelementptr i8, ptr {region.address(slab)}, i64 {offset}")
                view = slab.view[0, ...]
                parts.append(Place(Memory(pointer, 0, view), view, slab.type))
            computed = self._expression(body, [*accumulators, *parts], shape)
            for held, target in zip(computed, accumulators, strict=True):
                region.copy(held, target)
        return list(accumulators)

    def _fused(self, what: FusedReduce, node: Node) -> list[Held]:
        count = len(what.labels)
        shapes = [self.table[v].shape for v in node.reads[:count]]
        region = as_region(what, ("0",) * len(node.writes))
        inits = [self.region.one(self._value(v)) for v in node.reads[count:]]
        return self._steps(region, node.reads[:count], shapes, inits)

    def _rows(self, what: RowRegion, node: Node) -> list[Held]:
        shapes = [self.table[v].shape for v in node.reads]
        return self._steps(what, node.reads, shapes, None)

    def _steps(
        self, what: RowRegion, reads: Sequence[ValueId], shapes: Sequence[Sizes],
        inits: Sequence[str] | None, sums: Sequence[str] | None = None,
    ) -> list[Held]:  # fmt: skip
        """Write a region's steps; reductions begin with `inits`, or with what they say.

        `sums` are the types that reductions are rounded to; None: those of what is reduced.
        """
        whole = sizes_of(what.labels, shapes, what.rank)
        single = tuple(1 if d in what.dimensions else n for d, n in enumerate(whole))
        values = [
            self._arranged(self._value(v), labels, what.rank)
            for v, labels in zip(reads, what.labels, strict=True)
        ]
        elements = list(what.operand_types)
        waiting = list(what.reductions)
        for step, (expression, sources) in enumerate(
            zip(what.expressions, what.sources, strict=True)
        ):
            given = [values[x] for x in sources]
            covers = [x.view.shape if isinstance(x, Place) else (1,) * what.rank for x in given]
            shape = np.broadcast_shapes((1,) * what.rank, *covers)
            values += self._expression(expression, given, shape)
            elements += expression.result_types
            while waiting and waiting[0][0] == step:
                _, value, monoid, text = waiting.pop(0)
                taken = len(what.reductions) - len(waiting) - 1
                source, element = values[value], sums[taken] if sums else elements[value]
                if inits is None:
                    start = self.region.constant(value_of(text, element), source.type)
                    init = self.region.one(start)
                else:
                    init = inits[taken]
                reduced = self._monoid(
                    monoid, element, self._whole(source, whole, monoid), what.dimensions, init
                )
                assert isinstance(reduced, Place)
                values.append(reduced.seen(reduced.view.reshape(single)))
                elements.append(element)
        results = []
        for x in what.results:
            held, size = values[x], whole if what.is_full(x) else single
            if isinstance(held, Place) and held.view.shape != size:
                copy = self.region.temporary(size, held.type)
                self.region.copy(held.seen(np.broadcast_to(held.view, size)), copy)
                held = copy
            results.append(self._written_out(held, size))
        return results

    def _written_out(self, held: Held, size: Sizes) -> Held:
        if isinstance(held, Register) and prod(size) > 1:
            return self.region.in_memory(held, size)
        return held


def _op(monoid: str, kind: str) -> str:
    is_float = kind in ("f32", "f64")
    if kind == "c64":
        raise Refused
    if monoid in ("maximum", "minimum"):
        name = monoid[:3]
        if kind == "pred":
            return "or" if name == "max" else "and"
        return f"extremum:{name}" if is_float else f"integer_extremum:{name}"
    if kind == "pred" and monoid in ("add", "multiply"):
        raise Refused
    names = {"add": "fadd" if is_float else "add", "multiply": "mul"}
    return names.get(monoid, monoid)
