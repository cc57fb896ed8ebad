"""Windows: reduce-window, and where the part of a window lies that a tile computes."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import gcd, prod
from typing import Any, ClassVar, NamedTuple

import numpy as np

from hloipu_runtime.codelets.core.codelet import ALL, Codelet, Index, Indexing, codelet
from hloipu_runtime.codelets.core.expression import region
from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.codelets.core.grids import distinct_scalars, one_by_one, share, spread
from hloipu_runtime.codelets.core.placing import first_start
from hloipu_runtime.codelets.core.tensors import Array, Block, Blocks, Bound, Sizes, Tensors
from hloipu_runtime.codelets.costs.windows import Pooled, pooling_work, running_work
from hloipu_runtime.kernels.core.monoids import identity
from hloipu_runtime.kernels.windows import reduce_window
from hloipu_runtime.kernels.windows_geometry import WindowDimension
from hloipu_runtime.machine.costs import TileWork
from hloipu_runtime.machine.model import Machine

Window = tuple[tuple[int, int, int, int, int, int], ...]
"""For each dimension size, stride, low and high padding, base dilation, window dilation."""


def dimensions_of(window: Window) -> tuple[WindowDimension, ...]:
    """Return the window as kernels take it."""
    return tuple(WindowDimension(*fields) for fields in window)


def reach(w: WindowDimension) -> int:
    """Return the elements from the first to the last of one window."""
    return (w.size - 1) * w.window_dilation + 1


class WindowLabel(NamedTuple):
    """How operand and result follow a label that counts windows, `size` of it in all."""

    operand: Index
    result: Index
    size: int


def window_label(label: int, w: WindowDimension, size: int, windows: int) -> WindowLabel | None:
    """Return how a dimension of `size` elements and its windows follow a label.

    With base dilation the label counts periods: runs of windows after which the holes lie the same
    again. None where every window needs about all of the dimension, and its tiles would all differ
    in padding: running totals.
    """
    if w == WindowDimension(1):
        return WindowLabel(Index(label), Index(label), windows)
    period = w.base_dilation // gcd(w.base_dilation, w.stride)
    first = -(w.pad_low // w.base_dilation)
    last = ((period - 1) * w.stride - w.pad_low + reach(w) - 1) // w.base_dilation
    window = max(1, last - first + 1)
    if window >= size and 2 * max(w.pad_low, w.pad_high) >= size > 1:
        return None
    return WindowLabel(
        Index(label, period * w.stride // w.base_dilation, first, window),
        Index(label, period, 0, period),
        -(-windows // period),
    )


def part_window(
    w: WindowDimension, operand: Block, result: Block, of_operand: int, of_result: int
) -> WindowDimension:
    """Return the window that makes a tile's results from its part of the operand.

    `result` has one element for each window, whatever it is to the codelet; the numbers are of the
    dimensions. The operand's part is what the windows read, cut off at the whole's ends: padding is
    what was cut. All tiles of a class are cut alike.
    """
    part, windows = operand.part[of_operand], result.part[of_result]
    if part == operand.whole[of_operand] and windows == result.whole[of_result]:
        return w
    first = first_start(result, of_result) * w.stride - w.pad_low
    low = first_start(operand, of_operand) * w.base_dilation - first
    dilated = (part - 1) * w.base_dilation + 1 if part else 0
    high = (windows - 1) * w.stride + reach(w) - low - dilated
    return replace(w, pad_low=low, pad_high=high)


@codelet
class ReduceWindow(Codelet):
    """Reduces each window of the operands; operands are n arrays, then n init scalars."""

    name: ClassVar[str] = "reduce_window"
    window: Window
    monoid: str
    """Its name, for one operand; "": `body` says how."""
    body: Expression | None
    element_types: tuple[str, ...]
    """Of the results."""
    associative: bool | None = None
    """Whether a body may be applied pairwise; None: decided by the window's size."""

    @property
    def code_kind(self) -> str:
        """That of its monoid."""
        return f"{self.name}-{self.monoid}"

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Return a label for each dimension that windows do not span the whole of."""
        shape = operands[0].shape
        sizes: list[int] = []
        inside: list[Index] = []
        outside: list[Index] = []
        for d, w in enumerate(dimensions_of(self.window)):
            found = window_label(len(sizes), w, shape[d], results[0].shape[d])
            inside.append(found.operand if found else ALL)
            outside.append(found.result if found else ALL)
            if found:
                sizes.append(found.size)
        arrays = (tuple(inside),) * len(results)
        inits: tuple[tuple[Index, ...], ...] = ((),) * len(results)
        return Indexing(tuple(sizes), (*arrays, *inits), (tuple(outside),) * len(results))

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Reduce; what tiles share is reduced once."""
        count = len(results)
        shared = share(operands[:count])
        inits = distinct_scalars(operands[count:])
        if inits is None:
            dtypes = [x.dtype for x in shared.arrays]
            return one_by_one(self.run, operands, results, dtypes)
        window = [WindowDimension(1)] * len(shared.grid) + self._part_window(operands, results)
        arrays, order = shared.arrays, list(range(len(window)))
        if self.monoid and shared.grid:
            order.sort(key=lambda d: -abs(arrays[0].strides[d]))  # as they lie: long inner loops
        how: Any = self.monoid or self._region
        made = reduce_window(
            [x.transpose(order) for x in arrays],
            inits,
            [window[d] for d in order],
            how,
            self.element_types,
            associative=self.associative,
        )
        back = sorted(range(len(order)), key=order.__getitem__)
        return [spread(x.transpose(back), results[0].grid, shared.grid) for x in made]

    def zero_ends(self, operand: int) -> Sizes:
        """Let the monoid's neutral element stand for padding."""
        if operand or not self.monoid:
            return ()
        windows = dimensions_of(self.window)
        return tuple(d for d, w in enumerate(windows) if w != WindowDimension(1))

    def end_value(self, dtype: np.dtype[Any]) -> Any:
        """Return that element."""
        return identity(self.monoid, dtype)

    def ignores(self, unused: Sequence[Sequence[bool]]) -> bool:
        """Let a monoid make results that nobody reads, but take in no such elements."""
        return bool(self.monoid) and not any(unused[0][d] for d in self.zero_ends(0))

    def _part_window(self, operands: Blocks, results: Blocks) -> list[WindowDimension]:
        return [
            part_window(w, operands[0], results[0], d, d)
            for d, w in enumerate(dimensions_of(self.window))
        ]

    def bound(self, operands: Blocks, results: Blocks) -> Bound:
        """Return `run`, of whole tensors with the window at hand."""
        if results[0].grid:
            return super().bound(operands, results)
        count = len(results)
        window = self._part_window(operands, results)
        how: Any = self.monoid or self._region

        def run(arrays: Sequence[Array], outs: Sequence[Array | None]) -> Sequence[Array]:
            return reduce_window(
                arrays[:count], arrays[count:], window, how, self.element_types,
                associative=self.associative,
            )  # fmt: skip

        return run

    @property
    def _region(self) -> Callable[..., list[Array]]:
        assert self.body is not None
        return region(self.body)

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Return the work of pooling, with dimensions without windows as channels.

        That of running totals where windows are one dimension's beginnings or ends.
        """
        running = running_dimension(dimensions_of(self.window), results[0].shape)
        tensors = (*operands[: len(results)], *results)
        if running >= 0:
            length = results[0].shape[running]
            rows = results[0].elements // max(1, length)
            inner = prod(results[0].shape[running + 1 :])
            return running_work(machine, tensors, rows, length, self.monoid, self.body, inner)
        shape, window = results[0].shape, dimensions_of(self.window)
        return pooling_work(
            machine, tensors, pooled(shape, window), taken_in(window), self.monoid, self.body
        )


def running_dimension(window: Sequence[WindowDimension], shape: Sizes) -> int:
    """Return the only dimension with windows, if they are all of its beginnings or ends; or -1."""
    long = [d for d, w in enumerate(window) if w != WindowDimension(1)]
    if len(long) != 1:
        return -1
    w, size = window[long[0]], shape[long[0]]
    reaching = WindowDimension(w.size, 1, w.size - 1, 0), WindowDimension(w.size, 1, 0, w.size - 1)
    return long[0] if w.size >= size > 1 and w in reaching else -1


def pooled(shape: Sizes, window: Sequence[WindowDimension]) -> Pooled:
    """Return what there is of windows that have one element each in a result of this shape."""
    items = [n for n, w in zip(shape, window, strict=True) if w != WindowDimension(1)]
    channels = prod(n for n, w in zip(shape, window, strict=True) if w == WindowDimension(1))
    return Pooled(prod(items), channels, items[-1] if items else 1)


def taken_in(window: Sequence[WindowDimension]) -> list[int]:
    """Return how many elements a window takes in along each dimension: those not in holes."""
    return [-(-reach(w) // w.base_dilation) if w.window_dilation == 1 else w.size for w in window]
