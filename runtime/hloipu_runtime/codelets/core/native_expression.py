"""Expressions by compiled kernels, once that is worth compiling them.

What numpy has computed of an expression is counted, and its kernels are compiled when that has
taken about as long as compiling will: however often a program runs, it takes no more than about
twice the time of the better choice, and nobody need know beforehand how often that will be
(A. Karlin et al., "Competitive snoopy caching", Algorithmica 3, 1988). Code that is kept in the
cache folder is loaded much earlier.
"""

from collections.abc import Sequence
from functools import cache, lru_cache
from operator import itemgetter
from threading import Lock
from typing import Any, Protocol

import numpy as np

from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.codelets.core.expression_walk import align, result_like
from hloipu_runtime.codelets.core.native_layout import Sizes
from hloipu_runtime.codelets.core.native_lowering import lowered
from hloipu_runtime.codelets.core.native_running import Prepared, WholeCall, layout_of, whole_call
from hloipu_runtime.codelets.core.native_stages import KernelStage, Staged, staged
from hloipu_runtime.codelets.core.straight import Call, Straight
from hloipu_runtime.codelets.core.tensors import Bound
from hloipu_runtime.kernels.core.blocks import LAYING_WORK, NATIVE_WORK, Array
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.kernels.native.llvm import CodePointer, the_compiler
from hloipu_runtime.kernels.native.loop import text_of
from hloipu_runtime.kernels.native.settings import COMPILING_WORK, LOADING_WORK, settings

MOST_KEPT_BYTES = 1 << 26
"""Of buffers that all expressions together keep between runs: those made longest ago go first.
Assumed."""
MOST_KEEPERS = 4096
"""Expressions, and steps on rows, that have such buffers."""

MOST_LAYOUTS = 64
MOST_LOOKS = 2
"""How often code is looked for: when it may be loaded, and when it may be compiled."""
_Key = tuple[tuple[Sizes, Sizes], ...]
_Form = tuple[KernelStage, tuple[bool, ...], tuple[int, ...], bool]
"""Of a kernel: its stage, which operands a row shares, which places have planes, if it is boxed."""


class NativeExpression:
    """An expression that kernels compute as soon as that pays."""

    def __init__(self, expression: Expression) -> None:
        self._expression = expression
        self._work = 0.0
        self._staged: Staged | None = None
        self._is_numpys = False
        """Whether kernels have no part in it."""
        self._dtypes = [storage_dtype(x) for x in expression.result_types]
        """Of the results."""
        self._code: dict[_Form, CodePointer] = {}
        self._is_missing: set[tuple[_Form, bool]] = set()
        """Kernels that were not compiled before, or, with True, cannot be compiled."""
        self._idle: dict[_Key, list[Prepared]] = {}
        """What no run has, by how arrays lie: each takes one, or makes one, and puts it back."""

    def run(
        self,
        arrays: Sequence[Array],
        outs: Sequence[Array | None],
        shape: Sizes,
        *,
        copies: bool = True,
    ) -> list[Array] | None:
        """Compute the results; None where numpy is to: kernels do not pay yet, or cannot write.

        Where `copies` is not set, so it is where arrays would have to be laid anew for them.
        """
        if not self._is_looked_for:
            return None
        assert self._staged is not None
        computed = [
            result_like(arrays, shape, dtype) if out is None else out
            for dtype, out in zip(self._dtypes, outs, strict=True)
        ]
        whole = [*map(np.asarray, arrays), *computed]  # numbers become arrays
        key = tuple([(x.shape, x.strides) for x in whole])
        idle = self._idle.get(key)
        if idle is None and not all(x.flags.c_contiguous for x in whole):
            aligned = [computed[0], *whole[: len(arrays)]]
            align(aligned, len(aligned))
            whole = [*aligned[1:], *computed]
            key = tuple([(x.shape, x.strides) for x in whole])
            idle = self._idle.get(key)
        if idle is None:
            if len(self._idle) >= MOST_LAYOUTS:
                self.let_go()
                kept_buffers().gone(self)
            idle = self._idle[key] = []
        try:
            prepared = idle.pop()  # asked for at once: another thread may take the last one
        except IndexError:
            fresh = self._prepared(shape, whole, copies=copies)
            if fresh is None:
                return None
            prepared = fresh
        prepared.run(whole, shape)
        idle.append(prepared)
        return computed

    @property
    def _is_looked_for(self) -> bool:
        """Whether kernels have a part in it, and may be there."""
        if self._work < LOADING_WORK:
            return False
        if self._staged is None:
            compiler = the_compiler()
            if compiler is not None:
                self._staged = staged(lowered(self._expression, halves=compiler.halves))
                self._is_numpys = not self._staged.instructions
        return self._staged is not None and not self._is_numpys

    @property
    def looks(self) -> int:
        """How often code was to be looked for until now: when it may be loaded, then compiled."""
        return (self._work >= LOADING_WORK) + (self._work >= COMPILING_WORK)

    def whole_call(self, shapes: Sequence[Sizes], shape: Sizes) -> WholeCall | None:
        """Return the expression as one call on row-major arrays of these shapes, if it is that."""
        if not self._is_looked_for:
            return None
        assert self._staged is not None
        return whole_call(self._staged, shapes, shape, self._code_of)

    def _prepared(self, shape: Sizes, arrays: Sequence[Array], *, copies: bool) -> Prepared | None:
        """Return the stages for operands and results as they lie; None: kernels cannot yet."""
        assert self._staged is not None
        layout = layout_of(self._staged, shape, arrays)
        if layout is None or (layout.copies and not copies):
            return None
        prepared = Prepared(self._staged, layout, self._code_of)
        if not prepared.is_ready:
            return None
        if prepared.kept_bytes:
            kept_buffers().count_bytes(self, prepared.kept_bytes)
        return prepared

    def let_go(self) -> None:
        """Keep nothing of what no run has; what a run has goes with it."""
        self._idle = {}

    def count(self, work: float) -> None:
        """Take notice that work is to be done; see `Plan.work`."""
        self._work += work

    def _code_of(
        self,
        stage: KernelStage,
        shared: tuple[bool, ...],
        planed: tuple[int, ...],
        *,
        boxed: bool = False,
    ) -> CodePointer | None:
        """Return a kernel's code; None where it is not known and does not pay yet."""
        key = (stage, shared, planed, boxed)
        code = self._code.get(key)
        compiles = self._work >= COMPILING_WORK
        compiler = the_compiler()
        if code is None and compiler and (key, compiles) not in self._is_missing:
            kernel = stage.kernel(shared, planed, boxed=boxed)
            code = compiler.code(
                lambda name: text_of(kernel, name), settings().code_folder, compiles=compiles
            )
            if code is None:
                self._is_missing.add((key, compiles))
            else:
                self._code[key] = code
        return code


