"""Blocks of arrays in a program for one device: their shapes, moves, masks and neighbours' rows.

A dimension of n elements in T blocks has blocks of s = ceil(n / T); what is beyond the end is
padding, whose elements mean nothing. Whoever combines elements along a dimension masks it first.
Rows that other blocks have come by collective-permutes of just these rows, or by a gather where
that is less. Source: openxla/xla `xla/service/spmd/spmd_partitioner_util.cc` (ExchangeHalo).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from hloipu_compiler.ir.attributes import Attributes, PaddingDimension, SliceRange, Value
from hloipu_compiler.ir.graph import Instruction
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.shapes import ArrayShape, array_shape
from hloipu_compiler.partition.spmd.reshard_steps import Paths, Piece, State
from hloipu_compiler.partition.spmd.resharding import Axes, Resharding, Split
from hloipu_compiler.passes.algebra.expand_bitcasts import plain
from hloipu_compiler.passes.framework.rewriting import Draft
from hloipu_runtime.element_types import ELEMENT_TYPES, ElementType
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.kernels.core.monoids import identity
from hloipu_runtime.kernels.core.storage import storage_dtype

S32, PRED = ELEMENT_TYPES["s32"], ELEMENT_TYPES["pred"]


@dataclass(frozen=True, slots=True)
class Block:
    """One array of the new program."""

    at: int
    split: Split
    partial: Axes = ()
    """Along which devices hold partial results."""
    reducer: str = ""
    """The computation that combines them."""
    sums: bool = False
    """Whether it adds them up."""

    @property
    def state(self) -> State:
        """How it is divided, and along which parts it is partial."""
        return State(self.split, self.partial)


@dataclass(frozen=True, slots=True)
class Along:
    """A dimension of an array that is divided into blocks."""

    d: int
    size: int
    """Of the whole array."""
    parts: Axes
    count: int
    """Of blocks."""

    @property
    def block(self) -> int:
        """Elements of a block along the dimension."""
        return -(-self.size // self.count)

    @property
    def is_even(self) -> bool:
        """Whether no block has padding."""
        return self.size % self.count == 0

    @property
    def lengths(self) -> Any:
        """How many elements of each block are no padding."""
        return np.clip(self.size - self.starts, 0, self.block)

    @property
    def starts(self) -> Any:
        """Where each block starts in the whole array."""
        return np.arange(self.count) * self.block


@dataclass(frozen=True, slots=True)
class Reads:
    """The rows of a whole array that each block of another one reads."""

    starts: Any
    """Of each block, of any sign."""
    length: int
    needed: Any
    """How many of these rows each block needs: none for what is but padding."""

    @staticmethod
    def by(result: Along, begin: int, stride: int = 1, span: int = 1) -> "Reads":
        """Return what blocks of a result read, whose rows read `span` rows `stride` apart.

        `begin`: where the first row of the whole result begins to read.
        """
        needed = np.where(result.lengths > 0, (result.lengths - 1) * stride + span, 0)
        length = (result.block - 1) * stride + span
        return Reads(begin + result.starts * stride, length, needed)


class Blocks:
    """Writes what blocks need beyond the ops themselves into a draft."""

    def __init__(
        self,
        draft: Draft,
        paths: Paths,
        channels: Iterator[int],
        combiner: Callable[[str, ElementType], str],
    ) -> None:
        self.draft, self.axes = draft, paths.axes
        self.reshards = Resharding(draft, paths, channels)
        self.channels = channels
        self.combiner = combiner
        """Returns the name of a computation that applies an op to two scalars of a type."""
        self.made: dict[object, int] = {}
        """Scalars and rows that are asked for again and again, by what they are."""
        self.fetched: dict[object, tuple[Any, int]] = {}
        """Rows of other blocks, and where they begin, by the array and the ranges."""

    # ---- shapes -----------------------------------------------------------------------------

    def local(self, shape: ArrayShape, split: Split) -> ArrayShape:
        """Return the shape of one device's block."""
        extents = map(self.axes.extent, split)
        sizes = tuple(-(-n // count) for n, count in zip(shape.dimensions, extents, strict=True))
        return plain(shape.element_type, sizes)

    def along(self, shape: ArrayShape, d: int, parts: Axes) -> Along:
        """Return a dimension of a whole array and the parts that divide it."""
        return Along(d, shape.dimensions[d], parts, self.axes.extent(parts))

    def shape(self, at: int) -> ArrayShape:
        """Return the shape of a new array."""
        return array_shape(self.draft.shape(at))

    # ---- moves ------------------------------------------------------------------------------

    def moved(self, like: Instruction, block: Block, whole: ArrayShape, split: Split) -> int:
        """Return a block of another split of the same whole array.

        Padded to a multiple of blocks, a dimension is one that divides evenly. Only where the
        padding of two splits differs is the dimension made whole in between.
        """
        at, old = block.at, block.split
        if block.state == State(split):
            return at
        sizes = whole.dimensions
        before, after = self._padded(sizes, old), self._padded(sizes, split)
        if before == after == list(sizes):
            return self.reshards.resharded(like, at, block.state, split, block.reducer)
        at = self.reshards.resharded(like, at, block.state, old, block.reducer)
        between = tuple(
            () if m != n and a and b else a
            for a, b, m, n in zip(old, split, before, after, strict=True)
        )
        if between != old:
            at = self.reshards.resharded(like, at, State(old), between)
            each = zip(old, between, before, sizes, strict=True)
            cut = [n if a and not b else m for a, b, m, n in each]
            at = self.resized(like, at, self._blocks(cut, between))
            old, before = between, self._padded(sizes, between)
        at = self.resized(like, at, self._blocks(
            [m if a else n for a, m, n in zip(old, before, after, strict=True)], old
        ))  # fmt: skip
        at = self.reshards.resharded(like, at, State(old), split)
        final = [m if b else n for b, m, n in zip(split, after, sizes, strict=True)]
        return self.resized(like, at, self._blocks(final, split))

    def _padded(self, sizes: Sequence[int], split: Split) -> list[int]:
        """Return the sizes with padding, multiples of the numbers of blocks."""
        counts = map(self.axes.extent, split)
        return [-(-n // count) * count for n, count in zip(sizes, counts, strict=True)]

    def _blocks(self, sizes: Sequence[int], split: Split) -> list[int]:
        counts = map(self.axes.extent, split)
        return [n // count for n, count in zip(sizes, counts, strict=True)]

    def resized(self, like: Instruction, at: int, sizes: Sequence[int]) -> int:
        """Return an array cut or padded with zeros at the ends of its dimensions."""
        shape = self.shape(at)
        own = shape.dimensions
        if tuple(sizes) == own:
            return at
        cut = tuple(map(min, own, sizes))
        if cut != own:
            ranges = tuple(SliceRange(0, n) for n in cut)
            at = self.add(like, "slice", shape.element_type, cut, (at,), slice=ranges)
        if cut != tuple(sizes):
            zero = self.constant(like, shape.element_type, 0)
            rows = tuple(PaddingDimension(0, n - m) for m, n in zip(cut, sizes, strict=True))
            at = self.add(like, "pad", shape.element_type, tuple(sizes), (at, zero), padding=rows)
        return at

    # ---- ops --------------------------------------------------------------------------------

    def add(
        self,
        like: Instruction,
        opcode: str,
        kind: ElementType,
        sizes: Sequence[int],
        operands: Sequence[int] = (),
        **attributes: Value,
    ) -> int:
        """Append an op of an array."""
        shape = plain(kind, tuple(sizes))
        return self.draft.add(like, opcode, shape, operands, Attributes(attributes))

    def apply(self, like: Instruction, opcode: str, *operands: int, **attributes: Value) -> int:
        """Append an elementwise op of arrays of one shape."""
        shape = self.shape(operands[-1])
        kind = PRED if opcode == "compare" else shape.element_type
        return self.add(like, opcode, kind, shape.dimensions, operands, **attributes)

    def constant(self, like: Instruction, kind: ElementType, value: object) -> int:
        """Return a scalar or an array of numbers."""
        array = np.asarray(value).astype(storage_dtype(kind.name))
        key = ("constant", kind.name, array.shape, array.tobytes())
        if key not in self.made:
            literal = Literal(array=array)
            self.made[key] = self.draft.add(
                like, "constant", plain(kind, array.shape), literal=literal
            )
        return self.made[key]

    def neutral(self, like: Instruction, monoid: str, kind: ElementType) -> int:
        """Return the scalar that changes nothing that it is combined with."""
        return self.constant(like, kind, identity(monoid, storage_dtype(kind.name)))

    def spread(self, like: Instruction, at: int, sizes: Sequence[int], *dimensions: int) -> int:
        """Return an array repeated along all dimensions but those."""
        shape = self.shape(at)
        if shape.dimensions == tuple(sizes):
            return at
        kind = shape.element_type
        return self.add(like, "broadcast", kind, sizes, (at,), dimensions=dimensions)

    def cut(self, like: Instruction, at: int, d: int, start: int, length: int) -> int:
        """Return some rows of a dimension."""
        shape = self.shape(at)
        sizes = shape.dimensions
        if (start, length) == (0, sizes[d]):
            return at
        ranges = [SliceRange(0, n) for n in sizes]
        ranges[d] = SliceRange(start, start + length)
        cut = tuple(r.limit - r.start for r in ranges)
        return self.add(like, "slice", shape.element_type, cut, (at,), slice=tuple(ranges))

    def cut_at(self, like: Instruction, at: int, d: int, start: int, length: int) -> int:
        """Return some rows of a dimension from a start that the program computes."""
        shape = self.shape(at)
        zero = self.constant(like, self.shape(start).element_type, 0)
        begins = [start if i == d else zero for i in range(len(shape.dimensions))]
        sizes = tuple(length if i == d else n for i, n in enumerate(shape.dimensions))
        return self.add(
            like, "dynamic-slice", shape.element_type, sizes, (at, *begins),
            dynamic_slice_sizes=sizes,
        )  # fmt: skip

    def extended(
        self, like: Instruction, at: int, d: int, padding: tuple[int, int], fill: int | None = None
    ) -> int:
        """Return an array with more rows before and behind those of a dimension."""
        if padding == (0, 0):
            return at
        shape = self.shape(at)
        sizes = list(shape.dimensions)
        sizes[d] += sum(padding)
        rows = [PaddingDimension(0, 0)] * len(sizes)
        rows[d] = PaddingDimension(*padding)
        fill = self.constant(like, shape.element_type, 0) if fill is None else fill
        return self.add(like, "pad", shape.element_type, sizes, (at, fill), padding=tuple(rows))

    def reduced(
        self, like: Instruction, at: int, dimensions: Sequence[int], init: int, reducer: str
    ) -> int:
        """Return an array reduced along some dimensions."""
        shape = self.shape(at)
        kept = tuple(n for d, n in enumerate(shape.dimensions) if d not in dimensions)
        stated: dict[str, Value] = {"dimensions": tuple(dimensions), "to_apply": reducer}
        attributes = Attributes(stated, (reducer,))
        return self.draft.add(
            like, "reduce", plain(shape.element_type, kept), (at, init), attributes
        )

    # ---- numbers of blocks ------------------------------------------------------------------

    def by_block(self, like: Instruction, parts: Axes, values: Any, kind: ElementType = S32) -> int:
        """Return what a table has for this device's number of block: a scalar or a row."""
        values = np.asarray(values).astype(storage_dtype(kind.name))
        if (values == values[:1]).all():
            return self.constant(like, kind, values[0])
        key = ("row", parts, kind.name, values.shape, values.tobytes())
        if key not in self.made:
            table = np.empty((self.axes.device_count, *values.shape[1:]), values.dtype)
            table[self.reshards.devices] = values[self.reshards.numbers(parts)]
            self.made[key] = self.reshards.looked_up(like, kind, table)
        return self.made[key]

    # ---- masks ------------------------------------------------------------------------------

    def rows(self, like: Instruction, length: int) -> int:
        """Return the numbers of rows."""
        key = ("rows", length)
        if key not in self.made:
            self.made[key] = self.add(like, "iota", S32, (length,), iota_dimension=0)
        return self.made[key]

    def rows_between(
        self, like: Instruction, length: int, low: int | None, high: int | None
    ) -> int | None:
        """Return which of some rows lie between scalars: at `low` or after, before `high`."""
        rows, is_between = self.rows(like, length), None
        for bound, direction in ((low, "GE"), (high, "LT")):
            if bound is not None:
                limit = self.spread(like, bound, (length,))
                is_in = self.apply(like, "compare", rows, limit, direction=direction)
                is_between = (
                    is_in if is_between is None else self.apply(like, "and", is_between, is_in)
                )
        return is_between

    def kept(self, like: Instruction, at: int, d: int, rows: int | None, fill: int) -> int:
        """Return an array with a scalar in place of the rows of a dimension that are not kept."""
        if rows is None:
            return at
        sizes = self.shape(at).dimensions
        keep = self.spread(like, rows, sizes, d)
        return self.apply(like, "select", keep, at, self.spread(like, fill, sizes))

    def masked(self, like: Instruction, at: int, along: Along, fill: int) -> int:
        """Return a block with a scalar in place of its padding."""
        if along.is_even:
            return at
        high = self.by_block(like, along.parts, along.lengths)
        rows = self.rows_between(like, along.block, None, high)
        return self.kept(like, at, along.d, rows, fill)

    # ---- rows of other blocks ---------------------------------------------------------------

    def window(
        self, like: Instruction, at: int, along: Along, reads: Reads, fill: int | None = None
    ) -> int:
        """Return the rows of the whole array that each block reads.

        Rows outside of the array are `fill`, a scalar of the program; None: anything.
        """
        size, starts, length = along.size, reads.starts, reads.length
        low, high = np.maximum(starts, 0), np.minimum(starts + reads.needed, size)
        real = low < high
        shape = self.shape(at)
        if not real.any():
            sizes = [length if d == along.d else n for d, n in enumerate(shape.dimensions)]
            fill = self.constant(like, shape.element_type, 0) if fill is None else fill
            return self.spread(like, fill, sizes)
        key = (at, along, low.tobytes(), high.tobytes())
        if key not in self.fetched:
            self.fetched[key] = self._around(like, at, along, low, high)
        begins, at = self.fetched[key]
        first = int(np.flatnonzero(real)[0])
        offsets = np.where(real, starts - begins, (starts - begins)[first])
        row_count = self.shape(at).dimensions[along.d]
        before = max(0, -int(offsets.min()))
        behind = max(0, int(offsets.max()) + length - row_count)
        at = self.extended(like, at, along.d, (before, behind), fill)
        offsets = offsets + before
        if (offsets == offsets[0]).all():
            at = self.cut(like, at, along.d, int(offsets[0]), length)
        else:
            start = self.by_block(like, along.parts, offsets)
            at = self.cut_at(like, at, along.d, start, length)
        if fill is None or not ((starts < 0) | (starts + length > size)).any():
            return at
        bounds = (np.clip(-starts, 0, length), np.clip(size - starts, 0, length))
        limits = [
            self.by_block(like, along.parts, bound) if (bound != full).any() else None
            for bound, full in zip(bounds, (0, length), strict=True)
        ]
        return self.kept(like, at, along.d, self.rows_between(like, length, *limits), fill)

    def _around(
        self, like: Instruction, at: int, along: Along, low: Any, high: Any
    ) -> tuple[Any, int]:
        """Return rows that have those from `low` to `high`, and where they begin.

        Blocks are counted from each block's own on, or from the one as far from the other end (of a
        reversal that is the only one), or from the first that is read: which sends least.
        """
        block, count, d = along.block, along.count, along.d
        real, every = low < high, np.arange(count)

        def pieces_from(own: Any) -> list[Piece]:
            first = int((low // block - own)[real].min())
            last = int(((high - 1) // block - own)[real].max())
            pieces = []
            for step in range(first, last + 1):
                base = (own + step) * block
                begin, end = np.clip(low - base, 0, block), np.clip(high - base, 0, block)
                needed = real & (begin < end)
                begins = 0 if step > first else int(begin[needed].min())
                length = (block if step < last else int(end[needed].max())) - begins
                starts = np.full(count, begins)
                if first == last and (longest := int((end - begin)[needed].max())) < length:
                    length, starts = longest, np.minimum(begin, block - longest)
                pieces.append(Piece(starts[needed], length, (own + step)[needed], every[needed]))
            return pieces

        def sent(pieces: list[Piece]) -> tuple[int, int]:
            permutes = [piece.permutes for piece in pieces]
            return sum(p.length * n for p, n in zip(pieces, permutes, strict=True)), sum(permutes)

        ways = [(pieces_from(own), own) for own in (every, every[::-1])]
        ways.append((pieces_from(np.where(real, low // block, every)), low // block))
        pieces, own = min(ways, key=lambda way: sent(way[0]))
        rows, permutes = sent(pieces)
        if rows >= (count - 1) * block or permutes > max(2, count // 2) + 1:
            return np.zeros(count, np.int64), self.reshards.gathered(like, at, d, along.parts)
        first = pieces[0]
        step = int((first.sources - own[first.targets])[0])
        where = (own + step) * block + int(first.starts[0])
        where[first.targets] = first.sources * block + first.starts
        fetched = [self._piece(like, at, along, piece) for piece in pieces]
        if len(fetched) == 1:
            return where, fetched[0]
        shape = self.shape(at)
        sizes = list(shape.dimensions)
        sizes[d] = sum(piece.length for piece in pieces)
        joined = self.add(like, "concatenate", shape.element_type, sizes, fetched, dimensions=(d,))
        return where, joined

    def _piece(self, like: Instruction, at: int, along: Along, piece: Piece) -> int:
        """Return the rows of a piece where they are read; anything on other blocks."""
        fetched = None
        for chosen in piece.rounds:
            starts = np.full(along.count, piece.starts[0] if len(piece.starts) else 0)
            starts[piece.sources[chosen]] = piece.starts[chosen]
            if (starts == starts[0]).all():
                cut = self.cut(like, at, along.d, int(starts[0]), piece.length)
            else:
                start = self.by_block(like, along.parts, starts)
                cut = self.cut_at(like, at, along.d, start, piece.length)
            sources, targets = piece.sources[chosen], piece.targets[chosen]
            rows = self.from_blocks(like, cut, along, sources, targets)
            if fetched is None:
                fetched = rows
                continue
            is_target = np.isin(np.arange(along.count), targets)
            here = self.by_block(like, along.parts, is_target, PRED)
            sizes = self.shape(rows).dimensions
            fetched = self.apply(like, "select", self.spread(like, here, sizes), rows, fetched)
        assert fetched is not None
        return fetched

    def from_blocks(
        self, like: Instruction, at: int, along: Along, sources: Any, targets: Any
    ) -> int:
        """Return on target blocks what source blocks have, pair by pair; on others anything."""
        if np.array_equal(sources, targets):
            return at
        lines = self.reshards.lines(along.parts)
        pairs = zip(*(lines[:, ends].reshape(-1).tolist() for ends in (sources, targets)),
                    strict=True)  # fmt: skip
        shape = self.shape(at)
        return self.add(
            like, "collective-permute", shape.element_type, shape.dimensions, (at,),
            channel_id=next(self.channels), source_target_pairs=tuple(sorted(pairs)),
        )  # fmt: skip
