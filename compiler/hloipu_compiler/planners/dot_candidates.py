"""Candidate splits of a dot product: parts of batch, rows, columns and depth, as arrays."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.program.mapping import Sizes

Amounts = NDArray[np.int64]

GRAIN = 16
"""Results that the AMP makes at once (graphcore/poplibs: lib/poplin/PerformanceEstimation.hpp)."""

DEPTH_GRAIN = 8
"""Pieces of the depth are multiples of this, the input channels that the AMP takes in at once."""

_CANDIDATES_PER_OCTAVE = 8
"""Numbers of parts that are tried between a power of two and the next, above the first ones."""


class Candidates(NamedTuple):
    """Numbers of parts; entries of the arrays are candidates."""

    batch: Amounts
    rows: Amounts
    columns: Amounts
    depth: Amounts
    rows_grained: NDArray[np.bool_]
    """Whether blocks of rows, not of columns, are multiples of what the AMP makes at once."""

    def at(self, place: int) -> "Candidate":
        """Return one candidate."""
        return Candidate(*(array[place].item() for array in self))


class Candidate(NamedTuple):
    """Numbers of parts of one candidate."""

    batch: int
    rows: int
    columns: int
    depth: int
    rows_grained: bool


@lru_cache(1 << 10)
def candidates_of(tiles: int, batch: int, rows: int, columns: int, pieces: int) -> Candidates:
    """Return the candidates for a number of tiles, each of which has at most one part.

    `pieces`: the most pieces that the depth may be cut into.
    """
    rows, columns = max(1, rows), max(1, columns)
    cuts: list[tuple[int, int, int, bool]] = []
    listed: list[Amounts] = []
    for b in _batches(batch, tiles):
        for d in _numbers(min(tiles // b, pieces)).tolist():
            left = tiles // (b * d)
            for of_rows in (True, False):
                cuts.append((b, d, left, of_rows))
                listed.append(_numbers(min(left, rows if of_rows else columns)))
    each = np.array(cuts, np.int64).repeat([len(x) for x in listed], axis=0)
    batches, depths, left_over, by_rows = each.T
    parts, first = np.concatenate(listed), by_rows == 1
    rest = np.minimum(left_over // parts, np.where(first, max(1, columns), max(1, rows)))
    candidates = [batches, np.where(first, parts, rest), np.where(first, rest, parts), depths]
    grained = np.arange(2 * len(parts)) >= len(parts)
    b2, r2, c2, d2 = (np.concatenate([x, x]) for x in candidates)
    return Candidates(b2, r2, c2, d2, grained)


def _batches(batch: int, tiles: int) -> list[int]:
    """Return numbers of parts of a batch: all of it, or halves and quarters of that."""
    most = min(max(1, batch), tiles)
    return sorted({max(1, -(-most // n)) for n in (1, 2, 4)})


@lru_cache(1 << 12)
def _numbers(most: int) -> Amounts:
    """Return numbers from 1 to `most`: all small ones, then fewer and fewer."""
    most = max(1, most)
    numbers = list(range(1, min(most, 2 * _CANDIDATES_PER_OCTAVE) + 1))
    step = 2
    while numbers[-1] < most:
        top = min(most, 2 * numbers[-1])
        numbers += range(numbers[-1] + step, top + 1, step)
        if numbers[-1] < top:
            numbers.append(top)
        step *= 2
    return np.array(numbers, np.int64)


def block_sizes(sizes: Sizes, parts: Amounts, grain: Amounts) -> tuple[Amounts, Amounts]:
    """Return elements of the largest part, and the number of parts, of several dimensions.

    Parts are spread over the dimensions, the first ones first; those of the last are multiples of a
    grain. `parts_of` does the same for one candidate.
    """
    block, count = np.ones_like(parts), np.ones_like(parts)
    left = parts
    for number, size in enumerate(sizes):
        here = np.minimum(left, size)
        each = -(-size // np.maximum(here, 1))
        if number == len(sizes) - 1:
            each = -(-each // grain) * grain
        each = np.minimum(each, size)
        pieces = -(-size // np.maximum(each, 1))
        block, count = block * each, count * pieces
        left = np.maximum(1, left // np.maximum(here, 1))
    return block, count


def parts_of(sizes: Sizes, first: int, parts: int, grain: int) -> list[tuple[int, int, int]]:
    """Return label, parts and grain of several dimensions, the first of which has label `first`."""
    label_parts = []
    for number, size in enumerate(sizes):
        here = min(parts, size)
        label_parts.append((first + number, here, grain if number == len(sizes) - 1 else 1))
        parts = max(1, parts // max(1, here))
    return label_parts
