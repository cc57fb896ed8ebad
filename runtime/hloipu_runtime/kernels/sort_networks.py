"""Sorting by an arbitrary comparator: Batcher's odd-even merge network on whole arrays.

K. E. Batcher, Sorting networks and their applications, AFIPS 1968. Each stage compares disjoint
pairs `distance` apart with one call of the comparator for all rows and pairs: log2(n)^2 / 2 calls.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from hloipu_runtime.kernels.blocks import Array


def argsort_by_comparator(rows: Sequence[Array], comparator: Callable[..., Array]) -> Array:
    """Return the stable order of each row (last axis) under a comparator of element pairs.

    Elements that the comparator does not tell apart keep their order, also when it says "before"
    of both (LE or GE): such pairs are decided by their places.
    """
    shape = rows[0].shape
    count = shape[-1]
    # Elements first, rows last: the two halves of a stage are then long contiguous runs.
    columns = [np.array(x.reshape(-1, count).T, order="C") for x in rows]
    places = np.empty(columns[0].shape, np.int64)
    places[...] = np.arange(count)[:, np.newaxis]
    for low, high in _stages(count):
        _compare_exchange(columns, places, low, high, comparator)
    return np.ascontiguousarray(places.T).reshape(shape)


def _stages(count: int) -> Iterator[tuple[Array, Array]]:
    """Yield the pairs of each stage as index arrays, for any count (missing ones are greatest)."""
    merge = 1
    while merge < count:
        distance = merge
        while distance >= 1:
            low = np.arange(distance % merge, max(count - distance, 0))
            # Pairs run inside blocks of 2 * distance and must share a block of 2 * merge.
            low = low[(low - distance % merge) % (2 * distance) < distance]
            low = low[low // (2 * merge) == (low + distance) // (2 * merge)]
            if low.size:
                yield low, low + distance
            distance //= 2
        merge *= 2


def _compare_exchange(
    columns: list[Array],
    places: Array,
    low: Array,
    high: Array,
    comparator: Callable[..., Array],
) -> None:
    """Put the elements of each pair in order."""
    first = [c[low] for c in columns]
    second = [c[high] for c in columns]
    first_place, second_place = places[low], places[high]
    forward = comparator(*(x for pair in zip(first, second, strict=True) for x in pair))
    backward = comparator(*(x for pair in zip(second, first, strict=True) for x in pair))
    undecided = np.equal(forward, backward)
    swap = np.where(undecided, second_place < first_place, backward)
    if not swap.any():
        return
    for column, a, b in zip(
        [*columns, places], [*first, first_place], [*second, second_place], strict=True
    ):
        column[low] = np.where(swap, b, a)
        column[high] = np.where(swap, a, b)
