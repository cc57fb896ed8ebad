"""Row scatter into a table, with repeated targets in order.

Repeated targets are resolved in rounds: round k combines the k-th update of every target, so that
each round writes a target once and runs on whole arrays. XLA:CPU rounds narrow floats after every
update, and so does each round. Sums, products and extrema of full-width types need no rounds, but
wide rows profit from large ones: numpy's indexed ufuncs run through what is left in order. A
compiled kernel, where there is one, runs through all updates in order.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.extrema import (
    extremum_keys,
    from_total_order_keys,
    has_negative_zero,
)
from hloipu_runtime.kernels.core.monoids import (
    UFUNCS,
    Combiner,
    finish,
    wrap_integer,
)
from hloipu_runtime.kernels.core.quiet import quietly
from hloipu_runtime.kernels.core.rounding import is_narrow
from hloipu_runtime.kernels.sorting import stable_argsort

INDEXED_CHUNK_ELEMENTS = 1 << 18
"""Element indices built at once for an indexed ufunc (2 MiB of them)."""

WIDE_ROW, LARGE_ROUND = 8, 1 << 14
"""Elements of a row, and of a round's rows, from which on a round takes less than indexing them."""


def combine(
    accumulators: Sequence[Array],
    values: Sequence[Array],
    combiner: Combiner | str,
    element_types: Sequence[str],
) -> Sequence[Array]:
    """Apply a combiner once, elementwise, and round to the element types."""
    if combiner == "assign":
        return values
    if callable(combiner):
        return combiner(*accumulators, *values)
    ufunc = UFUNCS[combiner]
    result: Array
    if combiner in ("minimum", "maximum") and has_negative_zero([*accumulators, *values]):
        keys = [extremum_keys(a, combiner) for a in (accumulators[0], values[0])]
        result = from_total_order_keys(ufunc(*keys), accumulators[0].dtype)
    else:
        with quietly():
            result = ufunc(accumulators[0], values[0])
    return [finish(result, element_types[0])]


def combine_window(
    places: Sequence[Array],
    window: Sequence[Array],
    combiner: Combiner | str,
    element_types: Sequence[str],
) -> None:
    """Combine one window into its place (writable views of the results)."""
    for place, value in zip(places, combine(places, window, combiner, element_types), strict=True):
        place[...] = value


def combine_rows(
    tables: Sequence[Array],
    targets: Array,
    rows: Sequence[Array],
    combiner: Combiner | str,
    element_types: Sequence[str],
    unique: bool,
) -> None:
    """Combine row j of every `rows` into row `targets[j]` of its table, j ascending, in place."""
    if targets.size == 0 or rows[0].size == 0:
        return
    if combiner == "assign":
        # numpy assigns in order: the last of several updates stays.
        for table, values in zip(tables, rows, strict=True):
            table[targets] = values
        return
    indexed = (
        isinstance(combiner, str)
        and combiner in ("add", "multiply", "minimum", "maximum")
        and not is_narrow(element_types[0])
        and tables[0].dtype.kind != "b"
    )
    if isinstance(combiner, str):
        from hloipu_runtime.kernels.native.combining import combine_natively

        if combine_natively(tables[0], targets, rows[0], combiner, element_types[0]):
            return
    if unique:
        _round(tables, targets, rows, combiner, element_types)
        return
    width = rows[0].shape[1]
    if indexed and (width < WIDE_ROW or rows[0].size < LARGE_ROUND):
        _indexed(tables[0], targets, rows[0], str(combiner), element_types[0])
        return
    for at, taken, rest in _rounds(targets):
        if indexed and taken.size * width < LARGE_ROUND:
            left = np.sort(rest)
            _indexed(tables[0], targets[left], rows[0][left], str(combiner), element_types[0])
            return
        _round(tables, at, [r[taken] for r in rows], combiner, element_types)


def _round(
    tables: Sequence[Array],
    targets: Array,
    rows: Sequence[Array],
    combiner: Combiner | str,
    element_types: Sequence[str],
) -> None:
    """Combine rows whose targets differ."""
    current = [table[targets] for table in tables]
    for table, new in zip(tables, combine(current, rows, combiner, element_types), strict=True):
        table[targets] = new


def _indexed(table: Array, targets: Array, rows: Array, monoid: str, element_type: str) -> None:
    """Run an indexed ufunc over the elements, in order of the updates."""
    ufunc = UFUNCS[monoid]
    width = table.shape[1]
    places, values = table.reshape(-1), rows.reshape(-1)
    keyed = monoid in ("minimum", "maximum") and has_negative_zero([table, rows])
    if keyed:
        places, values = extremum_keys(places, monoid), extremum_keys(values, monoid)
    step = max(1, INDEXED_CHUNK_ELEMENTS // width)
    with quietly():
        for start in range(0, targets.size, step):
            at = targets[start : start + step]
            if width > 1:
                at = (at[:, np.newaxis] * width + np.arange(width)).reshape(-1)
            ufunc.at(places, at, values[start * width : start * width + at.size])
    if keyed:
        table[...] = from_total_order_keys(places, table.dtype).reshape(table.shape)
    else:
        table[...] = wrap_integer(table, element_type)


def _rounds(targets: Array) -> Iterator[tuple[Array, Array, Array]]:
    """Yield (targets, update numbers, these and those of later rounds) of each round.

    No target is twice in a round.
    """
    order = _ascending(targets)
    ordered = targets[order]
    is_first = np.empty(ordered.size, bool)
    is_first[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    firsts = np.flatnonzero(is_first)
    lengths = np.diff(np.append(firsts, ordered.size))
    occurrence = np.arange(ordered.size) - np.repeat(firsts, lengths)
    sizes = np.bincount(occurrence)
    if sizes.size == 1:
        every = np.arange(targets.size)
        yield targets, every, every
        return
    first = order[is_first]
    yield targets[first], first, order
    # The later rounds are mostly small: sort what is left of them alone.
    later = np.flatnonzero(~is_first)
    taken_later = order[later[_ascending(occurrence[later])]]
    stop = 0
    for size in sizes[1:].tolist():
        start, stop = stop, stop + size
        taken = taken_later[start:stop]
        yield targets[taken], taken, taken_later[start:]


def _ascending(values: Array) -> Array:
    """Argsort non-negative int64 values, stably."""
    if values.size and int(values.max()) < 1 << 32:
        return stable_argsort(values.astype(np.uint32))
    return np.argsort(values, kind="stable")
