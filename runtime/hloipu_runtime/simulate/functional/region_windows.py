"""Writes what moves windows of arrays: slices and updates, gathers, scatters, padding."""

from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hloipu_runtime.codelets.indexed.dynamic_slice import (
    DynamicSlice,
    DynamicUpdateSlice,
    with_ones,
)
from hloipu_runtime.codelets.indexed.gather import Gather
from hloipu_runtime.codelets.indexed.scatter import Scatter
from hloipu_runtime.codelets.ops.join import Pad
from hloipu_runtime.kernels.core.movement import padded_boxes
from hloipu_runtime.kernels.gather import gathering
from hloipu_runtime.kernels.native.combining import combination
from hloipu_runtime.kernels.native.regions import Held, Memory, Place, Register
from hloipu_runtime.kernels.scatter import FEW_WINDOWS, form_of
from hloipu_runtime.program.program import Array
from hloipu_runtime.program.steps import ValueId
from hloipu_runtime.simulate.functional.loop_turns import MOST_ELEMENTS_MADE
from hloipu_runtime.simulate.functional.nodes import Node
from hloipu_runtime.simulate.functional.region_values import (
    Refused,
    RegionValues,
    Sizes,
    cut_of,
    is_in_order,
)


class RegionWindows(RegionValues):
    """Windows of arrays whose places data decides."""

    def _overwritten(self, written: ValueId, base: ValueId, reads: Sequence[Held]) -> Place:
        """Return an array to be changed in part: its own memory if it is dead, else a copy."""
        source = self._value(base)
        if isinstance(source, Place) and not source.memory.pointer.startswith("%outside"):
            is_read = any(isinstance(x, Place) and x.memory is source.memory for x in reads)
            if source.view.flags.c_contiguous and not is_read and self._is_dead(source.memory):
                return source
        if prod(self.table[written].shape) > MOST_ELEMENTS_MADE:
            raise Refused
        target = self._place_for(written, [source, *reads])
        self.region.copy(source, target)
        return target

    def _slice(self, what: DynamicSlice, node: Node) -> Held:
        shape = self.table[node.writes[0]].shape
        data = self._value(node.reads[0])
        if isinstance(data, Register):
            return data._replace(shape=shape)
        window = self._window(data, with_ones(shape, what.dropped), node.reads[1:])
        window = window.seen(window.view.reshape(shape, copy=False))
        if prod(shape) == 1:
            return self._loaded(window)
        target = self.region.temporary(shape, data.type)
        self.region.copy(window, target)
        if not window.view.flags.c_contiguous or self._is_unsure(data):
            in_order = is_in_order(window.view) and not self._is_unsure(data, of_order=True)
            self._doubt(target, is_in_order=in_order)
        return target

    def _update(self, what: DynamicUpdateSlice, node: Node) -> Held:
        data, window, *starts = node.reads
        shape = self.table[node.writes[0]].shape
        sizes = self.table[window].shape
        if sizes == shape:
            return self._value(window)
        update = self._value(window)
        target = self._overwritten(node.writes[0], data, [update])
        place = self._window(target, with_ones(sizes, what.dropped), starts)
        place = place.seen(place.view.reshape(sizes, copy=False))
        if isinstance(update, Register):
            update = update._replace(shape=place.view.shape)
        self.region.copy(update, place)
        return target

    # --- at vectors of indices --------------------------------------------------------------------
    def _gather(self, what: Gather, node: Node) -> Held:
        table, indices = map(self._value, node.reads)
        shape, dims = self.table[node.writes[0]].shape, what.dims
        if isinstance(table, Register):
            return self._repeated(table, shape)
        vectors, batch = self._vectors(indices, node.reads[1], dims.index_vector_dim)
        target = self.region.temporary(shape, table.type)
        dropped = {*dims.collapsed_slice_dims, *dims.operand_batching_dims}
        kept = [d for d in range(len(what.slice_sizes)) if d not in dropped]
        others = [d for d in range(len(shape)) if d not in dims.offset_dims]
        placed = target.view.transpose((*others, *dims.offset_dims))
        batching = zip(dims.operand_batching_dims, dims.start_indices_batching_dims, strict=True)
        begun = _along(table.view, batching, dims.index_vector_dim, batch)
        into = target.seen(_firsts(placed, len(batch)))
        window = cut_of(table.view, [slice(n) for n in what.slice_sizes])
        window = _firsts(window, 0, kept)
        region = self.region
        with region.each(batch, [table.seen(begun), into, *vectors], is_parallel=False) as (at, _):
            pointer = at[0]
            for d, name in self._starts(vectors, at[2:], dims.start_index_map):
                limit = table.view.shape[d] - what.slice_sizes[d]
                low = region.op("integer_extremum:max", "s64", name, "0")
                start = region.op("integer_extremum:min", "s64", low, str(limit))
                pointer = self._further(pointer, start, table.view.strides[d])
            region.copy(_at(pointer, window, table.type),
                        _at(at[1], placed[(0,) * len(batch)], table.type))  # fmt: skip
        named = self.table[node.reads[1]].shape  # a register may have the shape of what it repeats
        given = indices.view if isinstance(indices, Place) else np.zeros(named, np.int32)
        laid = gathering(table.view.shape, given.shape, dims, what.slice_sizes)(table.view, given)
        if not laid.flags.c_contiguous or self._is_unsure(table):
            self._doubt(target)
        return target

    def _scatter(self, what: Scatter, node: Node) -> Held:
        if len(node.reads) != 3 or not what.monoid:
            raise Refused
        base, places, updates = node.reads
        indices, update = self._value(places), self._value(updates)
        dims, (kind, *_) = what.dims, what.element_types
        shape, sizes = self.table[node.writes[0]].shape, self.table[updates].shape
        form = form_of(shape, self.table[places].shape, sizes, dims)
        found = combination(what.monoid, kind, self.halves)
        if not (form.is_ordered or form.count <= FEW_WINDOWS):
            raise Refused
        if found is None and what.monoid != "assign":
            raise Refused
        vectors, batch = self._vectors(indices, places, dims.index_vector_dim)
        target = self._overwritten(node.writes[0], base, [indices, update])
        update = self.region.in_memory(update, sizes)
        absent = {*dims.inserted_window_dims, *dims.input_batching_dims}
        kept = [d for d in range(len(shape)) if d not in absent]
        others = [d for d in range(len(sizes)) if d not in dims.update_window_dims]
        taken = update.view.transpose((*others, *dims.update_window_dims))
        batching = zip(dims.input_batching_dims, dims.scatter_indices_batching_dims, strict=True)
        begun = _along(target.view, batching, dims.index_vector_dim, batch)
        window = _firsts(cut_of(target.view, [slice(n) for n in form.window]), 0, kept)
        source = update.seen(_firsts(taken, len(batch)))
        region = self.region
        every = [target.seen(begun), source, *vectors]
        with region.each(batch, every, is_parallel=False) as (at, _):
            pointer = at[0]
            after = region.unique("after")
            for d, name in self._starts(vectors, at[2:], dims.scatter_dims_to_operand_dims):
                inside = region.new(f"icmp ule i64 {name}, {shape[d] - form.window[d]}")
                label = region.unique("inside")
                region.choose(inside, label, after)
                region.begin(label)
                pointer = self._further(pointer, name, target.view.strides[d])
            into = _at(pointer, window, target.type)
            given = _at(at[1], taken[(0,) * len(batch)], update.type)
            with region.each(window.shape, [into, given]) as ((old, new), access):
                names = {1: region.load(update.type, new, access)}
                last = 1
                if found is not None:
                    types = {0: target.type, 1: update.type}
                    names[0] = region.load(target.type, old, access)
                    region.instructions(found[1], names, types)
                    last = found[1][-1][0]
                region.store(target.type, names[last], old, access)
            region.jump(after)
            region.begin(after)
        return target

    def _pad(self, what: Pad, node: Node) -> Held:
        data, value = map(self._value, node.reads)
        shape = self.table[node.writes[0]].shape
        source = self.region.in_memory(data, self.table[node.reads[0]].shape)
        _, taken, places = padded_boxes(source.view.shape, what.padding)
        kept = cut_of(source.view, taken)
        if kept.shape == shape and isinstance(data, Place):
            return data.seen(cut_of(data.view, taken))
        target = self.region.temporary(shape, source.type)
        self.region.fill(target, self.region.one(value))
        if kept.size:
            self.region.copy(source.seen(kept), target.seen(cut_of(target.view, places)))
        return target

    def _repeated(self, value: Register, shape: Sizes) -> Held:
        if prod(shape) == 1:
            return value._replace(shape=shape)
        target = self.region.temporary(shape, value.type)
        self.region.fill(target, value.name)
        self._doubt(target)
        return target

    def _vectors(self, indices: Held, value: ValueId, vector_dim: int) -> tuple[list[Place], Sizes]:
        """Return each column of vectors of indices, and the shape of the vectors."""
        shape = self.table[value].shape
        if self._form(value)[1][0] not in "su" or self._form(value)[1] == "u64":
            raise Refused
        place = self.region.in_memory(indices, shape)
        if vector_dim == len(shape):
            return [place], shape
        batch = (*shape[:vector_dim], *shape[vector_dim + 1 :])
        columns = np.moveaxis(place.view, vector_dim, 0)
        return [place.seen(columns[k, ...]) for k in range(len(columns))], batch

    def _starts(
        self, vectors: Sequence[Place], pointers: Sequence[str], dimensions: Sequence[int]
    ) -> list[tuple[int, str]]:
        """Return the start along each dimension, as 64-bit integers."""
        region = self.region
        return [
            (d, region.op("convert", "s64", region.load(x.type, at), types=[x.type]))
            for d, x, at in zip(dimensions, vectors, pointers, strict=True)
        ]

    def _further(self, pointer: str, start: str, stride: int) -> str:
        offset = self.region.new(f"mul nsw i64 {start}, {stride}")
        return self.region.new(f"getelementptr i8, ptr {pointer}, i64 {offset}")


def _at(pointer: str, view: Array, kind: str) -> Place:
    """Return an array that lies like a view, from a pointer on."""
    return Place(Memory(pointer, 0, view), view, kind)


def _firsts(view: Array, rank: int, kept: Sequence[int] | None = None) -> Array:
    """Return the first elements behind some leading dimensions, or in all that are not kept."""
    stays = range(rank) if kept is None else kept
    index = tuple(slice(None) if d in stays else 0 for d in range(view.ndim))
    return cut_of(view, index)


def _along(table: Array, batching: "zip[tuple[int, int]]", vector_dim: int, batch: Sizes) -> Array:
    """Return the first window's first element for each vector: batching dimensions move on."""
    strides = [0] * len(batch)
    for d, axis in batching:
        strides[axis - (axis > vector_dim)] = table.strides[d]
    return as_strided(table[(0,) * table.ndim + (...,)], batch, strides)
