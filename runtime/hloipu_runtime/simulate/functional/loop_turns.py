"""Runs loops and small nodes in Python until compiling them pays, then as one compiled function.

Their time in Python is measured, and they are compiled when that is about as long as compiling
takes: see `native_expression`. In a loop the change is between two turns, perhaps in the middle of
a run.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import accumulate, groupby
from math import prod
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from hloipu_runtime.codelets.core.arranging import sizes_of
from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.codelets.dense.dot import Dot
from hloipu_runtime.codelets.ops.fused_reduce import FusedReduce
from hloipu_runtime.codelets.ops.reduce import Reduce
from hloipu_runtime.codelets.ops.row_region import RowRegion
from hloipu_runtime.kernels.contractions.blas_threads import SMALL_PRODUCTS, on_one_thread
from hloipu_runtime.kernels.core.blocks import aligned_empty
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.kernels.native.settings import settings
from hloipu_runtime.program.program import Array, Value
from hloipu_runtime.program.steps import Definition, Repeat, RepeatWhile, ValueId
from hloipu_runtime.simulate.functional.known_values import is_known
from hloipu_runtime.simulate.functional.nodes import Node
from hloipu_runtime.simulate.functional.whole_tensors import Values, cuts_of
from hloipu_runtime.simulate.run.host import Counts

if TYPE_CHECKING:
    from hloipu_runtime.kernels.native.llvm import CodePointer
    from hloipu_runtime.simulate.functional.loop_writer import Written

FEWEST_SECONDS = 0.05
"""By Python before a loop's code is looked for: to import LLVM and write the text takes longer."""
SECONDS_PER_NODE = 0.01
"""To compile, of a usual one; measured on x86-64 by LLVM 20."""
CALL_SECONDS = 0.02
"""Of one call of compiled turns, about: between calls an interrupt is taken."""
MOST_ELEMENTS = 1 << 16
"""Of an array that is laid row-major before a loop; assumed."""
_FIRST_TURNS = 64
_NOTHING = nullcontext()


class Compiled:
    """Nodes of an engine that are compiled together once that pays."""

    def __init__(self, nodes: int, write: Callable[[Values], "Written"]) -> None:
        self.seconds = 0.0
        """That Python took for them until now."""
        self.stays_in_python = False
        """Whether they are never compiled."""
        self._write, self._compiling = write, SECONDS_PER_NODE * nodes
        self._written: Written | None = None
        self._code: CodePointer | None = None
        self._looked = 0
        self.strides: tuple[tuple[int, ...] | None, ...] = ()
        """Of what code leaves, once it is there; None: row-major."""
        self._outside: tuple[ValueId, ...] = ()
        self._layout: list[tuple[int, ...]] = []
        self._types: list[type] = []
        self._one_thread: on_one_thread | nullcontext[None] = _NOTHING
        self._kept: tuple[Array, ...] = ()

    def outside(self, values: Values) -> list[Array] | None:
        """Return the outside values, or None where there is no code for such as lie as these."""
        if self._code is None and not self._find_code(values):
            return None
        arrays = [values[v] for v in self._outside]
        # Types first: what is no array may have strides.
        if list(map(type, arrays)) != self._types or [x.strides for x in arrays] != self._layout:
            return None
        return arrays

    def _find_code(self, values: Values) -> bool:
        """Load the code from disk, or compile it, when it is time; return whether it is there."""
        looks = (self.seconds >= min(FEWEST_SECONDS, self._compiling)) + (
            self.seconds >= self._compiling
        )
        if looks <= self._looked or self.stays_in_python:
            return False
        from hloipu_runtime.kernels.native.llvm import the_compiler
        from hloipu_runtime.simulate.functional.region_values import Refused

        compiler = the_compiler()
        try:
            if compiler is None:
                raise Refused
            if self._written is None:
                self._written = self._write(values)
                self._compiling = SECONDS_PER_NODE * self._written.region.usual_nodes
                looks = 1 + (self.seconds >= self._compiling)
        except Refused:
            self.stays_in_python = True
            return False
        self._looked = looks
        region, memories = self._written.region, self._written.memories
        self._code = compiler.code(
            lambda name: region.whole(name, memories), settings().code_folder, compiles=looks > 1
        )
        if self._code is None:
            self.stays_in_python = looks > 1
            return False
        self._outside, self.strides = self._written.outside, self._written.strides
        self._one_thread = on_one_thread() if self._written.multiplies else _NOTHING
        self._layout = [values[v].strides for v in self._outside]
        self._types = [np.ndarray] * len(self._layout)
        arena = aligned_empty((max(1, region.arena_bytes),), np.dtype(np.uint8))
        self._kept = region.header(), arena, region.kept_constants()
        return True

    def run(self, outside: Sequence[Array], left: Sequence[Array]) -> None:
        """Run the code on outside values and the arrays that it leaves."""
        assert self._code is not None
        arrays = (*self._kept, *outside, *left)
        with self._one_thread:
            self._code(id(arrays))

    def turns(self, most: int, outside: Sequence[Array], left: Sequence[Array]) -> tuple[int, bool]:
        """Run so many turns of a loop at most; return how many were done, and whether it ended."""
        header = self._kept[0]
        header[0] = most
        self.run(outside, left)
        return int(header[1]), bool(header[2])


