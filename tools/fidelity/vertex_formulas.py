"""Cycles of poplibs's own vertices on one tile, by its formulas.

graphcore/poplibs 7eac0f26, under lib/: each function names file and line. `n` are elements of the
tile, `width` bytes of one.
"""

from typing import NamedTuple

_WORKERS = 6
_VECTOR_BYTES = 8
_TILES = 1472


class PoplibsEstimate(NamedTuple):
    """What poplibs takes for an op, by its own estimate."""

    cycles: int
    source: str
    """Files and lines, separated by semicolons."""


def _over(count: int, parts: int) -> int:
    return -(-count // parts)


def _vectors(n: int, width: int) -> int:
    """Return the vectors of the worker that has most."""
    return _over(_over(n, _WORKERS), _VECTOR_BYTES // width)


def unary(n: int, width: int, slots: int) -> PoplibsEstimate:
    """Return an op of one operand: `slots` of a vector as the table says."""
    return PoplibsEstimate(
        20 + _WORKERS * (17 + _vectors(n, width) * slots),
        "popops/popopsCycleEstimators.cpp:1543",
    )


def binary(n: int, width: int, slots: int = 3) -> PoplibsEstimate:
    """Return an op of two operands; addition and the like take 3 slots a vector."""
    return PoplibsEstimate(
        11 + _WORKERS * (26 + _vectors(n, width) * slots),
        "popops/popopsCycleEstimators.cpp:1615",
    )


def by_row(rows: int, length: int, width: int) -> PoplibsEstimate:
    """Return an addition or product of each row by a number of its own."""
    each = 7 + 2 * _over(length, _VECTOR_BYTES // width)
    return PoplibsEstimate(
        11 + _WORKERS * (15 + _over(rows, _WORKERS) * each),
        "popops/popopsCycleEstimators.cpp:293",
    )


def by_channel(rows: int, channels: int, width: int) -> PoplibsEstimate:
    """Return an addition or product of each column by a number of its own.

    Where there are few rows, writing the numbers out and adding them is faster.
    """
    blocks = _over(rows, _WORKERS)
    if width == 4:
        slots = 17 + 6 + channels * (8 + 2 * blocks)
    else:
        slots = 19 + 12 + _over(channels, 8) * (15 + 2 * (blocks - 1))
    found = PoplibsEstimate(
        13 + _WORKERS * slots, "popops/popopsCycleEstimators.cpp:1189, :697, :722"
    )
    return min(found, binary(rows * channels, width))


def reduce_rows(rows: int, length: int, width: int) -> PoplibsEstimate:
    """Return a reduction of each row to a number."""
    each = 12 + _over(length, _VECTOR_BYTES // width)
    return PoplibsEstimate(
        11 + _WORKERS * (17 + _over(rows, _WORKERS) * each),
        "popops/reduction/CycleEstimationFunctions.cpp:333",
    )


def reduce_columns(rows: int, columns: int, width: int) -> PoplibsEstimate:
    """Return a reduction of each column to a number: columns are dealt to the workers, or rows.

    Of rows each worker makes partials, which a second vertex adds.
    """
    lanes = 2 * _VECTOR_BYTES // width
    dealt = 11 + _WORKERS * (16 + _over(_over(columns, _WORKERS), lanes) * (16 + rows))
    turns = _over(columns, lanes)
    first, second = (16 + turns * (16 + n) for n in (_over(rows, _WORKERS), _WORKERS))
    shared = 22 + _WORKERS * (first + second)
    return PoplibsEstimate(min(dealt, shared), "popops/reduction/CycleEstimationFunctions.cpp:212")


def nonlinearity(n: int, width: int, slots: int) -> PoplibsEstimate:
    """Return a nonlinearity of popnn's: `slots` of a vector by getNonLinearityOpCycles."""
    return PoplibsEstimate(
        9 + _WORKERS * (23 + 2 * slots + (_vectors(n, width) - 1) * slots),
        "popnn/popnnCycleEstimators.cpp:72",
    )


def nonlinearity_gradient(n: int, width: int, slots: int) -> PoplibsEstimate:
    """Return a nonlinearity's gradient: `slots` of a vector by getNonLinearityGradOpCycles."""
    return PoplibsEstimate(
        9 + _WORKERS * (33 + (_vectors(n, width) - 1) * slots),
        "popnn/popnnCycleEstimators.cpp:148",
    )


def dropout(n: int, width: int) -> PoplibsEstimate:
    """Return a dropout that draws for itself."""
    turns = _over(n, _VECTOR_BYTES // width)
    return PoplibsEstimate(6 + 24 * _WORKERS + 2 * turns, "poprand/poprandCycleEstimators.cpp:125")


def scaled_add(n: int, width: int) -> PoplibsEstimate:
    """Return x + s * y."""
    turns = _vectors(n, width)
    return PoplibsEstimate(63 + _WORKERS * (25 + 3 * turns), "popops/PerformanceEstimation.cpp:473")


def by_scalar(n: int, width: int) -> PoplibsEstimate:
    """Return an addition or product with one number."""
    return PoplibsEstimate(
        11 + _WORKERS * (20 + _vectors(n, width) * 2), "popops/popopsCycleEstimators.cpp:125"
    )


def cast(n: int, slots: int, elements: int) -> PoplibsEstimate:
    """Return a cast of `slots` for so many elements."""
    turns = _over(_over(n, _WORKERS), elements)
    return PoplibsEstimate(
        12 + _WORKERS * (18 + 19 + turns * slots), "popops/PerformanceEstimation.cpp:195, :356"
    )


def select(n: int) -> PoplibsEstimate:
    """Return a choice, element by element: a vertex for each worker."""
    return PoplibsEstimate(
        _WORKERS * (5 + 6 + 5 * _over(n, _WORKERS)), "popops/popopsCycleEstimators.cpp:1664"
    )


def fill(n: int, width: int) -> PoplibsEstimate:
    """Return a fill by one worker of each six."""
    return PoplibsEstimate(
        _WORKERS * (26 + _vectors(n, width)), "popops/PerformanceEstimation.cpp:441"
    )


def dynamic_slice(n: int, count: int, width: int) -> PoplibsEstimate:
    """Return `count` slices of n elements."""
    copies = _over(n, _WORKERS) // (_VECTOR_BYTES // width)
    return PoplibsEstimate(
        25 + _WORKERS * (39 + (24 + 2 * copies) * count), "popops/popopsCycleEstimators.cpp:1755"
    )


def pool(results: int, taps: float, *, backward: bool) -> PoplibsEstimate:
    """Return pooling of so many halves in rows of 56, by the best number of channels a tile.

    Of a worker's row, each tap and each vector of channels is a loop over the positions, of 3 slots
    each, 5 for a maximum's gradient.
    """
    fixed, each = (10, 5) if backward else (7, 3)
    cycles = []
    for vectors in (1, 2, 4, 8, 16):
        positions = _over(results, 4 * vectors * _WORKERS)
        row = min(56, positions)
        item = 22 + vectors * (fixed + each * row)
        slots = 46 + vectors * positions + _over(positions, row) * (18 + taps * item)
        cycles.append(round(13 + _WORKERS * slots))
    return PoplibsEstimate(min(cycles), "popnn/PerformanceEstimation.hpp:127")


def bitonic(n: int, kept: int, *, values: bool) -> PoplibsEstimate:
    """Return a bitonic sort of rows, or of what is `kept` of each, over all tiles.

    Groups of `kept` are sorted in log2 * (log2 + 1) / 2 passes; where more than `kept` are in a
    row, pairs of groups are compared, the worse one dropped, and the other sorted in log2 passes.
    """
    steps = (kept - 1).bit_length()
    passes = [n] * (steps * (steps + 1) // 2)
    left = n
    while kept < 1000 and left > n // 1000 * kept:
        passes += [left] + [left // 2] * steps
        left //= 2
    each = 11 if values else 13
    cycles = sum(
        19 + _WORKERS * (57 + each * _over(_over(x, 2 * _TILES), _WORKERS)) for x in passes
    )
    return PoplibsEstimate(cycles, "popops/popopsCycleEstimators.cpp:2489; popops/BitonicTopK.cpp")


def lookup(rows: int, lookups: int, length: int, *, update: bool) -> PoplibsEstimate:
    """Return lookups in a table of f16, or the addition of rows to it, by the cheapest plan.

    The table is cut along rows and along each row. Every part of it looks at all lookups; those of
    one row are in one part. Candidates of the parts are sent to where results are, and chosen
    from; an update receives all rows that are added.
    """
    source = "popops/PerformanceEstimation.cpp:49, :124; popops/DynamicSlice.cpp"
    best = None
    for across in (x for x in range(1, length // 2 + 1) if length % x == 0):
        down = min(_TILES // across, rows)
        elements = length // across
        if update:
            hits = _over(_over(lookups, down), _WORKERS)
            slots = 33 + hits * (12 + 3 * (elements // 2 - 1)) + 5 * (lookups - hits)
            cycles = _WORKERS * slots + _exchange(lookups * elements * 2)
        else:
            offsets = _over(lookups, _WORKERS)
            hits = _over(offsets, down)
            cycles = _WORKERS * (30 + hits * (19 + elements) + 8 * (offsets - hits))
            if down > 1:
                # Each tile puts together its share of results, from the candidates of all parts.
                share = _over(lookups, down)
                cycles += _exchange(share * down * elements * 2)
                cycles += _WORKERS * (30 + _over(share, _WORKERS) * (19 + elements))
        best = min(best, cycles) if best else cycles
    return PoplibsEstimate(best or 0, source)


def lookup_in_rows(rows: int, length: int) -> PoplibsEstimate:
    """Return one element of each of a tile's rows: a slice of one element from each."""
    del length
    slots = 30 + _over(rows, _WORKERS) * (19 + 2)
    return PoplibsEstimate(_WORKERS * slots, "popops/PerformanceEstimation.cpp:49")


def loss(n: int, width: int) -> PoplibsEstimate:
    """Return the transform of probabilities into cross entropy and its gradient, by workers."""
    turns = _over(n, _WORKERS) // (1 if width == 4 else 2)
    return PoplibsEstimate(_WORKERS * (21 + 9 * turns), "popnn/PerformanceEstimation.hpp:94")


def _exchange(received_bytes: int) -> int:
    return _over(received_bytes, 4)


def all_of(parts: list[PoplibsEstimate], source: str = "") -> PoplibsEstimate:
    """Return vertices one after the other; `source`: where poplibs puts them together."""
    sources = [source, *(x.source for x in parts)] if source else [x.source for x in parts]
    return PoplibsEstimate(sum(x.cycles for x in parts), "; ".join(dict.fromkeys(sources)))
