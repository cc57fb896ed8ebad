"""Writes expressions and reductions on arrays that fit the cache as straight-line calls."""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from operator import itemgetter, methodcaller
from typing import Any

import numpy as np

from hloipu_runtime.codelets.core.arranging import Labels, arranged
from hloipu_runtime.codelets.core.expression import plan_of
from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.codelets.core.straight import (
    Array,
    Call,
    Sizes,
    Straight,
    Take,
    copying,
    row_major,
)
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.kernels.core.monoids import UFUNCS, identity
from hloipu_runtime.kernels.core.rounding import is_narrow, round_to
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.kernels.native.settings import settings
from hloipu_runtime.kernels.reduction import (
    MANY_ROWS,
    SHORT_AXIS,
    is_plain,
    reduce_monoid,
    rows_reduced,
    take_in,
)

MOST_ELEMENTS = 1 << 14
"""Larger arrays are better computed a few rows at a time, in buffers."""


class CallWriter:
    """Collects calls; values go by numbers, operands first."""

    def __init__(self, operands: Sequence[Sizes], *, in_cache: bool = False) -> None:
        """Begin with operands of some shapes; `in_cache`: they are blocks of larger ones."""
        self._in_cache = in_cache
        self.shapes: dict[int, Sizes] = dict(enumerate(operands))
        self._constants: dict[int, Any] = {}
        self._calls: list[Call] = []

    def straight(self, results: Sequence[int]) -> Straight:
        """Return what was collected."""
        return Straight(self._constants, tuple(self._calls), tuple(results))

    def constant(self, value: Array) -> int:
        """Return the number of a constant."""
        number = self._number(value.shape)
        self._constants[number] = value
        return number

    def arranged(self, operand: int, labels: Labels, rank: int, axes: int = 0) -> int:
        """Return an operand that broadcasts in a space; see `arranging.arranged`.

        Behind grid axes it is made row-major as well.
        """
        shape = self.shapes[operand]
        if axes:
            operand = self.row_major(operand)
            labels = (*range(axes), *(axes + d for d in labels))
            rank += axes
        if tuple(labels) == tuple(range(rank - len(shape), rank)):
            return operand
        wanted = arranged(np.broadcast_to(np.zeros(()), shape), labels, rank, 0).shape
        if list(labels) == sorted(labels):
            return self.reshaped(operand, wanted)
        return self.view(partial(arranged, labels=labels, rank=rank, axes=0), operand, wanted)

    def first(self, operand: int) -> int:
        """Return what the first tile has of an operand without dimensions."""
        shape = self.shapes[operand]
        if not shape:
            return operand
        index: tuple[Any, ...] = (*(0 for _ in shape), ...)
        return self.view(itemgetter(index), operand, ())

    def computed(
        self,
        function: Callable[..., Array],
        arguments: Sequence[int],
        shape: Sizes,
        out: np.dtype[Any] | None = None,
        *,
        is_fresh: bool = True,
        on_arrays: Callable[..., list[Callable[[], object]] | None] | None = None,
    ) -> int:
        """Return what a function makes of values; with a dtype it takes `out`."""
        made = self._number(shape)
        self._calls.append(
            Call(function, tuple(arguments), made, shape, out,
                 is_fresh=is_fresh, takes_out=out is not None, in_place=False, on_arrays=on_arrays)
        )  # fmt: skip
        return made

    def view(
        self, function: Callable[[Array], Array], number: int, shape: Sizes,
        back: Callable[[Array], Array | None] | None = None,
    ) -> int:  # fmt: skip
        """Return what a function makes of a value, which may share its memory; see `Call.back`."""
        made = self._number(shape)
        self._calls.append(
            Call(function, (number,), made, shape, None,
                 is_fresh=False, takes_out=False, in_place=False, is_view=True, back=back)
        )  # fmt: skip
        return made

    def row_major(self, number: int) -> int:
        """Return a value that lies row-major: itself, or a copy."""
        return self.view(row_major, number, self.shapes[number])

    def spread(self, number: int, shape: Sizes) -> int:
        """Return a value repeated to a shape."""
        if self.shapes[number] == shape:
            return number
        return self.view(partial(np.broadcast_to, shape=shape), number, shape)

    def reshaped(self, number: int, shape: Sizes) -> int:
        """Return a value in another shape."""
        if self.shapes[number] == shape:
            return number
        return self.view(methodcaller("reshape", shape), number, shape)

    def expression(self, expression: Expression, operands: Sequence[int]) -> list[int] | None:
        """Return the results of an expression on values, None where it is no calls."""
        shapes = [self.shapes[x] for x in operands]
        shape = np.broadcast_shapes(*shapes)
        found = plan_of(expression).straight(shapes, shape, in_cache=self._in_cache)
        if found is None:
            return None
        number_of = dict(enumerate(operands))
        for number, value in found.constants.items():
            number_of[number] = self.constant(value)
        for call in found.calls:
            number_of[call.number] = self._number(call.shape)
            arguments = tuple(number_of[x] for x in call.arguments)
            self._calls.append(call._replace(arguments=arguments, number=number_of[call.number]))
        return [number_of[x] for x in found.results]

    def reduction(self, monoid: str, kind: str, number: int, init: int, along: Sizes) -> int:
        """Return a value reduced along dimensions, which stay with size 1, from an init on."""
        shape = self.shapes[number]
        left = tuple(1 if d in along else n for d, n in enumerate(shape))
        is_fresh = monoid in ("add", "multiply")  # of one element an extremum is a view
        function = reducing(monoid, kind, shape, along)
        seen, axis = _as_numpys(shape, along)
        is_sum = monoid == "add" and kind in ("f32", "f64") and axis >= 0 and is_plain(seen, axis)
        prepare = partial(_sum_on_arrays, seen, axis) if is_sum else None
        return self.computed(function, (number, init), left, is_fresh=is_fresh, on_arrays=prepare)

    def _number(self, shape: Sizes) -> int:
        number = len(self.shapes)
        self.shapes[number] = shape
        return number


