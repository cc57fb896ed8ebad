"""Scatter: windows of updates combined into operands by an index operand."""

from collections.abc import Callable, Sequence
from math import ceil, prod
from typing import ClassVar, NamedTuple

import numpy as np

from hloipu_runtime.codelets.core.codelet import ALL, Codelet, Index, Indexing, codelet
from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.codelets.core.placing import (
    delivered,
    follows,
    is_whole,
    owned_copy,
    same_memory,
    whole_of_parts,
)
from hloipu_runtime.codelets.core.straight import Straight, one_call
from hloipu_runtime.codelets.core.tensors import Array, Block, Blocks, OnArrays, Sizes, Tensors
from hloipu_runtime.codelets.costs.combining import combining
from hloipu_runtime.codelets.costs.moving import NO_WORK, copy_work, multi_slice_slots
from hloipu_runtime.codelets.indexed.scatter_parts import (
    batch_places,
    scatter_parts,
    window_dimensions,
    window_pieces,
    window_sizes,
)
from hloipu_runtime.codelets.ops.move import every_dimension
from hloipu_runtime.codelets.ops.reduce import Reduce
from hloipu_runtime.kernels.core.monoids import Combiner
from hloipu_runtime.kernels.core.movement import copy_into
from hloipu_runtime.kernels.scatter import How, ScatterDimensions
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.costs import TileWork, shared_vertex_cycles
from hloipu_runtime.machine.model import Machine

_NOTED_SLOTS, _NOTE_BYTES = 3, 8
"""Of a window that falls into the tile: its number and its place, a word each, are stored, and the
notes counted. Assumed."""
_LARGE_ELEMENTS = 1 << 14
"""From here on it pays to find out whether the operand may be changed where it is."""


