"""Cycles of poplibs's own vertices on one tile, by its formulas.

graphcore/poplibs 7eac0f26, under lib/: each function names file and line. `n` are elements of the
tile, `width` bytes of one.
"""

from typing import NamedTuple

_WORKERS = 6
_VECTOR_BYTES = 8


class Library(NamedTuple):
    """What poplibs takes for an op, by its own estimate."""

    cycles: int
    source: str
    """Files and lines, separated by semicolons."""


def _over(count: int, parts: int) -> int:
    return -(-count // parts)


def _vectors(n: int, width: int) -> int:
    """Return the vectors of the worker that has most."""
    return _over(_over(n, _WORKERS), _VECTOR_BYTES // width)


def unary(n: int, width: int, slots: int) -> Library:
    """Return an op of one operand: `slots` of a vector as the table says."""
    return Library(
        20 + _WORKERS * (17 + _vectors(n, width) * slots),
        "popops/popopsCycleEstimators.cpp:1543",
    )


def binary(n: int, width: int, slots: int = 3) -> Library:
    """Return an op of two operands; addition and the like take 3 slots a vector."""
    return Library(
        11 + _WORKERS * (26 + _vectors(n, width) * slots),
        "popops/popopsCycleEstimators.cpp:1615",
    )


def by_row(rows: int, length: int, width: int) -> Library:
    """Return an addition or product of each row by a number of its own."""
    each = 7 + 2 * _over(length, _VECTOR_BYTES // width)
    return Library(
        11 + _WORKERS * (15 + _over(rows, _WORKERS) * each),
        "popops/popopsCycleEstimators.cpp:293",
    )


def by_channel(rows: int, channels: int, width: int) -> Library:
    """Return an addition or product of each column by a number of its own.

    Where there are few rows, writing the numbers out and adding them is faster.
    """
    blocks = _over(rows, _WORKERS)
    if width == 4:
        slots = 17 + 6 + channels * (8 + 2 * blocks)
    else:
        slots = 19 + 12 + _over(channels, 8) * (15 + 2 * (blocks - 1))
    found = Library(13 + _WORKERS * slots, "popops/popopsCycleEstimators.cpp:1189, :697, :722")
    return min(found, binary(rows * channels, width))


def reduce_rows(rows: int, length: int, width: int) -> Library:
    """Return a reduction of each row to a number."""
    each = 12 + _over(length, _VECTOR_BYTES // width)
    return Library(
        11 + _WORKERS * (17 + _over(rows, _WORKERS) * each),
        "popops/reduction/CycleEstimationFunctions.cpp:333",
    )


def reduce_columns(rows: int, columns: int, width: int) -> Library:
    """Return a reduction of each column to a number: columns are dealt to the workers, or rows.

    Of rows each worker makes partials, which a second vertex adds.
    """
    lanes = 2 * _VECTOR_BYTES // width
    dealt = 11 + _WORKERS * (16 + _over(_over(columns, _WORKERS), lanes) * (16 + rows))
    turns = _over(columns, lanes)
    first, second = (16 + turns * (16 + n) for n in (_over(rows, _WORKERS), _WORKERS))
    shared = 22 + _WORKERS * (first + second)
    return Library(min(dealt, shared), "popops/reduction/CycleEstimationFunctions.cpp:212")


def nonlinearity(n: int, width: int, slots: int) -> Library:
    """Return a nonlinearity of popnn's: `slots` of a vector by getNonLinearityOpCycles."""
    return Library(
        9 + _WORKERS * (23 + 2 * slots + (_vectors(n, width) - 1) * slots),
        "popnn/popnnCycleEstimators.cpp:72",
    )


def nonlinearity_gradient(n: int, width: int, slots: int) -> Library:
    """Return a nonlinearity's gradient: `slots` of a vector by getNonLinearityGradOpCycles."""
    return Library(
        9 + _WORKERS * (33 + (_vectors(n, width) - 1) * slots),
        "popnn/popnnCycleEstimators.cpp:148",
    )


def dropout(n: int, width: int) -> Library:
    """Return a dropout that draws for itself."""
    turns = _over(n, _VECTOR_BYTES // width)
    return Library(6 + 24 * _WORKERS + 2 * turns, "poprand/poprandCycleEstimators.cpp:125")


def scaled_add(n: int, width: int) -> Library:
    """Return x + s * y."""
    turns = _vectors(n, width)
    return Library(63 + _WORKERS * (25 + 3 * turns), "popops/PerformanceEstimation.cpp:473")


def all_of(parts: list[Library], source: str = "") -> Library:
    """Return vertices one after the other; `source`: where poplibs puts them together."""
    sources = [source, *(x.source for x in parts)] if source else [x.source for x in parts]
    return Library(sum(x.cycles for x in parts), "; ".join(dict.fromkeys(sources)))
