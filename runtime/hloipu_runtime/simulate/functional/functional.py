"""The functional mode: the logical form of a proved program, whole tensors at a time.

Nothing but the program is looked at. Each vertex group collapses to one call of its own codelet on
a grid of no axes, transfers that only bring a value elsewhere vanish, and values take the place of
variables. This is right because, and only if, `program.verify` proved that descriptors do what the
logical form says.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from time import perf_counter
from typing import Any

from hloipu_runtime.arguments import Watch
from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.kernels.core.quiet import quietly
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.collective import Collective
from hloipu_runtime.program.program import Array, Program
from hloipu_runtime.simulate.functional.block_source import (
    BlockSource,
    Names,
    call_lines,
    loop_lines,
)
from hloipu_runtime.simulate.functional.buffers import Buffers
from hloipu_runtime.simulate.functional.known_turns import known_turns
from hloipu_runtime.simulate.functional.known_values import first_values, with_known_values
from hloipu_runtime.simulate.functional.logical_form import collapse
from hloipu_runtime.simulate.functional.loop_turns import (
    LoopTurns,
    SmallNodes,
    are_worth_compiling,
    is_small_loop,
    middle_of,
    small_runs,
)
from hloipu_runtime.simulate.functional.nodes import Collapsed, KnownWindow, Node
from hloipu_runtime.simulate.functional.turns_on_arrays import TurnsOnArrays
from hloipu_runtime.simulate.functional.whole_tensors import Run, Values, assembling, computing
from hloipu_runtime.simulate.run.host import Arrays, Counts, Host, in_range
from hloipu_runtime.simulate.run.kept_state import Moment, kept_state, moments_of
from hloipu_runtime.simulate.run.participant import ALONE, Participant


class FunctionalEngine:
    """Runs one proved program on whole tensors."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.here: Participant = ALONE
        """Who this engine is; may be another one in each run."""
        self.state: dict[str, Array] = {}
        """Between runs: the array of each state port by name, in storage form, held nowhere else.

        Of a run that failed it is what the last whole step left, or empty where that is lost.
        """
        self.kept_moment: Moment = "end"
        """Of the last run, the moment that the state is of."""
        self._moments = moments_of(program)
        self._names = Names()
        self._buffers = Buffers()
        self._on_arrays: list[TurnsOnArrays] = []
        self._sources: list[str] = []
        self._functions: dict[str, Any] = {}
        self._first = first_values(program)
        """What each run begins with; its arrays are never overwritten."""
        with quietly():
            body = with_known_values(collapse(program), program, self._first, self._compute)
        self._body = self._function(body, "body", outermost=True)

    @property
    def source(self) -> str:
        """What runs, as text: one function for each block, inner blocks first."""
        return "\n\n".join(self._sources)

    @property
    def kept_bytes(self) -> int:
        """Bytes of memory that stay from run to run."""
        return self._buffers.bytes + sum(x.bytes for x in self._on_arrays)

    def run(self, host: Host, counts: Counts | None = None, watch: Watch | None = None) -> Counts:
        """Run the program once, from the state that the run before left."""
        counts = Counts() if counts is None else counts
        values = self._first.copy()
        for port in self.program.state:
            values[port.initial] = self.state.pop(port.name)  # held alone: may be overwritten
        try:
            with quietly():
                self._body(values, host, counts, watch)
        finally:
            self.kept_moment, self.state = kept_state(self._moments, values)
        return counts

    def _function(
        self, block: Collapsed, place: str, *, outermost: bool = False, is_whole: bool = False
    ) -> Any:
        """Return a block as a function of values, host and counts, the outermost of a watch too.

        Nodes of the outermost block are counted, and what they leave is shown to the watch. Small
        ones may be compiled together, unless the block `is_whole` in a compiled loop.
        """
        values = self.program.values
        source = BlockSource(
            block.nodes, values, self._names, self._bind, self._buffers, self._first
        )
        lines = [f"counts.ran({self._names.of('c', place)})"]
        if outermost:
            lines.append("after = telling(v, counts, watch)")
        written = [
            [*own, f"after({self._names.of('c', node.writes)})"] if outermost else own
            for node, own in source.lines()
        ]
        end = 0
        for first, last in () if is_whole else small_runs(block.nodes, values, self._first):
            lines += chain(*written[end:first])
            lines += self._together(block.nodes[first:last], written[first:last], outermost)
            end = last
        lines += chain(*written[end:])
        return self._made("v, host, counts, watch" if outermost else "v, host, counts", lines)

    def _together(
        self,
        nodes: Sequence[Node],
        written: Sequence[list[str]],
        outermost: bool,
        whole: SmallNodes | None = None,
    ) -> list[str]:
        """Return the lines of small nodes, which are compiled: together, or in halves."""
        if not are_worth_compiling(nodes, self._first):
            return [*chain(*written)]
        small = SmallNodes(nodes, self.program.values, self._first, len(nodes) * outermost, whole)
        middle = middle_of(nodes, self._first)
        if middle is None:
            lines = [*chain(*written)]
        else:
            lines = self._together(nodes[:middle], written[:middle], outermost, small)
            lines += self._together(nodes[middle:], written[middle:], outermost, small)
        watched = "watch is not None or " if outermost else ""
        return [
            f"if {watched}{self._names.of('f', small.wait)}(v, counts):",
            *(f"    {line}" for line in lines),
            f"    {self._names.of('f', small.ended)}()",
        ]

    def _made(self, arguments: str, lines: list[str]) -> Any:
        """Return lines of text as a function."""
        number = len(self._sources)
        text = "\n    ".join([f"def block{number}({arguments}):", *lines])
        self._sources.append(text)
        meanings = {**self._names.meanings, "telling": _telling}
        exec(compile(text, f"<block {number}>", "exec"), meanings)
        return meanings[f"block{number}"]

    def _compute(self, node: Node, values: Values) -> None:
        """Run a node that takes nothing from a host and gives it nothing."""
        self._bind(node)(values, Arrays({}), Counts())

    def _bind(self, node: Node) -> Run:
        """Return a node as a function; values in `frees` are dropped by it."""
        what = node.what
        match what:
            case Codelet():
                return computing(what, node, self.program.values)
            case s.Definition():
                return assembling(what, node, self.program.values[what.value])
            case Collective():
                return self._meeting(what, node)
            case s.Repeat() | s.RepeatWhile():
                return self._loop(what, node)
            case s.If() | s.Switch():
                return self._branches(what, node)
            case s.Call():
                return self._call(what, node)
            case s.StreamIn() | s.StreamOut() | KnownWindow():
                raise TypeError(f"{type(what).__name__} is written as a line of its own")

    def _meeting(self, what: Collective, node: Node) -> Run:
        def step(values: Values, host: Host, counts: Counts) -> None:
            operands = [values[moved.value] for moved in what.inputs]
            for v in node.frees:
                values[v] = None
            results = self.here.meet(self.program, what, node.place, operands)
            for moved, result in zip(what.outputs, results, strict=True):
                values[moved.value] = result

        return step

    def _loop(self, what: s.Repeat | s.RepeatWhile, node: Node) -> Run:
        parts = ("repeat",) if isinstance(what, s.Repeat) else ("condition", "while")
        is_whole = is_small_loop(node, self.program.values, self._first)
        known = None
        if is_whole:  # others may be compiled in part, with what is known
            known = known_turns(node, self.program.values, self._first, self._bind)
        bodies = node.blocks if known is None else (known.body,)
        blocks = [
            self._names.of("n", self._function(block, f"{node.place}/{part}", is_whole=is_whole))
            for block, part in zip(bodies, parts, strict=True)
        ]
        count = what.count if isinstance(what, s.Repeat) else None
        name, path = (self._names.of("c", x) for x in (what.name, f"{node.place}/{parts[-1]}"))
        turns = LoopTurns(node, self.program.values, self._first)
        given = f"v, counts, counts.iterations({name}, {path}, {count})"
        iterations = f"{self._names.of('f', turns.of)}({given})"
        if known is not None:
            iterations = f"zip({iterations}, {self._names.of('f', known.turns)}())"
        targets = () if known is None else known.targets
        lines = loop_lines(what, node, blocks, iterations, targets)
        made: Run = self._made("v, host, counts", lines)
        state = {port.variable for port in self.program.state}
        if not is_whole or not count or state & {x.variable for x in what.carried}:
            return made
        on_arrays = TurnsOnArrays(node, known, self.program.values, self._first)
        self._on_arrays.append(on_arrays)

        def step(values: Values, host: Host, counts: Counts) -> None:
            if not on_arrays.run(values, counts):
                began = perf_counter()
                made(values, host, counts)
                on_arrays.seconds += perf_counter() - began

        return step

    def _call(self, what: s.Call, node: Node) -> Run:
        """Return a call of a function, whose own block is made once for all of its calls."""
        (block,) = node.blocks
        if what.function not in self._functions:
            self._functions[what.function] = self._function(block, s.function_path(what.function))
        function = self._names.of("n", self._functions[what.function])
        made: Run = self._made("v, host, counts", call_lines(what, node, function))
        return made

    def _branches(self, what: s.If | s.Switch, node: Node) -> Run:
        branches = [
            self._function(block, f"{node.place}?{number}")
            for number, block in enumerate(node.blocks)
        ]
        selector = what.predicate_value if isinstance(what, s.If) else what.index_value

        def step(values: Values, host: Host, counts: Counts) -> None:
            chosen = values[selector]
            if isinstance(what, s.If):
                number = 0 if bool(chosen) else 1
            else:
                number = in_range(int(chosen), len(branches))
            branches[number](values, host, counts)
            results = [values[item.branch_values[number]] for item in what.merged]
            for v in (*node.frees, *node.block_values[number]):
                values[v] = None
            for item, result in zip(what.merged, results, strict=True):
                values[item.value] = result

        return step


def _telling(
    values: Values, counts: Counts, watch: Watch | None
) -> Callable[[tuple[s.ValueId, ...]], None]:
    """Return the function that is called after each outermost step, with the values it wrote."""

    def after(writes: tuple[s.ValueId, ...]) -> None:
        counts.advance()
        if watch is not None:
            for value in writes:
                if values[value] is not None:
                    watch(value, values[value])

    return after