class SmallNodes:
    """Nodes one after another, which leave some results."""

    def __init__(
        self,
        nodes: Sequence[Node],
        table: Sequence[Value],
        first: Values,
        steps: int,
        whole: "SmallNodes | None" = None,
    ) -> None:
        """Begin with the nodes; `steps` is how often a run is told that one is done.

        They are part of a `whole`, if that is given, and compiled where that cannot be.
        """
        self._whole = whole
        freed = {v for node in nodes for v in node.frees}
        self._results = [
            v for node in nodes for v in node.writes if v not in freed and first[v] is None
        ]
        self._frees, self._steps = tuple(freed), steps
        self._forms = [
            (table[v].shape, storage_dtype(table[v].element_type)) for v in self._results
        ]

        self._making: list[Callable[[], Array]] = []

        def write(values: Values) -> "Written":
            from hloipu_runtime.simulate.functional.loop_writer import written_nodes

            return written_nodes(nodes, self._results, table, first, values)

        self._compiled = Compiled(len(nodes), write)
        self._began = 0.0

    def wait(self, values: Values, counts: Counts) -> bool:
        """Run the nodes, or return True where Python is to."""
        compiled = self._compiled
        if compiled.stays_in_python or not settings().compiles:
            return True
        if self._whole is not None and not self._whole._compiled.stays_in_python:
            return True
        outside = compiled.outside(values)
        if outside is None:
            self._began = perf_counter()
            return True
        left = [make() for make in self._making or self._made_ready()]
        compiled.run(outside, left)
        for v in self._frees:
            values[v] = None
        for v, x in zip(self._results, left, strict=True):
            values[v] = x
        if self._steps:
            counts.advance(self._steps)
        return False

    def _made_ready(self) -> list[Callable[[], Array]]:
        """Return what makes the arrays that code leaves its results in."""
        from hloipu_runtime.simulate.functional.region_values import empty_as

        self._making = [
            partial(np.empty, *form) if strides is None else partial(empty_as, *form, strides)
            for form, strides in zip(self._forms, self._compiled.strides, strict=True)
        ]
        return self._making

    def ended(self) -> None:
        """Take notice that Python has run the nodes."""
        if self._began:
            self._compiled.seconds += perf_counter() - self._began
            self._began = 0.0


