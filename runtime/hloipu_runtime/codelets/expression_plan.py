"""Computing expressions whose nodes are bound to kernels, large arrays in blocks.

Between the nodes of one block stand buffers that are used over and over, so that they stay in cache
and no page is mapped for them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from hloipu_runtime.codelets.codelet import Bound
from hloipu_runtime.codelets.expression_steps import FEW_CHOICES, Choice, Plain, Step
from hloipu_runtime.codelets.straight import Call, Straight
from hloipu_runtime.kernels.blocks import Array, aligned_empty, blocks, repeats
from hloipu_runtime.kernels.movement import contiguous
from hloipu_runtime.kernels.quiet import are_off, warnings_off

_ALIGNED_ELEMENTS = 1 << 14
"""From here on copying a transposed operand is cheaper than walking two orders at once."""

_WALKED_ELEMENTS = 1 << 14
"""From here on values between nodes stand in buffers."""

_FEW_OPS_ELEMENTS = 1 << 17
"""The same where there are two nodes at most: what is between them is written and read once."""

Shape = tuple[int, ...]
Values = list[Any]
"""Arrays by number: operands first, nodes follow."""
Operation = Callable[[Values, Array | None], Array]
"""A node on the values before it, and perhaps the array to write to."""


class Move(NamedTuple):
    """One node, ready to run."""

    step: Step
    compute: Operation
    """The step with its arguments bound to their places."""
    writes_out: bool
    """Whether its result shares no memory with an argument."""
    number: int
    """Of its value."""
    arguments: tuple[int, ...]
    result: int
    """Position of the first result that it is, or -1."""
    buffer: int
    """Where its value stands between nodes of one block; -1: what the step returns."""
    dtype: np.dtype[Any]
    read_later: tuple[int, ...]
    """Of a result: operands that later nodes, or results that are operands, still read."""


def operation(step: Step, arguments: Sequence[int]) -> Operation:
    """Return a step with its arguments bound to their places among the values."""
    if isinstance(step, Plain) and len(arguments) in (1, 2):
        ufunc, array, first, last = step.ufunc, np.asarray, arguments[0], arguments[-1]
        if len(arguments) == 1:
            return lambda values, out: array(ufunc(values[first], out=out))
        return lambda values, out: array(ufunc(values[first], values[last], out=out))
    return lambda values, out: step([values[x] for x in arguments], out)


def _called(step: Step, arguments: Sequence[Shape], shape: Shape) -> Callable[..., Any]:
    """Return a step as a function of arrays; numbers become arrays."""
    count = len(arguments)
    if isinstance(step, Choice) and shape == arguments[0] != () and prod(shape) < FEW_CHOICES:
        return np.where
    if isinstance(step, Plain) and shape:
        return step.ufunc
    if count == 1:
        return lambda x, out=None: step([x], out)
    if count == 2:
        return lambda x, y, out=None: step([x, y], out)
    return lambda *x, out=None: step(list(x), out)


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """An expression made ready to run."""

    operands: int
    fixed: tuple[Array | None, ...]
    """Of each node: its value where that is a constant."""
    moves: tuple[Move, ...]
    """The nodes that are no constants, in order."""
    results: tuple[int, ...]
    dtypes: tuple[np.dtype[Any], ...]
    """Of the results."""
    warns: bool
    """Whether numpy may have something to say about the floats."""
    walks: bool
    """Whether large arrays are walked in blocks: all but single ops, which walk by themselves."""

    def run(
        self,
        arrays: Sequence[Array],
        outs: Sequence[Array | None] | None = None,
        shape: Shape | None = None,
    ) -> Sequence[Array]:
        """Compute the results; see `expression.evaluate`."""
        shapes = tuple([x.shape for x in arrays])
        if shape is None:
            shape = _common_shape(shapes)
        return _bound(self, shapes, shape)(arrays, outs or (None,) * len(self.results))

    def bound(self, shapes: Sequence[Shape], shape: Shape) -> Bound:
        """Return how to compute the results from operands of these shapes; `shape`: the common one.

        What is given for a result may be an operand, or share no memory with any.
        """
        if not self.moves and not shapes:
            constants = [np.broadcast_to(self._constant(x), shape) for x in self.results]
            return lambda arrays, outs: constants
        elements = prod(shape)
        if self.walks_at(shape):
            return self._quiet(lambda arrays, outs: self._in_blocks(arrays, outs, shape))
        known = _shapes(self, shapes)
        spread = any(known[number] != shape for number in self.results)
        fixed, results = self.fixed, self.results
        aligned = elements >= _ALIGNED_ELEMENTS and not self.walks and len(shapes) > 1
        calls = [
            (
                move.compute,
                move.number,
                move.result if known[move.number] == shape else -1,
                move.read_later,
            )
            for move in self.moves
        ]

        def run(arrays: Sequence[Array], outs: Sequence[Array | None]) -> list[Array]:
            values: Values = [*arrays, *fixed]
            if aligned:
                _align(values, len(arrays))
            for compute, number, result, read_later in calls:
                out = outs[result] if result >= 0 else None
                if out is not None and read_later and not _untouched(out, arrays, read_later):
                    out = None
                values[number] = compute(values, out)
            made = [values[number] for number in results]
            return [np.broadcast_to(x, shape) for x in made] if spread else made

        return self._quiet(run)

    def straight(self, shapes: Sequence[Shape], shape: Shape) -> Straight | None:
        """Return the nodes as calls; None where large arrays are better walked in blocks."""
        if self.walks_at(shape):
            return None
        known = _shapes(self, shapes)
        constants = {
            self.operands + n: value for n, value in enumerate(self.fixed) if value is not None
        }
        calls = []
        for move in self.moves:
            shape_here = known[move.number]
            function = _called(move.step, [known[x] for x in move.arguments], shape_here)
            calls.append(
                Call(function, move.arguments, move.number, shape_here, move.dtype,
                     is_fresh=move.writes_out or function is np.where,
                     takes_out=move.writes_out, in_place=move.writes_out)
            )  # fmt: skip
        results = []
        for number in self.results:
            if known[number] == shape:
                results.append(number)
                continue
            if number in constants:
                results.append(len(known) + len(results))
                constants[results[-1]] = np.broadcast_to(constants[number], shape)
                continue
            spread = partial(np.broadcast_to, shape=shape)
            results.append(len(known) + len(results))
            calls.append(
                Call(spread, (number,), results[-1], shape, None,
                     is_fresh=False, takes_out=False, in_place=False)
            )  # fmt: skip
        aligned = prod(shape) >= _ALIGNED_ELEMENTS
        return Straight(constants, tuple(calls), tuple(results), needs_row_major=aligned)

    def walks_at(self, shape: Shape) -> bool:
        """Whether arrays of this shape are walked in blocks."""
        few = len(self.moves) <= 2
        return self.walks and prod(shape) > (_FEW_OPS_ELEMENTS if few else _WALKED_ELEMENTS)

    def _constant(self, number: int) -> Array:
        """Return the value of a node that is a constant."""
        value = self.fixed[number - self.operands]
        if value is None:
            raise ValueError(f"node {number} is no constant")
        return value

    def _quiet(self, run: Bound) -> Bound:
        if not self.warns:
            return run

        def quiet(arrays: Sequence[Array], outs: Sequence[Array | None]) -> Sequence[Array]:
            if are_off():
                return run(arrays, outs)
            with warnings_off():
                return run(arrays, outs)

        return quiet

    def _in_blocks(
        self, arrays: Sequence[Array], outs: Sequence[Array | None], shape: Shape
    ) -> list[Array]:
        """Run all nodes on one block after the other; results are whole arrays."""
        made = [
            _result_like(arrays, shape, dtype) if out is None else out
            for out, dtype in zip(outs, self.dtypes, strict=True)
        ]
        if not made:
            return []
        count = len(made)
        aligned = [made[0], *arrays]
        _align(aligned, len(aligned))
        calls = self._calls_in_blocks(made, arrays)
        buffers: dict[int, Array] = {}
        for pieces in blocks(made[0], *made[1:], *aligned[1:]):
            values: Values = [*pieces[count:], *self.fixed]
            part = pieces[0].shape
            for compute, number, result, buffer, dtype in calls:
                if result >= 0:
                    values[number] = compute(values, pieces[result])
                elif buffer >= 0:
                    kept = buffers.get(buffer)
                    if kept is None or kept.shape != part:
                        kept = buffers[buffer] = aligned_empty(part, dtype)
                    values[number] = compute(values, kept)
                else:
                    values[number] = compute(values, None)
            for target, number in zip(pieces, self.results, strict=False):
                if values[number] is not target:
                    np.copyto(target, values[number])
        return made

    def _calls_in_blocks(
        self, made: Sequence[Array], arrays: Sequence[Array]
    ) -> list[tuple[Operation, int, int, int, np.dtype[Any]]]:
        """Return for each node what computes it, its number, and where its value may be written.

        Pieces of operands all have the block's shape: values that depend on none have no dimension,
        and are not written anywhere.
        """
        full = [True] * self.operands + [False] * len(self.fixed)
        calls = []
        for move in self.moves:
            full[move.number] = any(full[x] for x in move.arguments)
            result, buffer = move.result, move.buffer
            if result >= 0 and not _untouched(made[result], arrays, move.read_later):
                result = -1
            if not full[move.number]:
                result = buffer = -1
            calls.append((move.compute, move.number, result, buffer, move.dtype))
        return calls


@lru_cache(maxsize=4096)
def _bound(plan: Plan, shapes: tuple[Shape, ...], shape: Shape) -> Bound:
    return plan.bound(shapes, shape)


def _shapes(plan: Plan, shapes: Sequence[Shape]) -> list[Shape]:
    """Return the shape of every value."""
    found = [*shapes, *(() for _ in plan.fixed)]
    for move in plan.moves:
        found[move.number] = _common_shape([found[x] for x in move.arguments])
    return found


def _common_shape(shapes: Sequence[Shape]) -> Shape:
    if not shapes:
        return ()
    if all(shape == shapes[0] for shape in shapes):
        return shapes[0]
    return np.broadcast_shapes(*shapes)


def _untouched(out: Array, arrays: Sequence[Array], read_later: Sequence[int]) -> bool:
    """Whether writing to `out` leaves alone what is still to be read."""
    return not any(np.may_share_memory(out, arrays[k]) for k in read_later)


def _align(arrays: list[Array], count: int) -> None:
    """Copy large transposed arrays of the first ones to row-major order if another has that order.

    Walking two large arrays in different orders misses the cache at every element of one.
    """
    large = [k for k in range(count) if arrays[k].size >= _ALIGNED_ELEMENTS]
    if not any(arrays[k].flags.c_contiguous for k in large):
        return
    for k in large:
        x = arrays[k]
        if x.shape[-1] > 1 and x.strides[-1] != x.itemsize and not repeats(x):
            arrays[k] = contiguous(x)


def _result_like(arrays: Sequence[Array], shape: Shape, dtype: np.dtype[Any]) -> Array:
    """Return a fresh result in the memory order of the operands of its shape, if they agree."""
    orders = {x.strides for x in arrays if x.shape == shape and not repeats(x)}
    if len(orders) == 1:
        model = next(x for x in arrays if x.shape == shape and not repeats(x))
        return np.empty_like(model, dtype, subok=False)
    return np.empty(shape, dtype)