class Keeper(Protocol):
    """Keeps buffers."""

    def let_go(self) -> None:
        """Keep nothing of what no run has."""


class _KeptBuffers:
    """The bytes of buffers that expressions, and steps on rows, keep between runs."""

    def __init__(self) -> None:
        self._bytes: dict[Keeper, int] = {}
        """Of each, the one that made some last at the end."""
        self._lock = Lock()

    def count_bytes(self, keeper: Keeper, size: int) -> None:
        """Count buffers that were made; too many make others let go of theirs, or this one."""
        with self._lock:
            self._bytes[keeper] = self._bytes.pop(keeper, 0) + size
            whole = sum(self._bytes.values())
            while whole > MOST_KEPT_BYTES or len(self._bytes) > MOST_KEEPERS:
                oldest = next(iter(self._bytes))
                whole -= self._bytes.pop(oldest)
                oldest.let_go()

    def gone(self, keeper: Keeper) -> None:
        """Count buffers no more."""
        with self._lock:
            self._bytes.pop(keeper, None)


@cache
def kept_buffers() -> _KeptBuffers:
    """Return what the process's expressions keep."""
    return _KeptBuffers()


@lru_cache(maxsize=4096)
def native_expression(expression: Expression) -> NativeExpression:
    """Return an expression with what was counted and compiled of it."""
    return NativeExpression(expression)


def natively(
    expression: Expression, work: float, plain: Bound, shapes: Sequence[Sizes], shape: Sizes
) -> Bound:
    """Return how to compute an expression by kernels, where that is allowed and pays.

    `work` is what they save each time, in roundings of an element.
    """
    native = native_expression(expression)
    whole: WholeCall | None = None
    looks, is_missing = 0, True
    others, copies = work >= NATIVE_WORK, work >= LAYING_WORK  # of arrays that lie otherwise

    def run(arrays: Sequence[Array], outs: Sequence[Array | None]) -> Sequence[Array]:
        nonlocal whole, looks, is_missing
        if not settings().compiles:
            return plain(arrays, outs)
        if looks < MOST_LOOKS:
            native.count(work)
            if looks < native.looks:
                looks, is_missing = native.looks, False
                whole = native.whole_call(shapes, shape) or whole
        computed = None if whole is None else whole(arrays, outs)
        if computed is None and others and not is_missing:
            computed = native.run(arrays, outs, shape, copies=copies)
            is_missing = computed is None and (looks < MOST_LOOKS or not copies)
        return plain(arrays, outs) if computed is None else computed

    return run


def calls_by_kernels(
    bound: Bound, operands: int, shape: Sizes, dtypes: Sequence[np.dtype[Any]], *, is_fresh: bool
) -> Straight | None:
    """Return an expression as one call, and one for each of several results; None: not allowed.

    `is_fresh`: whether no result of `bound` shares memory with an operand.
    """
    if not settings().compiles:
        return None
    arguments, several = tuple(range(operands)), len(dtypes) > 1

    def run(*arrays: Array, out: Array | None = None) -> Array:
        computed = np.asarray(bound(arrays, [out])[0])
        if out is None or computed is out:
            return computed
        np.copyto(out, computed)
        return out

    nowhere = (None,) * len(dtypes)
    first = Call(
        (lambda *arrays: bound(arrays, nowhere)) if several else run, arguments, operands, shape,
        None if several else dtypes[0],
        is_fresh=is_fresh, takes_out=not several, in_place=not several,
    )  # fmt: skip
    if not several:
        return Straight({}, (first,), (operands,), needs_row_major=True)
    numbers = range(operands + 1, operands + 1 + len(dtypes))
    taking = [
        Call(itemgetter(k), (operands,), number, shape, None,
             is_fresh=is_fresh, takes_out=False, in_place=False)
        for k, number in enumerate(numbers)
    ]  # fmt: skip
    return Straight({}, (first, *taking), tuple(numbers), needs_row_major=True)
