"""Parts of one dimension in closed form against lists of their elements."""

from itertools import product

import numpy as np

from hloipu_runtime.costs.loads import Load, peaks
from hloipu_runtime.costs.parts import bounds, longest, owners_met, present
from hloipu_runtime.program.mapping import Span

WINDOWS = [(0, 9), (2, 7), (3, 3), (5, 4), (8, 9)]
SPANS = [
    Span(axis, step, offset, size)
    for axis, step, offset, size in product((-1, 0), (0, 1, 2, 3), (-4, -1, 0, 1, 5), (0, 1, 2, 4))
]


def parts(span: Span, extent: int, low: int, high: int) -> list[list[int]]:
    """Return the elements of each coordinate's part within a window."""
    starts = [n * (span.step if span.axis >= 0 else 0) + span.offset for n in range(extent)]
    return [[i for i in range(s, s + span.size) if low <= i < high] for s in starts]


def test_longest_part() -> None:
    for span, extent, (low, high) in product(SPANS, (1, 2, 5), WINDOWS):
        expected = max(map(len, parts(span, extent, low, high)))
        assert longest(span, extent, low, high) == expected, (span, extent, low, high)


def test_which_coordinates_have_a_part() -> None:
    for span, extent, (low, high) in product(SPANS, (1, 2, 5), WINDOWS):
        having = [n for n, part in enumerate(parts(span, extent, low, high)) if part]
        expected = (having[0], having[-1]) if having else (0, -1)
        assert present(span, extent, low, high) == expected, (span, extent, low, high)


def test_bounds_of_parts() -> None:
    for span, extent, (low, high) in product(SPANS, (1, 2, 5), WINDOWS):
        if low > high:
            continue
        count = 1 if span.axis < 0 else extent
        starts, ends = bounds(span, extent, low, high)
        assert len(starts) == len(ends) == count
        for n, part in enumerate(parts(span, count, low, high)):
            assert ends[n] - starts[n] == len(part)
            assert not part or (starts[n], ends[n]) == (part[0], part[-1] + 1)


def test_from_how_many_parts_a_range_is_put_together() -> None:
    """The parts hold all of the range; of two that overlap the later one gives its elements."""
    ranges = [(s, e) for s, e in product(range(9), repeat=2) if s <= e]
    starts, ends = np.array(ranges).T
    for step, extent in ((1, 9), (2, 5), (3, 3), (4, 3), (9, 1)):
        for offset, more in ((0, 0), (-1, 1), (-2, 2)):
            span = Span(0, step, offset, step + more)
            held = parts(span, extent, 0, 9)
            owner = {i: n for n, part in enumerate(held) for i in part}
            if len(owner) < 9:
                continue
            met = owners_met(span, extent, starts, ends).tolist()
            assert met == [len({owner[i] for i in range(s, e)}) for s, e in ranges]
    everywhere = owners_met(Span(-1, 0, 0, 9), 4, starts, ends).tolist()
    assert everywhere == [int(e > s) for s, e in ranges]


def test_peaks_of_loads() -> None:
    """Each tile's sum, tile by tile; the fullest one in each amount is among the peaks."""
    rng = np.random.default_rng(4)
    for count in (0, 1, 2, 3, 9):
        for _ in range(20):
            firsts = rng.integers(0, 8, count)
            loads = [
                Load(int(f), int(f + rng.integers(0, 5)), tuple(map(int, rng.integers(0, 9, 2))))
                for f in firsts
            ]
            sums = {
                tile: tuple(
                    sum(x.amounts[k] for x in loads if x.first <= tile <= x.last) for k in range(2)
                )
                for tile in sorted({x.first for x in loads})
            }
            assert {peak.tile: peak.amounts for peak in peaks(loads)} == sums