class LoopTurns:
    """The turns of one loop of an engine."""

    def __init__(self, node: Node, table: Sequence[Value], first: Values) -> None:
        assert isinstance(node.what, Repeat | RepeatWhile)
        self._what = node.what
        part = "repeat" if isinstance(node.what, Repeat) else "while"
        self._places = [f"{node.place}/{part}"]
        if isinstance(node.what, RepeatWhile):
            self._places.append(f"{node.place}/condition")
        self._turns = [x.turn for x in node.what.carried]

        def write(values: Values) -> "Written":
            from hloipu_runtime.simulate.functional.loop_writer import written_loop

            return written_loop(node, table, first, values)

        self._compiled = Compiled(sum(len(block.nodes) for block in node.blocks), write)
        self._compiled.stays_in_python = not is_small_loop(node, table, first)

    def of(self, values: Values, counts: Counts, iterations: Iterable[object]) -> Iterable[object]:
        """Return what the loop goes through that is entered; see `Counts.iterations`.

        Small arrays that it begins with are laid row-major, as compiled turns leave them: sums of
        the first turn are then in the same order in either way.
        """
        for v in self._turns:
            x = values[v]
            if not x.flags.c_contiguous and x.size <= MOST_ELEMENTS:
                values[v] = np.ascontiguousarray(x)
        if (
            self._compiled.stays_in_python
            or counts.limit.most is not None
            or not settings().compiles
        ):
            return iterations
        return self._mixed(values, counts, iterations)

    def _mixed(
        self, values: Values, counts: Counts, iterations: Iterable[object]
    ) -> Iterator[object]:
        """Yield for each turn that is Python's; between two, do all that are left."""
        compiled = self._compiled
        began = perf_counter()
        for done, turn in enumerate(iterations):
            outside = compiled.outside(values)
            if outside is not None and all(values[v].flags.c_contiguous for v in self._turns):
                self._run(values, counts, done, outside)
                return
            del outside  # what is held alone may be overwritten in the turn
            yield turn
            now = perf_counter()
            compiled.seconds += now - began
            began = now

    def _run(self, values: Values, counts: Counts, done: int, outside: Sequence[Array]) -> None:
        """Do all turns that are left, some of them in each call."""
        state = [np.array(values[v]) for v in self._turns]  # arrays, also of numpy's scalars
        for v, x in zip(self._turns, state, strict=True):
            values[v] = x  # also of a run that is broken off: what the last whole turn left
        left = None if isinstance(self._what, RepeatWhile) else self._what.count - done
        most = _FIRST_TURNS
        while left is None or left:
            began = perf_counter()
            turns = most if left is None else min(most, left)
            taken, is_ended = self._compiled.turns(turns, outside, state)
            self._count(counts, taken, is_ended=is_ended)
            if is_ended:
                break
            left = None if left is None else left - taken
            if perf_counter() - began < CALL_SECONDS / 2:
                most *= 2

    def _count(self, counts: Counts, turns: int, *, is_ended: bool) -> None:
        """Count what was run; a condition is asked once more at the end."""
        for place, runs in zip(self._places, (turns, turns + is_ended), strict=False):
            if runs:
                counts.ran(place, runs)


# ---- what may be compiled ------------------------------------------------------------------------
MOST_ELEMENTS_MADE = 1 << 14
"""Of what a node makes: larger arrays are better computed a few rows at a time, in cache, and
sums of more are the plain path's alone."""
FEWEST_OPS = 4
"""One after another that are compiled without a loop: a call takes Python as long as some three."""
MOST_TOGETHER = 100
"""One after another, which LLVM compiles in about a second."""


def is_small(
    node: Node, table: Sequence[Value], first: Values | None = None, *, in_loop: bool = False
) -> bool:
    """Whether a node may be compiled with others: in a loop, or with others after each other."""
    if first is not None and is_known(node, first):
        return True
    what = node.what
    if isinstance(what, Codelet):
        if not (what.is_compiled or what.rearranges):
            return False
        if (what.overwrites_a_part or what.rearranges) and in_loop:
            return True
    elif not isinstance(what, Definition):
        return False
    return _are_small(node.writes, table) and not _takes_long(node, table)


def _are_small(values: Iterable[ValueId], table: Sequence[Value]) -> bool:
    return all(0 < prod(table[v].shape) <= MOST_ELEMENTS_MADE for v in values)


