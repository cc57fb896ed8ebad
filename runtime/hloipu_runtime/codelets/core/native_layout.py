"""How the arrays of an expression lie as rows of columns, for compiled kernels.

All arrays have the same rows and columns. Each runs through a row's columns one after the other, or
has one element that the row shares; its rows begin at one stride, which may be zero, or at one
within each plane of so many rows and at another from plane to plane. What lies otherwise is copied
first.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.movement import contiguous

FEWEST_COLUMNS = 2
"""With fewer, operands are laid out to full size first: in rows, a kernel takes less for each than
numpy does to repeat an operand's."""

Sizes = tuple[int, ...]


class Form(NamedTuple):
    """What a layout needs to know of an operand."""

    sizes: Sizes
    strides: Sizes
    """In bytes."""
    item_bytes: int


class Place(NamedTuple):
    """Where an array's rows begin, and whether one has an element for each column."""

    row_bytes: int
    column_bytes: int
    """Zero where the row shares one element."""
    is_copied: bool = False
    plane_bytes: int | None = None
    """From plane to plane of rows; None: they begin at one stride throughout."""


class Layout(NamedTuple):
    """Rows and columns, and how operands, then results, lie in them."""

    rows: int
    columns: int
    split: int
    """Dimensions from here on, in `order`, are columns."""
    order: Sizes | None
    """Of dimensions, from the outermost in memory on; None: as they are numbered."""
    places: tuple[Place, ...]
    copies: bool
    """Whether an operand is to be copied."""
    plane_rows: int
    """Rows of a plane."""


@lru_cache(maxsize=4096)
def layout(
    shape: Sizes,
    operands: tuple[Form, ...],
    results: tuple[Form, ...],
    viewed: frozenset[int] = frozenset(),
    fewest_columns: int = FEWEST_COLUMNS,
) -> Layout | None:
    """Return how arrays lie, their columns as long as all allow; None: results do not lie so.

    `viewed` are numbers of operands, then results, that are looked at as arrays of rows and
    columns: they have no planes.
    """
    first = results[0].strides
    order = tuple(sorted(range(len(shape)), key=lambda axis: -abs(first[axis])))
    sizes = tuple(shape[axis] for axis in order)
    forms = (*operands, *results)
    spread = [_spread(form, shape, order) for form in forms]
    split = _split(sizes, spread, [form.item_bytes for form in forms], fewest_columns)
    first_row = _first_row(sizes[:split], [x[:split] for x in spread])
    places = [
        _place(sizes, strides, split, first_row, form.item_bytes)
        for strides, form in zip(spread, forms, strict=True)
    ]
    for k in viewed:
        if places[k].plane_bytes is not None:
            width = prod(sizes[split:]) if places[k].column_bytes else 1
            row_bytes = width * forms[k].item_bytes
            places[k] = Place(row_bytes, places[k].column_bytes, is_copied=True)
    count = len(operands)
    if any(place.is_copied for place in places[count:]):
        return None
    for k, form in enumerate(results, count):
        places[k] = places[k]._replace(column_bytes=form.item_bytes)
    moved = None if order == tuple(range(len(shape))) else order
    copies = any(place.is_copied for place in places)
    columns = prod(sizes[split:])
    rows, plane_rows = prod(sizes[:split]), prod(sizes[first_row:split])
    return Layout(rows, columns, split, moved, tuple(places), copies, plane_rows)


def dense(sizes: Sizes, item_bytes: int) -> Sizes:
    """Return the strides of a row-major array."""
    return tuple(prod(sizes[d + 1 :]) * item_bytes for d in range(len(sizes)))


def _spread(form: Form, shape: Sizes, order: Sizes) -> Sizes:
    """Return an operand's strides in all dimensions, in order; zero where it repeats."""
    before = len(shape) - len(form.sizes)
    return tuple(
        0 if axis < before or form.sizes[axis - before] == 1 else form.strides[axis - before]
        for axis in order
    )


def _split(
    sizes: Sizes, operands: Sequence[Sizes], item_bytes: Sequence[int], fewest_columns: int
) -> int:
    """Return from which dimension on every array either runs through them, or repeats."""
    split, columns = len(sizes), 1
    kinds: list[int | None] = [None] * len(operands)
    for axis in range(len(sizes) - 1, -1, -1):
        if sizes[axis] > 1:
            steps = [x[axis] for x in operands]
            for k, (step, item) in enumerate(zip(steps, item_bytes, strict=True)):
                kind = 0 if step == 0 else 1 if step == columns * item else None
                if kind is None or kinds[k] not in (None, kind):
                    return split if columns >= fewest_columns else 0
            kinds = [int(step != 0) for step in steps]
            columns *= sizes[axis]
        split = axis
    return split


def _first_row(sizes: Sizes, operands: Sequence[Sizes]) -> int:
    """Return the dimension from which on rows are those of a plane: fewest are copied there."""

    def copied(first: int) -> int:
        return sum(
            _stride(sizes, x) is None
            and None in (_stride(sizes[:first], x[:first]), _stride(sizes[first:], x[first:]))
            for x in operands
        )

    return min(range(len(sizes) - 1, -1, -1), key=copied, default=0)


def _stride(sizes: Sizes, strides: Sizes) -> int | None:
    """Return the stride at which all elements lie one after another, None where there is none."""
    count, stride = 1, 0
    for n, step in zip(reversed(sizes), reversed(strides), strict=True):
        if n == 1:
            continue
        if count == 1:
            stride = step
        elif step != stride * count:
            return None
        count *= n
    return stride


def _place(sizes: Sizes, strides: Sizes, split: int, first_row: int, item_bytes: int) -> Place:
    """Return where an operand's rows begin; it is copied where two strides do not say it."""
    columns = prod(sizes[split:])
    inner = [s for s, n in zip(strides[split:], sizes[split:], strict=True) if n > 1]
    if any(inner) and not _runs(sizes[split:], strides[split:], item_bytes):
        return Place(columns * item_bytes, item_bytes, is_copied=True)
    column_bytes = item_bytes if any(inner) else 0
    row_bytes = _stride(sizes[:split], strides[:split])
    if row_bytes is not None:
        return Place(row_bytes, column_bytes)
    plane_bytes = _stride(sizes[:first_row], strides[:first_row])
    row_bytes = _stride(sizes[first_row:split], strides[first_row:split])
    if plane_bytes is not None and row_bytes is not None:
        return Place(row_bytes, column_bytes, plane_bytes=plane_bytes)
    width = columns if column_bytes else 1
    return Place(width * item_bytes, column_bytes, is_copied=True)


def _runs(sizes: Sizes, strides: Sizes, item_bytes: int) -> bool:
    pairs = zip(strides, dense(sizes, item_bytes), sizes, strict=True)
    return all(s == d for s, d, n in pairs if n > 1)


def laid_out(x: Array, shape: Sizes, layout: Layout, place: Place) -> Array:
    """Return an operand so that its rows lie as its place says."""
    if not place.is_copied:
        return x
    whole = np.broadcast_to(x, shape)
    if layout.order is not None:
        whole = whole.transpose(layout.order)
    if not place.column_bytes:
        kept: list[slice | int] = [slice(None)] * layout.split
        whole = whole[(*kept, *[0] * (len(shape) - layout.split))]
    return contiguous(whole)
