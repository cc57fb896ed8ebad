"""Sorting by an arbitrary comparator, and merging: Batcher's networks on whole arrays.

K. E. Batcher, Sorting networks and their applications, AFIPS 1968. Each stage compares disjoint
pairs `distance` apart with one call of the comparator for all rows and pairs: log2(n)^2 / 2 calls.
"""

from collections.abc import Callable, Iterator, Sequence
from math import prod

import numpy as np

from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.elementwise.compare import select


def argsort_by_comparator(rows: Sequence[Array], comparator: Callable[..., Array]) -> Array:
    """Return the stable order of each row (last axis) under a comparator of element pairs.

    Elements that the comparator does not tell apart keep their order, also when it says "before"
    of both (LE or GE): such pairs are decided by their places.
    """
    shape = rows[0].shape
    count = shape[-1]
    whole = 1 << (count - 1).bit_length()
    # Elements first, rows last: the two halves of a stage are then long contiguous runs. What
    # fills up to a power of two stands last and is never moved: it counts as greatest.
    columns = [_filled(x.reshape(-1, count).T, whole) for x in rows]
    places = np.empty(columns[0].shape, np.int64)
    places[...] = np.arange(whole)[:, np.newaxis]
    for merge, distance in _stages(whole):
        halves = [_halves(x, merge, distance) for x in (*columns, places)]
        _compare_exchange(halves, comparator, count if whole > count else None)
    return np.ascontiguousarray(places[:count].T).reshape(shape)


def is_merged_fast(shape: tuple[int, ...], axis: int) -> bool:
    """Whether `merge` takes less than numpy's sort: of few elements, in rows of many at once."""
    length = shape[axis]
    return length in (2, 4, 8) and length * length <= prod(shape[axis + 1 :])


def merge(x: Array, axis: int) -> None:
    """Bring integers, whose rows along an axis rise and fall once, into ascending order, in place.

    Of a row, a power of two long, the lesser ones of all pairs half of it apart make one half that
    rises and falls once, the greater ones the other.
    """
    apart = x.shape[axis] // 2
    inner = prod(x.shape[axis + 1 :])
    given, made = x, np.empty_like(x)
    while apart:
        pairs, halves = (each.reshape(-1, 2, apart * inner) for each in (given, made))
        np.minimum(pairs[:, 0], pairs[:, 1], out=halves[:, 0])
        np.maximum(pairs[:, 0], pairs[:, 1], out=halves[:, 1])
        given, made = made, given
        apart //= 2
    if given is not x:
        x[...] = given


def _filled(x: Array, whole: int) -> Array:
    """Copy to row-major memory, with the last element repeated up to `whole`."""
    filled = np.empty((whole, x.shape[1]), x.dtype)
    filled[: x.shape[0]] = x
    filled[x.shape[0] :] = x[-1]
    return filled


def _stages(whole: int) -> Iterator[tuple[int, int]]:
    """Yield (length of the runs that are merged, distance of the pairs) of each stage."""
    merge = 1
    while merge < whole:
        distance = merge
        while distance >= 1:
            yield merge, distance
            distance //= 2
        merge *= 2


def _halves(x: Array, merge: int, distance: int) -> tuple[Array, Array]:
    """Return views of the lower and the upper elements of a stage's pairs.

    The first stage of a merge pairs its two runs. Each later one pairs, within blocks of two runs,
    what is left when `distance` elements are left out at both ends.
    """
    length, width = x.shape
    runs = x.reshape(length // (2 * merge), 2 * merge, width)
    if distance < merge:
        runs = runs[:, distance:-distance]
    pairs = runs.reshape(runs.shape[0], -1, 2, distance, width)
    return pairs[:, :, 0], pairs[:, :, 1]


def _compare_exchange(
    halves: list[tuple[Array, Array]], comparator: Callable[..., Array], count: int | None
) -> None:
    """Put the elements of each pair in order; the last halves are the places."""
    pairs = [(np.array(low, order="C"), np.array(high, order="C")) for low, high in halves]
    first_place, second_place = pairs[-1]
    forward = comparator(*(x for first, second in pairs[:-1] for x in (first, second)))
    backward = comparator(*(x for first, second in pairs[:-1] for x in (second, first)))
    undecided = np.equal(forward, backward)
    swap = np.where(undecided, second_place < first_place, backward)
    if count is not None:
        swap &= second_place < count
    if not swap.any():
        return
    for (low, high), (first, second) in zip(halves, pairs, strict=True):
        low[...] = select(swap, second, first)
        high[...] = select(swap, first, second)
