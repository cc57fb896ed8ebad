"""Scatter, with duplicates in index order."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from hloipu_runtime.frozen import dataclass
from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.monoids import UFUNCS, Combiner
from hloipu_runtime.kernels.core.movement import contiguous
from hloipu_runtime.kernels.index_rows import IndexRows, index_rows
from hloipu_runtime.kernels.native.settings import settings
from hloipu_runtime.kernels.native.targets import Targets

Sizes = tuple[int, ...]
Bounds = tuple[tuple[int, int], ...]

FEW_WINDOWS = 8
"""So few windows are combined one by one: no target has to be computed or sorted."""

LARGE_WINDOW_ELEMENTS = 2048
"""Windows so large that one call for each costs less than indexing their elements."""


@dataclass(frozen=True, slots=True)
class ScatterDimensions:
    """The dimension numbers of a scatter, as HLO text names them."""

    update_window_dims: tuple[int, ...]
    inserted_window_dims: tuple[int, ...]
    scatter_dims_to_operand_dims: tuple[int, ...]
    index_vector_dim: int
    input_batching_dims: tuple[int, ...] = ()
    scatter_indices_batching_dims: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """What the shapes of a scatter decide.

    Rows of the table are numbered by the operand's dimensions in which windows are not whole.
    """

    shape: Sizes
    window: Sizes
    """The window's size along every dimension of the operand, 1 where it has none."""
    window_elements: int
    count: int
    """Of windows."""
    one_by_one: bool
    """Whether windows are combined one after another, so that no row has to be named."""
    moving: tuple[int, ...]
    """The dimensions that rows are numbered by."""
    order: tuple[int, ...]
    """These, then the others."""
    is_ordered: bool
    back: tuple[int, ...]
    """The transposition out of that order."""
    rows: IndexRows
    table: Sizes
    """Rows, and elements of each."""
    spread: Array | None
    """How far each row of a window lies behind its first, row-major; None: it is one row, or they
    are combined `one_by_one`."""
    update_order: tuple[int, ...] | None
    """Batch dimensions of an update, then the window's; None: they come so."""
    row_order: tuple[int, ...] | None
    """The same of a window's dimensions: those of `order`; None: they come so."""
    bounds: Bounds | None
    """See `points`, where windows are single elements, each named by a vector of its own."""


@lru_cache(maxsize=4096)
def form_of(shape: Sizes, indices: Sizes, update: Sizes, dims: ScatterDimensions) -> Form:
    """Return what the shapes of operands, indices and updates decide."""
    sizes = iter(update[d] for d in dims.update_window_dims)
    absent = {*dims.inserted_window_dims, *dims.input_batching_dims}
    window = tuple(1 if d in absent else next(sizes) for d in range(len(shape)))
    batching = tuple(zip(dims.input_batching_dims, dims.scatter_indices_batching_dims, strict=True))
    # One that no start is given for starts at 0.
    moving = tuple(d for d, size in enumerate(shape) if window[d] != size)
    order = (*moving, *(d for d in range(len(shape)) if d not in moving))
    rows = index_rows(
        indices, dims.index_vector_dim, dims.scatter_dims_to_operand_dims, batching,
        {d: size - window[d] for d, size in enumerate(shape)}, [(d, shape[d]) for d in moving],
    )  # fmt: skip
    row_size = prod(shape[d] for d in order[len(moving) :])
    batch = [d for d in range(len(update)) if d not in dims.update_window_dims]
    update_order = (*batch, *dims.update_window_dims)
    apart = dims.index_vector_dim in (len(indices), len(indices) - 1) and not batching
    has_points = apart and row_size == prod(window) == 1 and order == tuple(sorted(order))
    count, elements = prod(rows.batch), prod(window)
    one_by_one = count <= FEW_WINDOWS or elements >= LARGE_WINDOW_ELEMENTS
    return Form(
        shape,
        window,
        elements,
        count,
        one_by_one,
        moving,
        order,
        order == tuple(sorted(order)),
        tuple(int(d) for d in np.argsort(order)),
        rows,
        (prod(shape[d] for d in moving), row_size),
        None if one_by_one else _spread([window[d] for d in moving], [shape[d] for d in moving]),
        None if update_order == tuple(sorted(update_order)) else update_order,
        None if order == tuple(sorted(order)) else (0, *(1 + d for d in order)),
        tuple((x.limit + 1, x.pitch) for x in rows.starts) or None if has_points else None,
    )


