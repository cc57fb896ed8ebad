"""Row scatter into a table, with repeated targets in order.

A compiled kernel, where there is one, runs through all updates in order. Without it, wide rows are
combined in rounds: round k combines the k-th update of every target that has one, on whole arrays.
Targets are taken in pieces whose rows stay in the cache from round to round, the most repeated
first, so that a round's are the first so many. Where few targets repeat, the first update of each
is found without ordering them. XLA:CPU rounds narrow floats after every update, and
so does each round. Rows of few elements are left to numpy's indexed ufuncs, which run through
elements in order: column by column, of f32 sums two columns as one of complex numbers.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from hloipu_runtime.element_types import ELEMENT_TYPES, GRIDS
from hloipu_runtime.kernels.core.blocks import BLOCK_ELEMENTS, Array, blocks
from hloipu_runtime.kernels.core.extrema import (
    bits_decide,
    extremum_keys,
    from_total_order_keys,
    has_smallest,
)
from hloipu_runtime.kernels.core.monoids import UFUNCS, Combiner, finish, wrap_integer
from hloipu_runtime.kernels.core.quiet import quietly
from hloipu_runtime.kernels.core.rounding import (
    SPLIT_LIMITS,
    Origin,
    is_narrow,
    origin_of,
    round_block,
)
from hloipu_runtime.kernels.core.storage import from_storage, to_storage
from hloipu_runtime.kernels.native.targets import Targets
from hloipu_runtime.kernels.sorting import stable_argsort

INDEXED_CHUNK_ELEMENTS = 1 << 15
"""Elements, or indices of them, at once for an indexed ufunc: 256 KiB at most, which a second-level
cache holds."""

COLUMN_ROWS = 1 << 9
"""So many updates take less column by column than indices of all their elements."""

WIDE_ROW, LARGE_SCATTER = 8, 1 << 14
"""Elements of a row, and of all, from which on rounds take less than indexing elements."""

WIDE_PAIRED_ROW = 32
"""The same of a row where pairs of elements are indexed."""

SMALL_ROUND_ELEMENTS = 1 << 11
"""Fewer of a table take less, as often as it has updates, than the calls of a round."""

ROUND_ELEMENTS = 1 << 15
"""Of the rows of a piece's targets: with a round's updates they stay in a second-level cache."""

CHAIN_ROUNDS = 4
"""Rounds in the time of reducing one target's updates by themselves, about."""

INDEXED_NARROW_NS, ROUNDED_NS, ORDERED_NS, ROUND_CALLS_NS = 11, 3, 7, 4000
"""An element that an indexed ufunc adds to an f16 or bf16, with conversions; one that is taken and
rounded among many; a target that is put in order; and the calls of a round (on Zen 5)."""

_INDEXED_NARROW = ("f16", "bf16")
"""Types whose own arithmetic in numpy rounds as ours, once from f32."""


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
    if (
        combiner in ("minimum", "maximum")
        and accumulators[0].dtype.kind == "f"
        and bits_decide([accumulators[0], values[0]])
    ):
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
    targets: Targets,
    rows: Sequence[Array],
    combiner: Combiner | str,
    element_types: Sequence[str],
    unique: bool,
) -> None:
    """Combine row j of every `rows` into its target in each table, j ascending, in place."""
    if targets.numbers.size == 0 or rows[0].size == 0:
        return
    monoid = combiner if isinstance(combiner, str) else ""
    if monoid and len(tables) == 1:
        from hloipu_runtime.kernels.native.combining import combine_natively

        if combine_natively(tables[0], targets, rows[0], monoid, element_types[0]):
            return
    table, updates, before = tables[0], rows[0], None
    if monoid in ("minimum", "maximum") and table.dtype.kind == "f":
        if table.size <= updates.size:
            before = table.copy()
        elif bits_decide([table, updates]):
            _by_keys(table, table, targets, updates, monoid, unique)
            return
    indexed = _can_be_indexed(monoid, element_types[0], table, updates)
    if combiner == "assign" or unique:
        at = targets.flat()
        if at.min() < 0:
            kept = np.flatnonzero(at >= 0)
            at, rows = at[kept], [r[kept] for r in rows]
        if rows[0].shape[1] == 1:  # numpy takes a third of the time for elements
            tables, rows = [x[:, 0] for x in tables], [x[:, 0] for x in rows]
        current = rows
        if combiner != "assign":  # of which numpy lets the last of several stay
            current = [x[at] for x in tables]
            with quietly():
                _combining(combiner, element_types)(current, rows)
        for x, new in zip(tables, current, strict=True):
            x[at] = new
    elif indexed and not _rounds_pay(table, targets, updates, monoid, element_types[0]):
        _indexed(table, targets, updates, monoid, element_types[0])
    else:
        with quietly():
            _in_rounds(tables, targets.flat(), rows, combiner, element_types, indexed)
    # Which zero it is matters, and which subnormal number, only where one of them is left.
    if before is not None and has_smallest(table) and bits_decide([before, updates]):
        _by_keys(table, before, targets, updates, monoid, unique)


