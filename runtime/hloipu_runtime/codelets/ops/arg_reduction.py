"""Recognises argmax and argmin: reductions of values and indices by a comparing body.

A body of comparisons and choices alone depends on how its operands are ordered, and on nothing
else: what it does for one of each order is what it always does.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.codelets.core.grids import moved, piece_runs, shared_axes, split
from hloipu_runtime.codelets.core.tensors import Array, Blocks, Bound
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.kernels.core.blocks import compact, put
from hloipu_runtime.kernels.core.movement import contiguous
from hloipu_runtime.kernels.core.storage import storage_dtype

_OF_ORDER = frozenset({"and", "compare", "not", "or", "select"})
_OWN_ORDERS = ("", "FLOAT", "SIGNED", "UNSIGNED")


@lru_cache(maxsize=1024)
def keeps_largest(body: Expression) -> bool | None:
    """Whether a body keeps the larger value, or the smaller one; None: it does something else.

    NaN wins, then the value that was there before; of equal ones the lower place is kept.
    """
    types = body.operand_types
    if len(types) != 4 or types[:2] != types[2:] or len(body.results) != 2:
        return None
    if not ELEMENT_TYPES[types[0]].is_float or not ELEMENT_TYPES[types[1]].is_integer:
        return None
    for node in body.nodes:
        order = str(dict(node.parameters).get("type") or "")
        if node.op not in _OF_ORDER or order not in _OWN_ORDERS:
            return None
    from hloipu_runtime.codelets.core.expression import region

    values = np.array([1, 2, np.nan], storage_dtype(types[0]))
    places = np.array([1, 2], storage_dtype(types[1]))
    a, i, b, j = (x.ravel() for x in np.meshgrid(values, places, values, places))
    kept = region(body)(a, i, b, j)
    for largest in (True, False):
        better = ((a > b) if largest else (a < b)) | np.isnan(a)
        value = np.where(better, a, b)
        place = np.where(better | ((a == b) & (i < j)), i, j)
        if np.array_equal(kept[0], value, equal_nan=True) and np.array_equal(kept[1], place):
            return largest
    return None


def by_places(general: Bound, dimension: int, *, largest: bool) -> Bound:
    """Return such a reduction along one dimension by numpy, where it is sure to be `general`'s.

    That is where it begins with the worst value, which no result is, and `best_of_places` knows.
    """
    worst = -np.inf if largest else np.inf

    def run(arrays: Sequence[Array], outs: Sequence[Array | None]) -> Sequence[Array]:
        x, places, init, _ = arrays
        is_worst = init.item() == worst if init.size == 1 else bool(np.all(init == worst))
        best = best_of_places(x, places, dimension, largest=largest) if is_worst else None
        if best is None or np.count_nonzero(np.isinf(best[0])):
            return general(arrays, outs)
        return best

    return run


def best_of_places(x: Array, places: Array, dimension: int, *, largest: bool) -> list[Array] | None:
    """Return the best values along one dimension and their places, without an init, by numpy.

    None where places fall somewhere along it, or a value is a zero, whose sign the body decides.
    """
    return search(x, places, dimension, largest=largest)()


def search(
    x: Array, places: Array, dimension: int, *, largest: bool
) -> Callable[[], list[Array] | None]:
    """Return `best_of_places` of these very arrays, to be called again and again."""
    order, back = _order(x.shape, x.strides, dimension)
    count = x.shape[dimension]
    few, turned = compact(places).transpose(order), x.transpose(order)
    shape = turned.shape[:-1]
    if not few.size or few.shape[-1] != count:
        return lambda: None
    find = _few_starts if prod(shape) <= _FEW_PLACES else _starts
    starts, few_starts = find(shape, few.shape)
    is_row_major = turned.flags.c_contiguous

    def run() -> list[Array] | None:
        if few.size <= _FEW_PLACES:
            never_fall = _never_fall(few.tobytes(), few.shape, few.dtype)
        else:
            never_fall = many_never_fall(few)
        if not never_fall:
            return None  # of equal values the first is not sure to have the lowest place
        lines = (turned if is_row_major else contiguous(turned)).reshape(-1, count)
        if not lines.flags.writeable:
            lines = np.asarray(_Writeable(lines))
        at = lines.argmax(-1) if largest else lines.argmin(-1)
        values = lines.reshape(-1).take(starts + at)
        if np.count_nonzero(values) != values.size:
            return None
        if few.flags.c_contiguous:
            best_places = few.reshape(-1).take(few_starts + at)
        else:
            best_places = np.take_along_axis(few, at.reshape(*shape, 1), -1)
        return [a.reshape(shape).transpose(back) for a in (values, best_places)]

    return run


def search_on_arrays(
    operands: Blocks, results: Blocks, axis: int, piece: int, general: Bound, *, largest: bool
) -> Callable[[], None]:
    """Return the search for the best along an axis, in pieces of so many elements; 0: whole.

    For values, places and inits that stay where they are. `general` computes what `search` leaves.
    """
    rank = len(results[0].grid)
    kept: tuple[Any, ...] = (*shared_axes(operands[:2]), ...)
    arrays, targets = [x.data for x in operands], [x.data for x in results]
    values, places = (array[kept] for array in arrays[:2])
    searches = [] if piece else [(search(values, places, axis, largest=largest), targets)]
    for start, stop, size in piece_runs(values.shape[axis], piece) if piece else []:
        low = start // piece
        at = (slice(None),) * rank + (slice(low, low + (stop - start) // size),)
        pieces, numbers = (
            moved(split(x, axis, start, stop, size), axis, rank) for x in (values, places)
        )
        run = search(pieces, numbers, axis + 1, largest=largest)
        searches.append((run, [target[at] for target in targets]))
    first: tuple[Any, ...] = (*(0 for _ in results[0].grid), ...)
    inits = [init[first] for init in arrays[2:3]]
    worst, copyto = -np.inf if largest else np.inf, np.copyto

    def search_all() -> None:
        is_worst = all(init.item() == worst for init in inits)
        for run, outs in searches:
            best = run() if is_worst else None
            if best is None or (inits and np.count_nonzero(np.isinf(best[0]))):
                put(targets, general(arrays, targets))
                return
            for out, array in zip(outs, best, strict=True):
                copyto(out, array)

    return search_all


def _starts(rows: tuple[int, ...], few: tuple[int, ...]) -> tuple[Array, Array]:
    """Return where each row of values begins, and its row of the few places that repeat."""
    *kept, count = few
    of_places = np.arange(0, prod(few), count).reshape(kept)
    return np.arange(prod(rows)) * count, np.broadcast_to(of_places, rows).reshape(-1)


_few_starts = lru_cache(maxsize=256)(_starts)


class _Writeable:
    """An array that may be read only as one that may be written, which nobody does.

    numpy copies any other array before it looks for the place of an extremum.
    """

    def __init__(self, x: Array) -> None:
        self.array = x
        described = x.__array_interface__
        self.__array_interface__ = {**described, "data": (described["data"][0], False)}


@lru_cache(maxsize=256)
def _order(
    shape: tuple[int, ...], strides: tuple[int, ...], dimension: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the order of memory with one dimension last, and what brings results back."""
    others = (d for d in range(len(shape)) if d != dimension)
    order = (*sorted(others, key=lambda d: -abs(strides[d])), dimension)
    return order, tuple(sorted(range(len(shape) - 1), key=order.__getitem__))


_FEW_PLACES = 1 << 10
"""So few are looked at once, however often they come: a loop's are the same in each turn."""


@lru_cache(maxsize=256)
def _never_fall(places: bytes, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    few = np.frombuffer(places, dtype).reshape(shape)
    return not (few[..., 1:] < few[..., :-1]).any()


def many_never_fall(places: Array) -> bool:
    """Whether numbers never fall along the last dimension; they are compared as they lie."""
    order = sorted(range(places.ndim - 1), key=lambda d: -abs(places.strides[d]))
    rows = places.transpose(*order, -1)
    if not rows.flags.c_contiguous or rows.shape[-1] == 1:
        return not (rows[..., 1:] < rows[..., :-1]).any()
    # As one run: row by row takes three times as long.
    flat = rows.reshape(-1)
    falls = flat[1:] < flat[:-1]
    falls[rows.shape[-1] - 1 :: rows.shape[-1]] = False  # from one row to the next
    return not falls.any()