def _spread(window: Sequence[int], sizes: Sequence[int]) -> Array | None:
    """Return how far, in row-major order, elements of a box lie behind its first."""
    if all(n == 1 for n in window):
        return None
    places = np.zeros((), np.int64)
    for n, size in zip(window, sizes, strict=True):
        places = places[..., np.newaxis] * size + np.arange(n)
    return places.reshape(-1)


def scatter(
    operands: Sequence[Array],
    indices: Array,
    updates: Sequence[Array],
    dims: ScatterDimensions,
    combiner: Combiner | str,
    element_types: Sequence[str],
    *,
    unique_indices: bool = False,
    in_place: bool = False,
) -> list[Array]:
    """Combine each window of `updates` into the operands at its index vector.

    A window any part of which is out of bounds is skipped. Windows that meet are combined one
    after another in row-major order of their indices. `combiner` is a monoid's name, `"assign"`
    (the update replaces), or a region on (operands.., updates..). With `in_place` the operands
    themselves are changed where their layout allows: for callers who know them to be dead.
    """
    form = form_of(operands[0].shape, indices.shape, updates[0].shape, dims)
    how = How(combiner, tuple(element_types), unique_indices, in_place)
    return scatter_as(form, operands, indices, updates, how)


class How(NamedTuple):
    """What a scatter does with windows; see `scatter`."""

    combiner: Combiner | str
    element_types: tuple[str, ...]
    unique_indices: bool = False
    in_place: bool = False


def scatter_as(
    form: Form, operands: Sequence[Array], indices: Array, updates: Sequence[Array], how: How
) -> list[Array]:
    """Do what `scatter` does; `form` is that of the arrays' shapes."""
    if 0 in form.shape:  # no window is inside
        return _owned(operands, how.in_place)
    if form.bounds is not None and form.count > FEW_WINDOWS and len(operands) == 1:
        owned = _owned(operands, how.in_place and operands[0].flags.c_contiguous)
        if isinstance(how.combiner, str) and _by_points(form, owned[0], indices, updates[0], how):
            return owned
        operands, how = owned, how._replace(in_place=True)
    windows = [_windows_first(u, form) for u in updates]
    if form.one_by_one:
        return _one_by_one(operands, indices, windows, form, how)
    tables = operands if form.is_ordered else [np.transpose(o, form.order) for o in operands]
    tables = _owned(tables, how.in_place and all(t.flags.c_contiguous for t in tables))
    flat = [t.reshape(form.table) for t in tables]
    targets = form.rows.targets(indices)
    if form.spread is not None:
        firsts = targets.flat()[:, np.newaxis]
        spread = np.where(firsts < 0, -1, firsts + form.spread).reshape(-1)
        targets = Targets(spread, form.table[0], spread.size)
    if form.row_order is not None:
        windows = [w.transpose(form.row_order) for w in windows]
    taken = [w.reshape(targets.numbers.size, form.table[1]) for w in windows]
    from hloipu_runtime.kernels.scatter_rows import combine_rows

    combine_rows(flat, targets, taken, how.combiner, how.element_types, how.unique_indices)
    return tables if form.is_ordered else [t.transpose(form.back) for t in tables]


def _by_points(form: Form, table: Array, indices: Array, update: Array, how: How) -> bool:
    """Change a row-major table of single elements by a compiled kernel; say if it was done."""
    from hloipu_runtime.kernels.native.points import combine_points

    assert form.bounds is not None
    assert isinstance(how.combiner, str)
    return combine_points(table, indices, form.bounds, update, how.combiner, how.element_types[0])


def _windows_first(update: Array, form: Form) -> Array:
    """Bring an update to (window number, the operand's dimensions)."""
    moved = update if form.update_order is None else update.transpose(form.update_order)
    if not moved.flags.c_contiguous:
        moved = contiguous(moved)
    return moved.reshape(form.count, *form.window)


def _one_by_one(
    operands: Sequence[Array], indices: Array, windows: Sequence[Array], form: Form, how: How
) -> list[Array]:
    """Combine windows one after another: no target has to be computed or sorted."""
    out = _owned(operands, how.in_place)
    from hloipu_runtime.kernels.scatter_rows import combine_window

    few = form.count <= FEW_WINDOWS
    for number, at in (
        _few_windows(form, indices.tobytes(), indices.shape, indices.dtype)
        if few
        else _windows_inside(form, indices)
    ):
        if how.combiner == "assign":
            for o, w in zip(out, windows, strict=True):
                o[at] = w[number]
            continue
        places, parts = [o[at] for o in out], [w[number] for w in windows]
        combine_window(places, parts, how.combiner, how.element_types)
    return out