def _by_keys(
    into: Array, table: Array, targets: Targets, rows: Array, monoid: str, unique: bool
) -> None:
    """Leave in `into` the extrema of a table and rows, by integers that are ordered as they are."""
    keys = [extremum_keys(x, monoid) for x in (table, rows)]
    kind = f"s{8 * into.itemsize}"
    combine_rows(keys[:1], targets, keys[1:], monoid, [kind], unique)
    into[...] = from_total_order_keys(keys[0], into.dtype)


def _rounds_pay(
    table: Array, targets: Targets, rows: Array, monoid: str, element_type: str
) -> bool:
    """Whether rounds, or targets reduced by themselves, take less than indexing elements."""
    count, width = rows.shape
    if is_narrow(element_type) and monoid in ("add", "multiply"):
        most = INDEXED_NARROW_NS - ROUNDED_NS - ROUND_CALLS_NS / (min(count, len(table)) * width)
        numbers = targets.numbers
        return ORDERED_NS / width < most or (
            most > 0 and targets.group >= count and not (numbers[1:] < numbers[:-1]).any()
        )
    wide = WIDE_PAIRED_ROW if _are_pairs(table, rows, monoid, element_type) else WIDE_ROW
    if width < wide or rows.size < LARGE_SCATTER:
        return False
    return table.size >= SMALL_ROUND_ELEMENTS or count >= CHAIN_ROUNDS * len(table) ** 2


def _are_pairs(table: Array, rows: Array, monoid: str, element_type: str) -> bool:
    """Whether pairs of elements add up as complex numbers do, which takes half as many indices."""
    if monoid != "add" or element_type != "f32" or table.shape[1] % 2:
        return False
    return table.flags.c_contiguous and rows.flags.c_contiguous


def _can_be_indexed(monoid: str, element_type: str, table: Array, rows: Array) -> bool:
    """Whether an indexed ufunc rounds as it should, and no large table is converted for it."""
    if table.dtype.kind == "b":
        return False
    if monoid in ("minimum", "maximum") or not is_narrow(element_type):
        return monoid in ("add", "multiply", "minimum", "maximum")
    return monoid in ("add", "multiply") and (
        element_type in _INDEXED_NARROW and table.size <= 4 * rows.size
    )


