"""Runs planned expressions: at once, in blocks, or as calls."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from math import prod
from typing import Any

import numpy as np

from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.codelets.core.expression_steps import Choose, Narrowed, OrZero, Plain, Step
from hloipu_runtime.codelets.core.expression_walk import (
    ALIGNED_ELEMENTS,
    TABLE_ELEMENTS,
    Move,
    Values,
    Walk,
    align,
    in_blocks,
    untouched,
)
from hloipu_runtime.codelets.core.straight import Call, Straight
from hloipu_runtime.codelets.core.tensors import Bound
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.kernels.core.blocks import (
    CALL_WORK,
    NATIVE_WORK,
    WHOLE_CALL_WORK,
    Array,
    rounding_work,
)
from hloipu_runtime.kernels.core.quiet import are_off, warnings_off
from hloipu_runtime.kernels.elementwise.compare import FEW_CHOICES

_WALKED_ELEMENTS = 1 << 14
"""From here on values between nodes stand in buffers."""

RUN_WORK = 8
"""Of a run of elements that numpy's loop begins anew, in roundings: some 10 ns."""

SHORT_RUN = 64
"""Elements of a run, up to which beginning it takes numpy longer than what it does."""

_FEW_OPS_ELEMENTS = 1 << 17
"""The same where there are two nodes at most: what is between them is written and read once."""

Shape = tuple[int, ...]


