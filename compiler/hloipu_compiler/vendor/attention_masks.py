"""Attention masks: diagonal bands, padded lengths, segments of packed sequences."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from hloipu_compiler.formulas.text import Value


@dataclass(frozen=True, slots=True)
class Band:
    """Keys j of query i with -left <= j - i - shift <= right; -1: without end."""

    left: int = -1
    right: int = -1
    from_end: bool = False
    """Whether the last query stands at the last key, not the first at the first."""

    @property
    def sees_all(self) -> bool:
        """Whether every key is within."""
        return self.left < 0 and self.right < 0

    def reaches_all(self, queries: int, keys: int) -> bool:
        """Whether every query of so many has a key."""
        shift = keys - queries if self.from_end else 0
        first = shift - self.left if self.left >= 0 else 0
        last = shift + self.right if self.right >= 0 else keys - 1
        whole_right = self.right >= 0
        whole_left = self.left >= 0
        # The first query ends first, the last query begins last.
        return (not whole_right or last >= 0) and (
            not whole_left or first + queries - 1 <= keys - 1
        )

    def within(self, distance: Value) -> Value | None:
        """Return where a key's position less its query's, and the shift, is within."""
        is_within = None
        if self.right >= 0:
            is_within = distance.compared("LE", self.right)
        if self.left >= 0:
            near = distance.compared("GE", -self.left)
            is_within = near if is_within is None else is_within & near
        return is_within


@dataclass(frozen=True, slots=True)
class Segments:
    """Segment of each query and key, s32[batch, tokens], from 1, and the place in it."""

    query: Value
    query_place: Value
    """Less the shift of its segment, where bands count from the end."""
    key: Value
    key_place: Value


@dataclass(frozen=True, slots=True)
class Mask:
    """Which keys each query sees."""

    band: Band
    queries: int
    keys: int
    lengths: tuple[Value, Value] | None = None
    """s32[batch]: queries and keys of each sample that are no padding."""
    segments: Segments | None = None

    def arrays(self) -> tuple[Value, ...]:
        """Return what data it depends on."""
        parts = self.segments
        segments = (
            () if parts is None else (parts.query, parts.query_place, parts.key, parts.key_place)
        )
        return (*(self.lengths or ()), *segments)

    def of(self, arrays: Sequence[Value]) -> "Mask":
        """Return the mask with its data in other places."""
        lengths = None if self.lengths is None else (arrays[0], arrays[1])
        segments = None if self.segments is None else Segments(*arrays[-4:])
        return replace(self, lengths=lengths, segments=segments)

    @property
    def is_empty_for_some(self) -> bool:
        """Whether a query may see no key."""
        if self.lengths is not None or self.segments is not None:
            return True
        return not self.band.reaches_all(self.queries, self.keys)

    def visible(self, rows: Value) -> Value | None:
        """Return truth values [1 or batch, rows, keys] for queries s32[rows]; None: all is seen."""
        if self.segments is not None:
            return self._within_segments(self.segments, rows)
        if self.lengths is not None:
            return self._within_lengths(self.lengths, rows)
        if self.band.sees_all:
            return None
        dims = (1, rows.dims[0], self.keys)
        column = rows.text.iota("s32", dims, 2)
        row = rows.broadcast(dims, (1,))
        if self.band.from_end:
            row = row + (self.keys - self.queries)
        return self.band.within(column - row)

    def _within_lengths(self, lengths: tuple[Value, Value], rows: Value) -> Value:
        queries, keys = lengths
        dims = (queries.dims[0], rows.dims[0], self.keys)
        column = rows.text.iota("s32", dims, 2)
        row = rows.broadcast(dims, (1,))
        visible = row.compared("LT", queries.broadcast(dims, (0,)))
        visible = visible & column.compared("LT", keys.broadcast(dims, (0,)))
        if self.band.from_end:
            row = row + (keys - queries).broadcast(dims, (0,))
        near = None if self.band.sees_all else self.band.within(column - row)
        return visible if near is None else visible & near

    def _within_segments(self, segments: Segments, rows: Value) -> Value:
        batch = segments.query.dims[0]
        dims = (batch, rows.dims[0], self.keys)
        query = taken_rows(segments.query, rows, 1).broadcast(dims, (0, 1))
        visible = query.compared("EQ", segments.key.broadcast(dims, (0, 2)))
        visible = visible & query.compared("GT", 0)
        if self.band.sees_all:
            return visible
        place = taken_rows(segments.query_place, rows, 1).broadcast(dims, (0, 1))
        near = self.band.within(segments.key_place.broadcast(dims, (0, 2)) - place)
        return visible if near is None else visible & near


def taken_rows(x: Value, rows: Value, dimension: int) -> Value:
    """Return consecutive rows of an array, s32[rows] of them; the array, where that is all."""
    count = rows.dims[0]
    if count == x.dims[dimension]:
        return x
    first = rows.sliced(0, 0, 1).reshaped(())
    zero = x.text.number("s32", 0)
    starts = ", ".join(first.name if d == dimension else zero.name for d in range(x.rank))
    dims = [count if d == dimension else n for d, n in enumerate(x.dims)]
    attributes = f"dynamic_slice_sizes={{{','.join(map(str, dims))}}}"
    return x.text.add("dynamic-slice", x.kind, dims, f"{x.name}, {starts}", attributes)


@dataclass(frozen=True, slots=True)
class Sequences:
    """Lengths and first tokens, counted through all rows, of sequences of queries and of keys.

    s32[sequences] each; a length of 0 or less: none. The n-th sequence of queries sees the n-th of
    keys.
    """

    batch: int
    queries: int
    keys: int
    lengths: tuple[Value, Value]
    starts: tuple[Value, Value]

    def mask(self, band: Band) -> Mask:
        """Return what each token sees: its own sequence, within a band."""
        shift = self.lengths[1] - self.lengths[0] if band.from_end else None
        segments = Segments(
            *self._placed(0, self.queries, shift), *self._placed(1, self.keys, None)
        )
        return Mask(band, self.queries, self.keys, segments=segments)

    def _placed(self, side: int, tokens: int, shift: Value | None) -> tuple[Value, Value]:
        """Return for s32[batch, tokens] in which sequence each is, from 1, and its place there."""
        starts, lengths = self.starts[side], self.lengths[side]
        text = starts.text
        dims = (self.batch * tokens, starts.dims[0])
        token = text.iota("s32", dims, 0)
        start, length = (value.broadcast(dims, (1,)) for value in (starts, lengths))
        inside = token.compared("GE", start) & token.compared("LT", start + length)
        number = text.iota("s32", dims, 1) + 1
        sequence = inside.select(number, 0, number).reduced("maximum", [1], 0)
        origin = start if shift is None else start - shift.broadcast(dims, (1,))
        place = inside.select(token - origin, 0, token).reduced("add", [1], 0)
        return sequence.reshaped((self.batch, tokens)), place.reshaped((self.batch, tokens))

    def checked(self, x: Value) -> Value:
        """Return an array, or no numbers where a sequence does not lie in one row of the batch.

        Scores are made row by row: a sequence that goes on in the next would see too little.
        """
        rows: list[Value] = []
        for start, length, size in zip(
            self.starts, self.lengths, (self.queries, self.keys), strict=True
        ):  # fmt: skip
            rows += [start / float(size), (start + length - 1.0) / float(size)]
        unused = self.lengths[0].compared("LE", 0.0) | self.lengths[1].compared("LE", 0.0)
        same = rows[0].compared("EQ", rows[1])
        for row_of_start, end in pairwise(rows[1:]):
            same = same & row_of_start.compared("EQ", end)
        fits = (same | unused).converted("s32").reduced("minimum", [0], 1).compared("EQ", 1)
        return fits.broadcast(x.dims, ()).select(x, float("nan"), x)