def _sum_on_arrays(
    seen: Sizes, axis: int, arguments: Sequence[Array], out: Array, take: Take
) -> list[Callable[[], object]] | None:
    """Return a sum with its init as numpy's own calls, of a row-major array."""
    x, init = arguments
    if not x.flags.c_contiguous:
        return None
    sums = take(out.shape, out.dtype)
    into = sums.reshape([1 if d == axis else n for d, n in enumerate(seen)])
    return [
        partial(np.add.reduce, x.reshape(seen), axis, None, into, True),
        partial(np.add, init, sums, out),
    ]


def pieces_on_arrays(
    seen: Callable[[Array], Array], axis: int, arguments: Sequence[Array], out: Array, take: Take
) -> list[Callable[[], object]] | None:
    """Return sums of pieces along an axis, as `seen` shows them row-major, as numpy's own call."""
    x = seen(arguments[0])
    if not (x.flags.c_contiguous and np.may_share_memory(x, arguments[0])):
        return None
    into = out if out.flags.c_contiguous else take(out.shape, out.dtype)
    added = partial(np.add.reduce, x, axis, None, into.reshape(np.delete(x.shape, axis)))
    return [added] if into is out else [added, copying(out, into)]


def numbers_on_arrays(
    reduce: Callable[..., Array], starts: Array, axis: int, counted: int,
    arguments: Sequence[Array], out: Array, take: Take,
) -> list[Callable[[], object]]:  # fmt: skip
    """Return reductions of integers from each start along an axis on, counted along another one."""
    (x,) = arguments
    into = np.moveaxis(out, counted, axis)
    return [partial(reduce, x, starts, axis, x.dtype, into)]


def _as_numpys(shape: Sizes, along: Sizes) -> tuple[Sizes, int]:
    """Return the shape in which an array is reduced along one axis, and that; -1: along several."""
    if len(shape) > 1 and along == tuple(range(len(shape))):
        return (prod(shape),), 0
    return shape, along[0] if len(along) == 1 else -1


_MANY = 1 << 12
"""Elements whose short rows take numpy longer than the call of a kernel."""


def reducing(monoid: str, kind: str, shape: Sizes, along: Sizes) -> Callable[[Array, Array], Array]:
    """Return the reduction of arrays of a shape; reduced dimensions stay with size 1.

    Where the kernel does no more than numpy's own reduction, it is that.
    """

    def general(x: Array, init: Array) -> Array:
        reduced = reduce_monoid(x, monoid, along)
        return np.expand_dims(take_in(init, reduced, monoid, kind), along)

    seen, axis = _as_numpys(shape, along)
    is_numpys = axis >= 0 and is_plain(seen, axis)
    narrow, dtype = is_narrow(kind), storage_dtype(kind)
    is_exact = kind == "pred" or (dtype.kind in "iu" and ELEMENT_TYPES[kind].bits >= 8)
    folds = is_exact or monoid in ("add", "multiply")
    if not is_numpys or not (is_exact or narrow or kind in ("f32", "f64")):
        return general
    if not folds and monoid not in ("minimum", "maximum"):
        return general
    if monoid == "multiply" and prod(seen) > MANY_ROWS and seen[axis] > SHORT_AXIS:
        return general  # of floats, halves fold side by side
    keeps = seen == shape
    left = tuple(1 if d in along else n for d, n in enumerate(shape))
    ufunc, reduce_along, count_nonzero = UFUNCS[monoid], UFUNCS[monoid].reduce, np.count_nonzero
    start = None if folds else float(identity(monoid, dtype))
    wanted = dtype if is_exact else None  # numpy would add small integers up in larger ones
    rows = prod(seen[:axis]), seen[axis], prod(seen[axis + 1 :])
    is_row = axis == len(seen) - 1 > 0 and (is_exact or not folds)
    # Numpy's loop begins anew for each short row, a kernel's does not.
    is_kernels = monoid == "add" and 1 < rows[2] <= SHORT_AXIS and prod(seen) >= _MANY

    def run(x: Array, init: Array) -> Array:
        if not x.flags.c_contiguous:
            return general(x, init)
        reduced: Array | None = None
        if is_kernels and settings().compiles:
            from hloipu_runtime.kernels.native.short_rows import sum_natively

            reduced = sum_natively(x.reshape(rows))
        if reduced is None and is_row:
            reduced = rows_reduced(x.reshape(rows[:2]), ufunc)
        elif reduced is None:
            reduced = reduce_along(x if keeps else x.reshape(seen), axis, wanted, keepdims=keeps)
        if reduced.shape != left:
            reduced = np.asarray(reduced).reshape(left)
        if folds:
            combined = np.asarray(ufunc(init, reduced))
            return round_to(combined, kind) if narrow else combined
        # Which of two zeros wins an extremum numpy leaves open.
        if init.item() != start or count_nonzero(reduced) != reduced.size:
            return general(x, init)
        return reduced

    return run