def _in_rounds(
    tables: Sequence[Array],
    targets: Array,
    rows: Sequence[Array],
    combiner: Combiner | str,
    element_types: Sequence[str],
    chains: bool,
) -> None:
    """Combine rows in rounds; with `chains` the few targets that have many are reduced one by one.

    Of an array of rows that are longer than one element numpy reduces the first axis in order.
    """
    combine_into = _combining(combiner, element_types)
    width = rows[0].shape[1]
    if width == 1:  # numpy takes a third of the time for elements
        tables, rows = [x[:, 0] for x in tables], [x[:, 0] for x in rows]
    if len(tables[0]) >= len(targets):
        targets, rows = _first_ones(tables, targets, rows, combine_into)
    if not targets.size:
        return
    order, starts, counts = _by_target(targets)
    if combiner == "add" and counts.size:
        is_small = _stays_small(tables[0], rows[0], counts[0], element_types[0])
        combine_into = _combining(combiner, element_types, is_small=is_small)
    step = max(1, ROUND_ELEMENTS // width)
    rest: list[Array] = []
    for start in range(0, starts.size, step):
        piece = slice(start, start + step)
        firsts, count = starts[piece], counts[piece]
        at = targets.take(firsts if order is None else order.take(firsts))
        accumulators = [table.take(at, axis=0) for table in tables]
        sizes = _sizes_of_rounds(count)
        if chains:
            lasting = [CHAIN_ROUNDS * size <= len(sizes) - k for k, size in enumerate(sizes)]
            sizes = sizes[: lasting.index(True) if True in lasting else len(sizes)]
        for begin, some in _groups(sizes, step):
            taken = np.concatenate([firsts[:size] + k for k, size in enumerate(some, begin)])
            taken = taken if order is None else order.take(taken)
            values = [x.take(taken, axis=0, mode="clip") for x in rows]
            done = 0
            for size in some:
                combine_into(
                    [x[:size] for x in accumulators], [x[done : done + size] for x in values]
                )
                done += size
        for number in range(np.searchsorted(-count, -len(sizes))):  # those that have more
            taken = np.arange(firsts[number] + len(sizes), firsts[number] + count[number])
            taken = taken if order is None else order.take(taken)
            if width == 1:
                rest.append(taken)
            else:
                _chain(accumulators[0][number], rows[0], taken, str(combiner), element_types[0])
        for table, new in zip(tables, accumulators, strict=True):
            table[at] = new
    if rest:
        left = np.concatenate(rest)
        late = Targets(targets.take(left), len(tables[0]), left.size)
        column, updates = tables[0][:, np.newaxis], rows[0].take(left)[:, np.newaxis]
        _indexed(column, late, updates, str(combiner), element_types[0])


def _groups(sizes: Sequence[int], most: int) -> Iterator[tuple[int, Sequence[int]]]:
    """Yield rounds with about `most` rows together, by their sizes, and the first one's number."""
    begin, rows = 0, 0
    for k, size in enumerate(sizes):
        rows += size
        if rows >= most or k == len(sizes) - 1:
            yield begin, sizes[begin : k + 1]
            begin, rows = k + 1, 0


def _first_ones(
    tables: Sequence[Array],
    targets: Array,
    rows: Sequence[Array],
    combine_into: Callable[[Sequence[Array], Sequence[Array]], None],
) -> tuple[Array, Sequence[Array]]:
    """Combine the first row of each target, while these are most; return the others."""
    first_of = np.empty(len(tables[0]), np.int32 if targets.size < 1 << 31 else np.intp)
    kept = np.flatnonzero(targets >= 0)
    while kept.size:
        at = targets.take(kept)
        first_of[at[::-1]] = kept[::-1]  # of which numpy lets the last one stay
        is_first = first_of.take(at) == kept
        first, at = kept[is_first], at[is_first]
        current = [table.take(at, axis=0) for table in tables]
        combine_into(current, [x.take(first, axis=0) for x in rows])
        for table, new in zip(tables, current, strict=True):
            table[at] = new
        kept = kept[~is_first]
        if kept.size > first.size:
            break
    return targets.take(kept), [x.take(kept, axis=0) for x in rows]


def _stays_small(table: Array, rows: Array, count: int, element_type: str) -> bool:
    """Whether no sum of narrow floats can be too large to split, roundings included."""
    if element_type not in SPLIT_LIMITS or count >> 1 + GRIDS[element_type].mantissa_bits:
        return False  # so many roundings may make a sum e times as large
    sizes = [max(x.max(), -x.min()) for x in (table, rows)]
    return bool(sizes[0] + count * sizes[1] < SPLIT_LIMITS[element_type] / 4)


def _chain(into: Array, rows: Array, taken: Array, monoid: str, element_type: str) -> None:
    """Combine some rows into one, one after another."""
    narrow = is_narrow(element_type) and monoid in ("add", "multiply")
    step = max(1, ROUND_ELEMENTS // into.size)
    buffer = np.empty((1 + min(step, taken.size), into.size), into.dtype)
    for start in range(0, taken.size, step):
        numbers = taken[start : start + step]
        some = buffer[: 1 + numbers.size]
        some[0] = into
        rows.take(numbers, axis=0, out=some[1:], mode="clip")
        some = from_storage(some, element_type) if narrow else some
        with quietly():
            reduced = UFUNCS[monoid].reduce(some, axis=0, dtype=some.dtype)
        into[...] = to_storage(reduced, element_type)


def _combining(
    combiner: Combiner | str, element_types: Sequence[str], *, is_small: bool = False
) -> Callable[[Sequence[Array], Sequence[Array]], None]:
    """Return what combines values into what is there, in place."""
    if callable(combiner):
        return lambda current, values: combine_window(current, values, combiner, element_types)
    ufunc, element_type = UFUNCS[combiner], element_types[0]
    element = ELEMENT_TYPES[element_type]
    wraps = element.is_integer and element.bits < 8
    rounds = is_narrow(element_type) and combiner in ("add", "multiply")
    origin: Origin = "small sum" if is_small else origin_of(combiner)

    def combine_into(current: Sequence[Array], values: Sequence[Array]) -> None:
        into, taken = current[0], values[0]
        if rounds:
            ufunc(into, taken, into)
            for (x,) in [(into,)] if into.size <= BLOCK_ELEMENTS else blocks(into):
                round_block(x, element_type, x, origin)
            return
        ufunc(into, taken, out=into)
        if wraps:
            into[...] = wrap_integer(into, element_type)

    return combine_into


def _indexed(table: Array, targets: Targets, rows: Array, monoid: str, element_type: str) -> None:
    """Run an indexed ufunc over the elements, in order of the updates."""
    ufunc = UFUNCS[monoid]
    is_rounded = is_narrow(element_type) and monoid in ("add", "multiply")
    places, values = table, rows
    if is_rounded:
        places, values = from_storage(places, element_type), from_storage(values, element_type)
    elif _are_pairs(table, rows, monoid, element_type):
        places, values = table.view(np.complex64), rows.view(np.complex64)
    width = places.shape[1]
    with quietly():
        for piece, at in targets.pieces(max(4 * COLUMN_ROWS, INDEXED_CHUNK_ELEMENTS // width)):
            part = values[piece]
            if at.min() < 0:
                kept = np.flatnonzero(at >= 0)
                at, part = at[kept], part[kept]
            if width > 1 and at.size < COLUMN_ROWS:
                at = (at[:, np.newaxis] * width + np.arange(width)).reshape(-1)
                ufunc.at(places.reshape(-1), at, part.reshape(-1))
                continue
            for column in range(width):
                ufunc.at(places[:, column], at, part[:, column])
    if is_rounded:
        table[...] = to_storage(places, element_type)
        return
    wrapped = wrap_integer(table, element_type)
    if wrapped is not table:
        table[...] = wrapped


def _by_target(targets: Array) -> tuple[Array | None, Array, Array]:
    """Return updates by target, where each target's begin there, and how many it has.

    Targets are ordered by these, the most first; updates of one are in order, those of target -1
    left out. None: updates come by target.
    """
    order, ordered = None, targets
    if targets[0] < 0 or (targets[1:] < targets[:-1]).any():
        kept = None if targets.min() >= 0 else np.flatnonzero(targets >= 0)
        order = _ascending(targets if kept is None else targets[kept])
        order = order if kept is None else kept[order]
        ordered = targets.take(order)
    if not ordered.size:
        return order, ordered, ordered
    is_first = np.empty(ordered.size, bool)
    is_first[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    starts = np.flatnonzero(is_first)
    counts = np.diff(starts, append=ordered.size)
    by_count = _ascending(counts.max() - counts)
    return order, starts[by_count], counts[by_count]


def _sizes_of_rounds(counts: Array) -> list[int]:
    """Return how many of some targets have more than k updates, k from 0; `counts` descend."""
    rounds = np.arange(counts[0])
    sizes: list[int] = (counts.size - np.searchsorted(counts[::-1], rounds, side="right")).tolist()
    return sizes


def _ascending(values: Array) -> Array:
    """Argsort non-negative int64 values, stably."""
    highest = int(values.max()) if values.size else 0
    if highest < 1 << 32:
        return stable_argsort(values.astype(np.uint16 if highest < 1 << 16 else np.uint32))
    return np.argsort(values, kind="stable")