def _called(step: Step, arguments: Sequence[Shape], shape: Shape) -> Callable[..., Any]:
    count = len(arguments)
    chooses = isinstance(step, Choose | OrZero)
    if chooses and shape == arguments[0] != () and prod(shape) < FEW_CHOICES:
        return np.where
    if isinstance(step, Plain):
        return step.ufunc
    if isinstance(step, Narrowed):
        return step.of_shape(shape)
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
    masked: Walk
    """The same for large arrays, which are chosen from by masks."""
    warns: bool
    """Whether numpy may have something to say about the floats."""
    walks: bool
    """Whether large arrays are walked in blocks: all but single ops, which walk by themselves."""
    expression: Expression
    gain: float
    """What a compiled kernel saves for each element, in roundings of narrow floats."""
    saved_calls: int
    """Calls of numpy in whose place a kernel is."""
    is_one_kernel: bool
    """Whether numpy computes nothing for it."""
    by_tables: "Plan | None" = None
    """The same with chains looked up, for large arrays."""

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
        plain = self._plain(shapes, shape)
        if not self._gains_at(shapes, shape):
            return plain
        from hloipu_runtime.codelets.core.native_expression import natively

        return natively(self.expression, self._work(shapes, shape), plain, shapes, shape)

    def _plain(self, shapes: Sequence[Shape], shape: Shape) -> Bound:
        """Return how to compute the results by numpy."""
        elements = prod(shape)
        if self.by_tables is not None and elements >= TABLE_ELEMENTS:
            return self.by_tables._plain(shapes, shape)
        if self.walks_at(shape):
            return self._quiet(in_blocks(self.masked, shape))
        known = _shapes(self, shapes)
        spread = any(known[number] != shape for number in self.results)
        if shape and not spread and self._is_one_ufunc(elements):
            return self._quiet(self._one_ufunc())
        fixed, results = self.fixed, self.results
        aligned = elements >= ALIGNED_ELEMENTS and not self.walks and len(shapes) > 1
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
                align(values, len(arrays))
            for compute, number, result, read_later in calls:
                out = outs[result] if result >= 0 else None
                if out is not None and read_later and not untouched(out, arrays, read_later):
                    out = None
                values[number] = compute(values, out)
            made = [values[number] for number in results]
            return [np.broadcast_to(x, shape) for x in made] if spread else made

        return self._quiet(run)

    def straight(
        self, shapes: Sequence[Shape], shape: Shape, *, in_cache: bool = False
    ) -> Straight | None:
        """Return the nodes as calls; None where large arrays are better walked in blocks.

        `in_cache`: they are blocks already.
        """
        if self.by_tables is not None and prod(shape) >= TABLE_ELEMENTS:
            return self.by_tables.straight(shapes, shape, in_cache=in_cache)
        few = bool(shape) and not self.walks_at(shape) and prod(shape) <= _WALKED_ELEMENTS
        if few and not in_cache and not self.is_one_kernel:
            calls_of_parts = self._in_parts(shapes, shape)
            if calls_of_parts is not None:
                return calls_of_parts
        if self.results and not in_cache and self._gains_at(shapes, shape):
            from hloipu_runtime.codelets.core.native_expression import calls_by_kernels

            bound = self.bound(shapes, shape)
            fresh = {x.number for x in self.moves if x.writes_out}
            calls_of_kernels = calls_by_kernels(
                bound, self.operands, shape, self.dtypes, is_fresh=fresh.issuperset(self.results)
            )
            if calls_of_kernels is not None:
                return calls_of_kernels
        if self.walks_at(shape) and not in_cache:
            return None
        walk = self.masked if in_cache else self
        known = _shapes(walk, shapes)
        constants = {
            self.operands + n: value for n, value in enumerate(walk.fixed) if value is not None
        }
        calls = []
        for move in walk.moves:
            shape_here = known[move.number]
            function = _called(move.step, [known[x] for x in move.arguments], shape_here)
            takes_out = move.writes_out and function is not np.where
            calls.append(
                Call(function, move.arguments, move.number, shape_here, move.dtype,
                     is_fresh=takes_out or function is np.where,
                     takes_out=takes_out, in_place=takes_out,
                     on_arrays=getattr(move.step, "on_arrays", None))
            )  # fmt: skip
        results = []
        for number in walk.results:
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
                     is_fresh=False, takes_out=False, in_place=False, is_view=True)
            )  # fmt: skip
        aligned = prod(shape) >= ALIGNED_ELEMENTS
        return Straight(constants, tuple(calls), tuple(results), needs_row_major=aligned)

    def _in_parts(self, shapes: Sequence[Shape], shape: Shape) -> Straight | None:
        """Return kernels and functions of numpy as calls; None where kernels are not allowed."""
        if not self.gain or self._work(shapes, shape) < WHOLE_CALL_WORK:
            return None
        from hloipu_runtime.kernels.native.settings import settings

        if not settings().compiles:
            return None
        from hloipu_runtime.codelets.core.expression_parts import calls_in_parts

        return calls_in_parts(self.expression, shapes, shape)

    def _gains_at(self, shapes: Sequence[Shape], shape: Shape) -> bool:
        """Whether kernels may be compiled for arrays of this shape."""
        least = WHOLE_CALL_WORK if self.is_one_kernel else NATIVE_WORK
        if not shape or self._work(shapes, shape) < least:
            return False
        if not self.gain and not (self.is_one_kernel and _runs(shapes, shape)):
            return False
        from hloipu_runtime.kernels.native.settings import is_there

        return is_there()

    def _work(self, shapes: Sequence[Shape], shape: Shape) -> float:
        """Return what a kernel saves, in roundings of an element."""
        saved = self.gain * rounding_work(prod(shape)) + CALL_WORK * self.saved_calls
        return saved + RUN_WORK * _runs(shapes, shape)

    def walks_at(self, shape: Shape) -> bool:
        """Whether arrays of this shape are walked in blocks."""
        few = len(self.moves) <= 2
        return self.walks and prod(shape) > (_FEW_OPS_ELEMENTS if few else _WALKED_ELEMENTS)

    def _constant(self, number: int) -> Array:
        value = self.fixed[number - self.operands]
        if value is None:
            raise ValueError(f"node {number} is not a constant")
        return value

    def _is_one_ufunc(self, elements: int) -> bool:
        """Whether all but constants is one ufunc, whose operands may lie as they like."""
        if len(self.moves) != 1 or elements >= ALIGNED_ELEMENTS:
            return False
        return isinstance(self.moves[0].step, Plain) and self.results == (self.moves[0].number,)

    def _one_ufunc(self) -> Bound:
        (move,) = self.moves
        compute, fixed = move.compute, self.fixed
        return lambda arrays, outs: [compute([*arrays, *fixed], outs[0])]

    def _quiet(self, run: Bound) -> Bound:
        if not self.warns:
            return run

        def quiet(arrays: Sequence[Array], outs: Sequence[Array | None]) -> Sequence[Array]:
            if are_off():
                return run(arrays, outs)
            with warnings_off():
                return run(arrays, outs)

        return quiet


@lru_cache(maxsize=4096)
def _bound(plan: Plan, shapes: tuple[Shape, ...], shape: Shape) -> Bound:
    return plan.bound(shapes, shape)


def _shapes(plan: Plan | Walk, shapes: Sequence[Shape]) -> list[Shape]:
    """Return the shape of every value."""
    found = [*shapes, *(() for _ in plan.fixed)]
    for move in plan.moves:
        found[move.number] = _common_shape([found[x] for x in move.arguments])
    return found


def _runs(shapes: Sequence[Shape], shape: Shape) -> int:
    """Return how often numpy begins a short run of elements anew because operands repeat."""
    repeats = {
        tuple(
            n == 1 < whole for n, whole in zip((1,) * (len(shape) - len(x)) + x, shape, strict=True)
        )
        for x in shapes
    }
    if not any(map(any, repeats)):
        return 0
    outer = len(shape)
    while outer and all(len({x[outer - 1], x[-1]}) == 1 or shape[outer - 1] == 1 for x in repeats):
        outer -= 1
    return prod(shape[:outer]) if prod(shape[outer:]) <= SHORT_RUN else 0


def _common_shape(shapes: Sequence[Shape]) -> Shape:
    if not shapes:
        return ()
    if all(shape == shapes[0] for shape in shapes):
        return shapes[0]
    return np.broadcast_shapes(*shapes)
