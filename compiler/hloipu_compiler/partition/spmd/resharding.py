"""Moves values from one sharding to another, by slices and collectives, and adds partial results.

A block is cut out at starts that a table has for the partition's number; blocks are gathered along
their own dimension.
"""

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from hloipu_compiler.ir.attributes import Attributes, ReplicaGroups, Value
from hloipu_compiler.ir.graph import Instruction
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.shapes import ArrayShape, array_shape
from hloipu_compiler.partition.spmd.axes import bits
from hloipu_compiler.partition.spmd.reshard_steps import Axes as Axes
from hloipu_compiler.partition.spmd.reshard_steps import Move, Paths, State, Step
from hloipu_compiler.partition.spmd.reshard_steps import Split as Split
from hloipu_compiler.passes.algebra.expand_bitcasts import plain, reshaped, transposed
from hloipu_compiler.passes.framework.rewriting import Draft
from hloipu_runtime.element_types import ELEMENT_TYPES, ElementType

Splits = tuple[Split, ...]
"""Of each leaf of a value."""


class Resharding:
    """Writes reshards into a draft; each channel is used once."""

    def __init__(self, draft: Draft, paths: Paths, channels: Iterator[int]) -> None:
        self.draft, self.paths, self.channels = draft, paths, channels
        self.axes = axes = paths.axes
        self.places = np.arange(axes.device_count)
        self.devices = np.asarray(axes.devices or self.places)
        self.versions: dict[tuple[int, State], dict[State, int]] = {}
        """Of values, by position and sharding: all shardings they have had, and where.

        At the border of a manual region one position is two values: a block inside, and a whole.
        """
        self.sent_bytes = 0.0
        """By each device, in reshards."""

    def resharded(
        self, like: Instruction, at: int, old: State, new: Split, reducer: str = ""
    ) -> int:
        """Return the position of a value with another sharding, of which nothing is partial.

        It is made from the sharding that the value has already had from which least is sent.
        `reducer`: the computation that combines partial results.
        """
        if old == State(new):
            return at
        known = self.versions.setdefault((at, old), {old: at})
        if State(new) not in known:
            whole = self._whole(at, old.split)
            state = min(known, key=lambda each: self.paths.steps(whole, each, new).share)
            at = known[state]
            moves, share = self.paths.steps(whole, state, new)
            element_bytes = self._shape(at).element_type.bits / 8
            self.sent_bytes += share * prod(whole) * element_bytes
            for step in moves:
                at = self._step(like, at, state, step, reducer)
                state = step.after
                known[state] = at
                self.versions[at, state] = known
        return known[State(new)]

    def _step(self, like: Instruction, at: int, before: State, step: Step, reducer: str) -> int:
        kind, d, target, parts, after = step
        if kind is Move.CUT:
            return self._cut(like, at, d, parts)
        if kind is Move.PERMUTE:
            return self._permuted(like, at, before.split, after.split)
        if kind is Move.EXCHANGE:
            return self._exchanged(like, at, (d, target), parts)
        if kind is Move.GATHER:
            return self.gathered(like, at, d, parts)
        if kind is Move.SCATTER:
            return self._scattered(like, at, d, parts, reducer)
        return self._reduced(like, at, parts, reducer)

    def _shape(self, at: int) -> ArrayShape:
        return array_shape(self.draft.shape(at))

    def _whole(self, at: int, split: Split) -> tuple[int, ...]:
        """Return the sizes of a value of which one device's block stands at a position."""
        shape = self._shape(at)
        extents = map(self.axes.extent, split)
        return tuple(n * count for n, count in zip(shape.dimensions, extents, strict=True))

    def _permuted(self, like: Instruction, at: int, old: Split, new: Split) -> int:
        """Send each device's block to the one that is to have it."""
        sources, targets = (
            np.lexsort([self.numbers(parts) for parts in (*split, self._others(split))])
            for split in (old, new)
        )
        pairs = sorted(
            zip(self.devices[sources].tolist(), self.devices[targets].tolist(), strict=True)
        )
        attributes: dict[str, Value] = {
            "channel_id": next(self.channels),
            "source_target_pairs": tuple(pairs),
        }
        shape = self.draft.shape(at)
        return self.draft.add(like, "collective-permute", shape, (at,), Attributes(attributes))

    def _others(self, split: Split) -> Axes:
        """Return the parts that divide nothing."""
        used = bits(p for parts in split for p in parts)
        return tuple(p for p in range(len(self.axes.sizes)) if not used >> p & 1)

    def numbers(self, parts: Axes) -> Any:
        """Return for each place the number of its block along some parts."""
        numbers = np.zeros_like(self.places)
        for part in parts:
            size = self.axes.sizes[part]
            numbers = numbers * size + self.places // self.axes.strides[part] % size
        return numbers

    def _cut(self, like: Instruction, at: int, d: int, parts: Axes) -> int:
        """Return each device's own block along a dimension."""
        shape = self._shape(at)
        sizes = list(shape.dimensions)
        sizes[d] //= self.axes.extent(parts)
        starts = np.zeros(len(self.places), np.int32)
        starts[self.devices] = self.numbers(parts) * sizes[d]
        start = self.looked_up(like, ELEMENT_TYPES["s32"], starts)
        zero = self.draft.add(like, "constant", self.draft.shape(start), literal=Literal("0"))
        begins = [start if i == d else zero for i in range(len(sizes))]
        cut = Attributes({"dynamic_slice_sizes": tuple(sizes)})
        block = plain(shape.element_type, tuple(sizes))
        return self.draft.add(like, "dynamic-slice", block, (at, *begins), cut)

    def looked_up(self, like: Instruction, kind: ElementType, table: Any) -> int:
        """Return the scalar, or the row, that a table has for this device."""
        add, u32 = self.draft.add, ELEMENT_TYPES["u32"]
        own = table.shape[1:]
        me = add(like, "partition-id", plain(u32, ()))
        zeros = [add(like, "constant", plain(u32, ()), literal=Literal("0")) for _ in own]
        known = add(like, "constant", plain(kind, table.shape), literal=Literal(array=table))
        one = Attributes({"dynamic_slice_sizes": (1, *own)})
        at = add(like, "dynamic-slice", plain(kind, (1, *own)), (known, me, *zeros), one)
        return add(like, "reshape", plain(kind, own), (at,))

    def gathered(self, like: Instruction, at: int, d: int, parts: Axes) -> int:
        """Return the blocks of all devices along some parts, joined along a dimension."""
        shape = self._shape(at)
        sizes = list(shape.dimensions)
        sizes[d] *= self.axes.extent(parts)
        attributes = {**self._meeting(parts), "dimensions": (d,)}
        whole = plain(shape.element_type, tuple(sizes))
        return self.draft.add(like, "all-gather", whole, (at,), Attributes(attributes))

    def _exchanged(
        self, like: Instruction, at: int, dimensions: tuple[int, int], parts: Axes
    ) -> int:
        """Move some parts from the end of one dimension's to the end of another's."""
        i, j = dimensions
        shape = self._shape(at)
        sizes, count, kind = list(shape.dimensions), self.axes.extent(parts), shape.element_type
        attributes: dict[str, Value] = {**self._meeting(parts), "dimensions": (j,)}
        del attributes["use_global_device_ids"]  # An all-to-all has none: its ids are partitions.
        at = self.draft.add(like, "all-to-all", shape, (at,), Attributes(attributes))
        split = plain(kind, (*sizes[:j], count, sizes[j] // count, *sizes[j + 1 :]))
        at = reshaped(self.draft, like, at, split)
        order = [d + (d >= j) for d in range(len(sizes))]
        order.insert(i, j)
        at = transposed(self.draft, like, at, split, tuple(order))
        sizes[i] *= count
        sizes[j] //= count
        return reshaped(self.draft, like, at, plain(kind, tuple(sizes)))

    def _scattered(self, like: Instruction, at: int, d: int, parts: Axes, reducer: str) -> int:
        """Return each device's own block of partial results combined along some parts."""
        shape = self._shape(at)
        sizes = list(shape.dimensions)
        sizes[d] //= self.axes.extent(parts)
        attributes = {**self._meeting(parts), "dimensions": (d,), "to_apply": reducer}
        block = plain(shape.element_type, tuple(sizes))
        stated = Attributes(attributes, (reducer,))
        return self.draft.add(like, "reduce-scatter", block, (at,), stated)

    def _reduced(self, like: Instruction, at: int, parts: Axes, reducer: str) -> int:
        """Return partial results combined over all devices along some parts."""
        attributes = {**self._meeting(parts), "to_apply": reducer}
        stated = Attributes(attributes, (reducer,))
        return self.draft.add(like, "all-reduce", self.draft.shape(at), (at,), stated)

    def _meeting(self, parts: Axes) -> dict[str, Value]:
        """Return the attributes of a collective of devices that differ along some parts alone."""
        groups = self.lines(parts).tolist()
        return {
            "channel_id": next(self.channels),
            "replica_groups": ReplicaGroups(tuple(map(tuple, groups))),
            "use_global_device_ids": True,
        }

    def lines(self, parts: Axes) -> Any:
        """Return the devices that differ along some parts alone, by block, a row for each set."""
        others = tuple(p for p in range(len(self.axes.sizes)) if p not in parts)
        order = np.lexsort((self.numbers(parts), self.numbers(others)))
        return self.devices[order].reshape(-1, self.axes.extent(parts))
