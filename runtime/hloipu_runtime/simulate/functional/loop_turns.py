"""Turns of a loop: Python's at first, and compiled ones as soon as these pay.

What the turns took by Python is measured, and the loop is compiled when that is about as long as
compiling it takes: see `native_expression`. The change is between two turns, perhaps in the middle
of a run.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from hloipu_runtime.kernels.core.blocks import aligned_empty
from hloipu_runtime.kernels.native.settings import settings
from hloipu_runtime.program.program import Array, Value
from hloipu_runtime.program.steps import Repeat, RepeatWhile
from hloipu_runtime.simulate.functional.nodes import Node
from hloipu_runtime.simulate.functional.whole_tensors import Values
from hloipu_runtime.simulate.run.host import Counts

if TYPE_CHECKING:
    from hloipu_runtime.kernels.native.library import CodePointer
    from hloipu_runtime.simulate.functional.loop_writer import Written

FEWEST_SECONDS = 0.05
"""By Python before a loop's code is looked for: to import LLVM and write the text takes longer."""
SECONDS_PER_NODE = 0.01
"""To compile; measured on x86-64 by LLVM 20."""
CALL_SECONDS = 0.02
"""Of one call of compiled turns, about: between calls an interrupt is taken."""
MOST_ELEMENTS = 1 << 16
"""Of an array that is laid row-major before a loop; assumed."""
_FIRST_TURNS = 64


class LoopTurns:
    """The turns of one loop of an engine."""

    def __init__(self, node: Node, table: Sequence[Value], first: Values, place: str) -> None:
        assert isinstance(node.what, Repeat | RepeatWhile)
        self._node, self._what = node, node.what
        self._table, self._first = table, first
        part = "repeat" if isinstance(node.what, Repeat) else "while"
        self._places = [f"{place}/{part}"]
        if isinstance(node.what, RepeatWhile):
            self._places.append(f"{place}/condition")
        self._turns = [x.turn for x in node.what.carried]
        self._seconds = 0.0
        self._nodes = sum(len(block.nodes) for block in node.blocks)
        self._is_pythons = any(inner.blocks for block in node.blocks for inner in block.nodes)
        """Whether it is never compiled."""
        self._written: Written | None = None
        self._code: CodePointer | None = None
        self._looked = 0
        self._layout: list[tuple[int, ...]] = []
        self._kept: tuple[Array, ...] = ()

    def of(self, values: Values, counts: Counts, iterations: Iterable[object]) -> Iterable[object]:
        """Return what the loop goes through that is entered; see `Counts.iterations`.

        Small arrays that it begins with are laid row-major, as compiled turns leave them: sums of
        the first turn are then in the same order in either way.
        """
        for v in self._turns:
            x = values[v]
            if not x.flags.c_contiguous and x.size <= MOST_ELEMENTS:
                values[v] = np.ascontiguousarray(x)
        x = None
        if self._is_pythons or counts.limit.most is not None or not settings().compiles:
            return iterations
        return self._mixed(values, counts, iterations)

    def _mixed(
        self, values: Values, counts: Counts, iterations: Iterable[object]
    ) -> Iterator[object]:
        """Yield for each turn that is Python's; between two, do all that are left."""
        began = perf_counter()
        for done, turn in enumerate(iterations):
            if self._is_ready(values):
                self._run(values, counts, done)
                return
            yield turn
            now = perf_counter()
            self._seconds += now - began
            began = now

    def _is_ready(self, values: Values) -> bool:
        """Whether turns are compiled for values that lie as these."""
        if self._code is None:
            compiling = SECONDS_PER_NODE * self._nodes
            looks = (self._seconds >= min(FEWEST_SECONDS, compiling)) + (self._seconds >= compiling)
            if looks <= self._looked or self._is_pythons:
                return False
            self._looked = looks
            self._look(values, compiles=looks > 1)
            if self._code is None:
                return False
        assert self._written is not None
        for v, strides in zip(self._written.outside, self._layout, strict=True):
            x = values[v]
            if x.strides != strides:
                return False
        return all(values[v].flags.c_contiguous for v in self._turns)

    def _look(self, values: Values, *, compiles: bool) -> None:
        """Look for the code, or compile it."""
        from hloipu_runtime.kernels.native.library import the_compiler
        from hloipu_runtime.simulate.functional.loop_writer import written
        from hloipu_runtime.simulate.functional.region_values import Refused

        compiler = the_compiler()
        try:
            if compiler is None:
                raise Refused
            self._written = self._written or written(self._node, self._table, self._first, values)
        except Refused:
            self._is_pythons = True
            return
        region, memories = self._written.region, self._written.memories
        self._code = compiler.code(
            lambda name: region.whole(name, memories), settings().code_folder, compiles=compiles
        )
        if self._code is None:
            self._is_pythons = compiles
            return
        self._layout = [values[v].strides for v in self._written.outside]
        arena = aligned_empty((max(1, region.arena_bytes),), np.dtype(np.uint8))
        self._kept = region.header(), arena, region.kept_constants()

    def _run(self, values: Values, counts: Counts, done: int) -> None:
        """Do all turns that are left, some of them in each call."""
        written, code, (header, *kept) = self._written, self._code, self._kept
        assert written is not None
        assert code is not None
        state = [np.array(values[v]) for v in self._turns]
        arrays = (header, *kept, *[values[v] for v in written.outside], *state)
        for v, x in zip(self._turns, state, strict=True):
            values[v] = x  # also of a run that is broken off: what the last whole turn left
        left = None if isinstance(self._what, RepeatWhile) else self._what.count - done
        most, address = _FIRST_TURNS, id(arrays)
        while left is None or left:
            header[0] = most if left is None else min(most, left)
            began = perf_counter()
            with _one_thread() if written.multiplies else _NOTHING:
                code(address)
            taken, is_ended = int(header[1]), bool(header[2])
            self._count(counts, taken, is_ended=is_ended)
            if is_ended:
                break
            left = None if left is None else left - taken
            if perf_counter() - began < CALL_SECONDS / 2:
                most *= 2

    def _count(self, counts: Counts, turns: int, *, is_ended: bool) -> None:
        """Count what was run; a condition is asked once more at the end."""
        for place, runs in zip(self._places, (turns, turns + is_ended), strict=False):
            counts.ran(place, runs)


_NOTHING = nullcontext()


def _one_thread() -> Any:
    from hloipu_runtime.kernels.contractions.blas_threads import on_one_thread

    return on_one_thread()