@codelet
class Scatter(Codelet):
    """Combines windows into operands; n operands, indices, n updates.

    Windows that meet are combined one after another, in row-major order of their indices; one that
    is not wholly inside is skipped. Each tile works on what falls into its ranges. The work is
    that of doing it in place; who still needs an operand as it was copies it first.
    """

    name: ClassVar[str] = "scatter"
    is_compiled: ClassVar[bool] = True
    overwrites_a_part: ClassVar[bool] = True
    dims: ScatterDimensions
    monoid: str
    """Its name, for one operand, or "assign"; "": `body` says how."""
    body: Expression | None
    """The combiner on scalars: operands, then updates; None where a monoid does it."""
    element_types: tuple[str, ...]
    unique_indices: bool = False
    whole: Sizes = ()
    """Sizes of the operands, over which windows are taken to be spread evenly; none: all windows
    fall into every tile's part."""

    @property
    def code_kind(self) -> str:
        """That of its monoid."""
        return f"{self.name}-{self.monoid}"

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Split every dimension of the operands; updates follow where windows are whole.

        Indices and updates are split along batching dimensions, and else whole on every tile.
        """
        shape, dims = results[0].shape, self.dims
        count = len(results)
        indices, updates = operands[count].shape, operands[count + 1].shape
        every = every_dimension(len(shape))
        places, windows = [ALL] * len(indices), [ALL] * len(updates)
        for d, place in window_dimensions(dims, len(shape)):
            if updates[place] == shape[d]:
                windows[place] = Index(d)
        batching = dict(
            zip(dims.scatter_indices_batching_dims, dims.input_batching_dims, strict=True)
        )
        for d, place in batch_places(dims, len(indices)):
            if d in batching:
                places[d] = windows[place] = Index(batching[d])
        return Indexing(
            shape, (*(every,) * count, tuple(places), *(tuple(windows),) * count), (every,) * count
        )

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Scatter on all tiles at once, in place where results are the operands' memory."""
        count = len(results)
        data, indices, updates = operands[:count], operands[count], operands[count + 1 :]
        dims, places, windows = self.dims, indices.data, [u.data for u in updates]
        from hloipu_runtime.codelets.indexed.scatter_parts import is_few, scatter_few

        if not is_whole(data[0]) and is_few(self.dims, indices):
            own_blocks = [
                block._replace(array=owned_copy(block, r))
                for block, r in zip(data, results, strict=True)
            ]
            if scatter_few(
                self.dims, own_blocks, indices, updates, self._combiner, self.element_types
            ):
                return [block.data for block in own_blocks]
            data = own_blocks
        from hloipu_runtime.kernels.scatter import scatter

        if not is_whole(data[0]):
            call = scatter_parts(self.dims, data[0], indices, updates)
            dims, places, windows = call.dims, call.indices, call.updates
        elif not self._works_in_place(data[0], updates[0]):
            scattered = scatter(
                [block.data for block in data], places, windows, dims, self._combiner,
                self.element_types, unique_indices=self.unique_indices,
            )  # fmt: skip
            return [delivered(x, r) for x, r in zip(scattered, results, strict=True)]
        owned = [owned_copy(block, r) for block, r in zip(data, results, strict=True)]
        scattered = scatter(
            owned, places, windows, dims, self._combiner, self.element_types,
            unique_indices=self.unique_indices, in_place=True,
        )  # fmt: skip
        return [_kept(own, new) for own, new in zip(owned, scattered, strict=True)]

    def on_arrays(self, operands: Blocks, results: Blocks) -> OnArrays | None:
        """Return one scatter, on tiles that make up a tensor, each with its windows."""
        if len(results) != 1 or not results[0].grid or not self._has_its_windows(*operands):
            return None
        source, target = whole_of_parts(operands[0]), whole_of_parts(results[0])
        places, windows = (whole_of_parts(block, shared=True) for block in operands[1:])
        if source is None or target is None or places is None or windows is None:
            return None
        seen = source(operands[0].data), places(operands[1].data), windows(operands[2].data)
        arrays = [*seen, target(results[0].data)]
        from hloipu_runtime.kernels.scatter import form_of, scatter_as, scattering

        form = form_of(*(block.whole for block in operands), self.dims)
        how = How(self._combiner, self.element_types, self.unique_indices, in_place=True)
        if prod(results[0].whole) < _LARGE_ELEMENTS:
            scatter_one = scattering(form, how)
            return OnArrays(
                lambda: copy_into(arrays[3], scatter_one(*arrays[:3])), arrays, (0, 1, 2, 3)
            )
        if any(np.may_share_memory(arrays[3], read) for read in arrays[1:3]):
            return None
        is_copied = not (form.is_ordered and arrays[3].flags.c_contiguous)
        if is_copied and form.count * form.window_elements < prod(results[0].whole):
            return None  # the kernel copies all of it, which is more than the windows are
        in_place = same_memory(arrays[0], arrays[3])

        def run_in_place() -> None:
            table = arrays[3]
            if not in_place:
                copy_into(table, arrays[0])
            (scattered,) = scatter_as(form, (table,), arrays[1], (arrays[2],), how)
            if not same_memory(scattered, table):
                copy_into(table, scattered)

        return OnArrays(run_in_place, arrays, (0, 1, 2, 3))

    def _has_its_windows(self, operand: Block, indices: Block, update: Block) -> bool:
        """Whether each tile has all windows, or of each, or of those, what falls into its part."""
        dims = self.dims
        leaders = dict(
            zip(dims.scatter_indices_batching_dims, dims.input_batching_dims, strict=True)
        )
        places = dict(batch_places(dims, len(indices.part)))
        return (
            all(
                follows(indices, d, operand, leaders[d])
                if d in leaders
                else indices.part[d] == indices.whole[d]
                for d in range(len(indices.part))
            )
            and all(
                follows(update, place, operand, leaders[d])
                if d in leaders
                else update.part[place] == update.whole[place]
                for d, place in places.items()
            )
            and all(
                update.part[place] == update.whole[place]
                or (update.whole[place] == operand.whole[d] and follows(update, place, operand, d))
                for d, place in window_dimensions(dims, len(operand.part))
            )
        )

    def ignores(self, unused: Sequence[Sequence[bool]]) -> bool:
        """Say yes for ends of operands: a window that is inside reaches none."""
        count = (len(unused) - 1) // 3
        return not any(map(any, unused[count : 2 * count + 1]))

    def straight(self, operands: Blocks, results: Blocks) -> Straight | None:
        """Return the scatter into a small array as one call; large ones are changed in place."""
        if len(results) != 1 or prod(results[0].part) >= _LARGE_ELEMENTS:
            return None
        from hloipu_runtime.kernels.scatter import form_of

        form = form_of(*(block.part for block in operands), self.dims)
        how = How(self._combiner, self.element_types, self.unique_indices)
        from hloipu_runtime.kernels.scatter import scattering

        return one_call(scattering(form, how), 3, results[0].part, is_fresh=True)

    def _works_in_place(self, operand: Block, update: Block) -> bool:
        """Whether the kernel can change whole operands where they are: indexed dimensions first."""
        sizes = window_sizes(self.dims, len(operand.part), update.part)
        moving = [size != whole for size, whole in zip(sizes, operand.part, strict=True)]
        return moving == sorted(moving, reverse=True) and operand.data.flags.c_contiguous

    @property
    def _combiner(self) -> Combiner | str:
        if self.monoid or self.body is None:
            return self.monoid
        from hloipu_runtime.codelets.core.expression import region

        return region(self.body)

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Charge the windows that fall into the tile, evenly over its workers' ranges.

        Every worker looks at all of them (graphcore/poplibs: lib/popops/PerformanceEstimation.cpp,
        MultiUpdate and MultiUpdateAdd), or first at a share, noting which fall into the tile, and
        then at those; where they fall, data decides. That they fall evenly is what poplibs's
        planner assumes (include/popops/DynamicSlice.hpp: indicesDistribution). Operands after the
        first are copied.
        """
        count = len(results)
        looks, run = self._looks(machine, results[0].shape, operands[count + 1].shape)
        if not looks.pieces or not results[0].elements:
            return NO_WORK
        cycles = assumed = 0
        for number, result in enumerate(results):
            copied = copy_work(machine, result) if number else NO_WORK
            slots, rests = self._slots(machine, result.element_type, run)
            each = looks.cycles(slots)
            cycles += each + copied.cycles
            assumed += copied.assumed_cycles + (each if rests or looks.are_noted else 0)
        return TileWork(cycles, assumed)

    def room_bytes(self, machine: Machine, operands: Tensors, results: Tensors) -> int:
        """Return the room of the notes, all windows in one tile at worst."""
        count = len(results)
        looks, _ = self._looks(machine, results[0].shape, operands[count + 1].shape)
        return _NOTE_BYTES * looks.pieces if looks.are_noted else 0

    def _looks(self, machine: Machine, part: Sizes, updates: Sizes) -> "tuple[_Looks, int]":
        """Return how workers look for the windows of a tile's part, and a piece's elements."""
        pieces, run = window_pieces(self.dims, part, updates)
        here = min(pieces, ceil(pieces * self._share(part, updates))) if pieces else 0
        start, skip = (29, 8) if self.monoid == "assign" else (33, 5)
        return _Looks(machine, pieces, here, start, skip), run

    def _share(self, part: Sizes, updates: Sizes) -> float:
        if not self.whole:
            return 1.0
        windows = window_sizes(self.dims, len(part), updates)
        return prod(
            min(1.0, (part[d] + windows[d] - 1) / max(1, self.whole[d]))
            for d in self.dims.scatter_dims_to_operand_dims
        )

    def _slots(self, machine: Machine, element_type: str, run: int) -> tuple[int, bool]:
        if self.monoid == "assign":
            return multi_slice_slots(machine, element_type, run), False
        step = combining(machine, element_type, self.monoid, self.body)
        atoms = over(run, step.lanes)
        if self.monoid == "add" and not step.assumed:
            return 13 + (3 if step.half else 4) * (atoms - 1), False
        return 13 + (3 + step.slots) * atoms, True

    def may_overwrite(self, operand: int) -> bool:
        """In place, what no window meets costs nothing."""
        return operand == 0

    def combined_with(
        self, combine: Codelet, others: Sequence[Array | None]
    ) -> tuple[Codelet, int] | None:
        """Return the sum of all updates in one table, where shares of them have one each."""
        dims = self.dims
        if not isinstance(combine, Reduce) or combine.parts:
            return None
        if (combine.monoid, combine.dimensions) != ("add", (0,)):
            return None
        batching = dims.input_batching_dims, dims.scatter_indices_batching_dims
        if self.monoid != "add" or batching != ((0,), (0,)) or 0 in dims.update_window_dims:
            return None
        whole = ScatterDimensions(
            dims.update_window_dims,
            tuple(d - 1 for d in dims.inserted_window_dims),
            tuple(d - 1 for d in dims.scatter_dims_to_operand_dims),
            dims.index_vector_dim,
        )
        return SharedScatter(whole, self.element_types[0]), len(others)


@codelet
class SharedScatter(Codelet):
    """Adds windows up from the sum of some tables on. Operands: tables, indices, updates, init.

    No tile runs it: it is what shares of the updates, each with a table, make together.
    """

    name: ClassVar[str] = "shared-scatter"
    dims: ScatterDimensions
    element_type: str

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Split nothing."""
        whole = tuple((ALL,) * len(tensor.shape) for tensor in operands)
        return Indexing((), whole, ((ALL,) * len(results[0].shape),))

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Scatter into the sum of the tables."""
        return [self._prepared(operands, results)(*(block.data for block in operands))]

    def straight(self, operands: Blocks, results: Blocks) -> Straight:
        """Return `run` as one call."""
        return one_call(self._prepared(operands, results), 4, results[0].part, is_fresh=True)

    def _prepared(self, operands: Blocks, results: Blocks) -> Callable[..., Array]:
        from hloipu_runtime.kernels.reduction import reduce
        from hloipu_runtime.kernels.scatter import form_of, scatter_as

        shape, kinds = results[0].part, (self.element_type,)
        form = form_of(shape, operands[1].part, operands[2].part, self.dims)
        how = How("add", kinds, in_place=True)

        def run(tables: Array, indices: Array, updates: Array, init: Array) -> Array:
            first = tables.reshape(-1)[:1] if not any(tables.strides) else tables
            if first.size == 1 and not first.any():  # of zeros that are one: it is one of them
                base = np.full(shape, np.add(init, first[0]))
            else:
                (base,) = reduce([tables], [init], (0,), "add", kinds)
            return scatter_as(form, (base,), indices, (updates,), how)[0]

        return run


class _Looks(NamedTuple):
    """How the workers of a tile find the pieces of windows that are theirs."""

    machine: Machine
    pieces: int
    here: int
    """Of the pieces, those that fall into the tile."""
    start: int
    skip: int
    """Slots to begin, and to pass over a piece."""

    def cycles(self, slots: int) -> int:
        """Return the cycles, `slots` of a worker for each piece of its own."""
        mine = over(self.here, self.machine.tile.worker_contexts) * slots
        return shared_vertex_cycles(self.machine, 0, mine) + min(self._by_all, self._by_notes)

    @property
    def are_noted(self) -> bool:
        """Whether it takes less to note first which pieces fall into the tile."""
        return self._by_notes < self._by_all

    @property
    def _by_all(self) -> int:
        mine = over(self.here, self.machine.tile.worker_contexts)
        slots = self.start + (self.pieces - mine) * self.skip
        return shared_vertex_cycles(self.machine, 0, slots)

    @property
    def _by_notes(self) -> int:
        """Of two calls: the notes of all workers are read in their order, which is the windows'."""
        tile = self.machine.tile
        mine = over(self.here, tile.worker_contexts)
        noted = over(self.pieces, tile.worker_contexts) * self.skip + mine * _NOTED_SLOTS
        passed = tile.worker_contexts * _NOTED_SLOTS + (self.here - mine) * self.skip
        supervisor = tile.supervisor_vertex_cycles
        return shared_vertex_cycles(self.machine, supervisor, 2 * self.start + noted + passed)


def _kept(own: Array, new: Array) -> Array:
    """Return an owned array that holds the new values: changed in place, or copied back."""
    if not same_memory(own, new):
        own[...] = new
    return own
