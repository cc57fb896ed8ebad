"""Packed sequences: several sequences in the rows of one batch."""

from dataclasses import dataclass
from itertools import pairwise

from hloipu_compiler.formulas.text import Value
from hloipu_compiler.vendor.attention_masks import Band, Mask, Segments


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