def _takes_long(node: Node, table: Sequence[Value]) -> bool:
    """Whether a node makes little of more than a compiled function takes."""
    what = node.what
    shapes = [table[v].shape for v in node.reads]
    match what:
        case Dot():
            free = [n for d, n in enumerate(shapes[1]) if d not in what.rhs_contracting]
            batch = prod(shapes[0][d] for d in what.lhs_batch)
            return prod(shapes[0]) // max(1, batch) * prod(free) // max(1, batch) > SMALL_PRODUCTS
        case Reduce():
            return prod(shapes[0]) >= MOST_ELEMENTS_MADE
        case FusedReduce() | RowRegion():
            whole = sizes_of(what.labels, shapes[: len(what.labels)], what.rank)
            return prod(whole) >= MOST_ELEMENTS_MADE
    return False


def is_small_loop(node: Node, table: Sequence[Value], first: Values) -> bool:
    """Whether a loop may be compiled."""
    nodes = (inner for block in node.blocks for inner in block.nodes)
    return all(is_small(inner, table, first, in_loop=True) for inner in nodes)


def with_small_together(nodes: Sequence[Node], table: Sequence[Value]) -> list[Node]:
    """Return the nodes of a block with small ones put off until others need them.

    More of them are then one after another. What is put off reads small arrays alone, so that no
    large one is kept for it.
    """
    ordered: list[Node] = []
    waiting: list[Node] = []
    made: set[ValueId] = set()
    for node in nodes:
        if _are_small((*node.reads, *node.writes), table) and is_small(node, table):
            waiting.append(node)
            made.update(node.writes)
            continue
        if not isinstance(node.what, Codelet | Definition) or not made.isdisjoint(node.reads):
            ordered += waiting
            waiting.clear()
            made.clear()
        ordered.append(node)
    return ordered + waiting


def small_runs(
    nodes: Sequence[Node], table: Sequence[Value], first: Values
) -> Iterator[tuple[int, int]]:
    """Yield where nodes begin and end that are compiled together."""
    for small, group in groupby(enumerate(nodes), lambda x: is_small(x[1], table, first)):
        places = [n for n, _ in group] if small else []
        freed = {v for n in places for v in nodes[n].frees}
        together: list[int] = []
        for n in places:
            # The plain path lays it as it comes: it stays apart, unless it ends with the others.
            is_left = _is_view(nodes[n]) and freed.isdisjoint(nodes[n].writes)
            if is_left or len(together) == MOST_TOGETHER:
                yield from _worth_compiling(together, nodes, first)
                together = []
            if not is_left:
                together.append(n)
        yield from _worth_compiling(together, nodes, first)


def _worth_compiling(
    places: Sequence[int], nodes: Sequence[Node], first: Values
) -> Iterator[tuple[int, int]]:
    if are_worth_compiling([nodes[n] for n in places], first):
        yield places[0], places[-1] + 1


def are_worth_compiling(nodes: Sequence[Node], first: Values) -> bool:
    """Whether nodes are enough ops for a call."""
    return sum(_unknown_ops(node, first) for node in nodes) >= FEWEST_OPS


def middle_of(nodes: Sequence[Node], first: Values) -> int | None:
    """Return where nodes are cut in halves of ops; None: all are one node's."""
    ops = list(accumulate(_unknown_ops(node, first) for node in nodes))
    fewer = [min(before, ops[-1] - before) for before in ops]
    return 1 + fewer.index(max(fewer)) if max(fewer) else None


def _is_view(node: Node) -> bool:
    """Whether what a node makes may be a view that compiled functions would copy."""
    what = node.what
    if isinstance(what, Codelet):
        return what.rearranges
    if not isinstance(what, Definition) or what.base is not None or len(what.pieces) != 1:
        return False
    (piece,) = what.pieces
    return cuts_of(piece)[0] != tuple(slice(0, size) for size in piece.view)


def _unknown_ops(node: Node, first: Values) -> int:
    """Return how many ops a node is, for each of which Python calls numpy."""
    if is_known(node, first):
        return 0
    what: Any = node.what
    expressions = getattr(what, "expressions", None) or [getattr(what, "expression", None)]
    ops = (op.op for x in expressions if x is not None for op in x.nodes)
    return max(1, sum(op not in ("constant", "copy") for op in ops))