def _one_window(form: Form, how: How, x: Array, indices: Array, update: Array) -> Array:
    """Do what `_one_by_one` does with the only window of a scatter of one operand."""
    out = x.copy() if x.flags.c_contiguous else contiguous(x)
    if how.combiner == "assign":
        _put_window(form, out, indices, update.reshape(form.window))
        return out
    for _, at in _few_windows(form, indices.tobytes(), indices.shape, indices.dtype):
        from hloipu_runtime.kernels.scatter_rows import combine_window

        window = update.reshape(form.window)
        combine_window([out[at]], [window], how.combiner, how.element_types)
    return out


def _put_window(form: Form, out: Array, indices: Array, window: Array) -> None:
    for _, at in _few_windows(form, indices.tobytes(), indices.shape, indices.dtype):
        out[at] = window


def putting(
    scatter: Callable[..., Array], indices: Array, update: Array, *, is_decided: bool
) -> Callable[[Array], Callable[[], object]] | None:
    """Return what makes the call that puts the only window of a `scattering` into an array.

    None where it does not put one. Where indices are decided, so is the place.
    """
    if not isinstance(scatter, partial) or scatter.func is not _one_window:
        return None
    form, how = scatter.args
    if how.combiner != "assign":
        return None
    window = update.reshape(form.window)
    if not is_decided:
        return lambda out: partial(_put_window, form, out, indices, window)
    windows = _few_windows(form, indices.tobytes(), indices.shape, indices.dtype)
    if not windows:
        return None
    ((_, at),) = windows
    return lambda out: partial(out[at].__setitem__, ..., window)


@lru_cache(maxsize=4096)
def _few_windows(
    form: Form, indices: bytes, shape: Sizes, dtype: np.dtype[Any]
) -> tuple[tuple[int, tuple[Any, ...]], ...]:
    """Return `_windows_inside` of few: loops come to the same places again, one after another."""
    return tuple(_windows_inside(form, np.frombuffer(indices, dtype).reshape(shape)))


def _windows_inside(form: Form, indices: Array) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Yield the number and the place of each window within bounds: few, so Python's numbers do."""
    firsts = [0] * form.count if form.rows.base is None else form.rows.base.reshape(-1).tolist()
    for at, limit, pitch in form.rows.starts:
        starts = (indices if at is None else indices[at]).reshape(-1).tolist()
        for number, start in enumerate(starts):
            if not 0 <= start <= limit:
                firsts[number] = None
            elif firsts[number] is not None:
                firsts[number] += start * pitch
    for number, rest in enumerate(firsts):
        if rest is None:
            continue
        corner: list[Any] = [slice(n) for n in form.window]
        for d in reversed(form.moving):
            rest, start = divmod(rest, form.shape[d])
            corner[d] = slice(start, start + form.window[d])
        yield number, (*corner, ...)


def _owned(arrays: Sequence[Array], in_place: bool) -> list[Array]:
    """Return arrays that may be written: the operands themselves, or row-major copies."""
    if in_place and all(a.flags.writeable for a in arrays):
        return list(arrays)
    fresh = [(a, contiguous(a)) for a in arrays]
    return [a.copy() if b is a else b for a, b in fresh]


_TYPES = frozenset({"f32", "f64", "s32", "u32", "s64", "u64"})
"""Those in which an indexed ufunc leaves values of the type."""


def scattering(form: Form, how: How) -> Callable[[Array, Array, Array], Array]:
    """Return `scatter_as` of one operand, which it leaves as it is."""
    keep = how._replace(in_place=False)

    def general(x: Array, indices: Array, update: Array) -> Array:
        return scatter_as(form, (x,), indices, (update,), keep)[0]

    if form.count == 1 and form.update_order is None and 0 not in form.shape:
        return partial(_one_window, form, keep)
    monoid = how.combiner if isinstance(how.combiner, str) else ""
    points = form.bounds is not None and form.update_order is None
    if not points or 0 in form.shape or form.count <= FEW_WINDOWS or how.unique_indices:
        return general
    if monoid not in ("add", "multiply") or how.element_types[0] not in _TYPES:
        return general
    combine_at, checked, shape = UFUNCS[monoid].at, form.rows.checked, form.shape

    def points_at(x: Array, indices: Array, update: Array) -> Array:
        if settings().compiles:
            return general(x, indices, update)
        rows, valid = checked(indices)
        if valid is not None:
            return general(x, indices, update)
        target = x.reshape(-1).copy()
        combine_at(target, rows.reshape(-1).astype(np.intp), update.reshape(-1))
        return target.reshape(shape)

    return points_at
