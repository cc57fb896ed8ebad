"""The functional mode: the logical form of a proved program, whole tensors at a time.

Nothing but the program is looked at. Each vertex group collapses to one call of its own codelet on
a grid of no axes, transfers that only bring a value elsewhere vanish, and values take the place of
variables. This is right because, and only if, `program.verify` proved that descriptors do what the
logical form says.
"""

from hloipu_runtime.codelets.codelet import Codelet
from hloipu_runtime.kernels.quiet import warnings_off
from hloipu_runtime.program.program import Array, Program
from hloipu_runtime.program.steps import (
    Carried,
    Definition,
    If,
    Repeat,
    RepeatWhile,
    StreamIn,
    StreamOut,
    Switch,
    ValueId,
)
from hloipu_runtime.sim.collapse import Collapsed, Node, collapse
from hloipu_runtime.sim.exact import in_range
from hloipu_runtime.sim.host import Counts, Host, Watch
from hloipu_runtime.sim.kept_state import Moment, kept_state
from hloipu_runtime.sim.whole import Run, Values, assembling, computing


class FunctionalEngine:
    """Runs one proved program on whole tensors."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.state: dict[str, Array] = {}
        """Between runs: the array of each state port by name, in storage form, held nowhere else.

        Of a run that failed it is what the last whole step left, or empty where that is lost.
        """
        self.kept_moment: Moment = "end"
        """Of the last run, the moment that the state is of."""
        self._nodes = collapse(program).nodes
        self._steps = [self._bind(node) for node in self._nodes]

    def run(self, host: Host, counts: Counts | None = None, watch: Watch | None = None) -> Counts:
        """Run the program once, from the state that the run before left."""
        counts = Counts() if counts is None else counts
        values: Values = [None] * len(self.program.values)
        for value, array in self.program.constants.values():
            values[value] = array
        for port in self.program.state:
            values[port.initial] = self.state.pop(port.name)  # held alone: may be overwritten
        try:
            with warnings_off():
                self._run(values, host, counts, watch)
        finally:
            self.kept_moment, self.state = kept_state(self.program, values)
        return counts

    def _run(self, values: Values, host: Host, counts: Counts, watch: Watch | None) -> None:
        counts.ran("body")
        for node, step in zip(self._nodes, self._steps, strict=True):
            step(values, host, counts)
            counts.advance()
            if watch is not None:
                for v in node.writes:
                    made = values[v]
                    if made is not None:
                        watch(v, made)

    def _bind(self, node: Node) -> Run:
        """Return a node as a function; values in `frees` are dropped by it."""
        what = node.what
        match what:
            case Codelet():
                return computing(what, node, self.program.values)
            case Definition():
                return assembling(what, node, self.program.values[what.value])
            case StreamIn():
                return lambda values, host, counts: values.__setitem__(
                    what.value, host.take(what.stream)
                )
            case StreamOut():
                return self._stream_out(what, node.frees)
            case Repeat():
                return self._repeat(what, node)
            case RepeatWhile():
                return self._repeat_while(what, node)
            case If() | Switch():
                return self._branches(what, node)

    def _stream_out(self, what: StreamOut, frees: tuple[ValueId, ...]) -> Run:
        def step(values: Values, host: Host, counts: Counts) -> None:
            array = values[what.value]
            for v in frees:
                values[v] = None
            host.give(what.stream, array)

        return step

    def _body(self, block: Collapsed, place: str) -> Run:
        steps = [self._bind(node) for node in block.nodes]

        def run(values: Values, host: Host, counts: Counts) -> None:
            counts.ran(place)
            for step in steps:
                step(values, host, counts)

        return run

    def _repeat(self, what: Repeat, node: Node) -> Run:
        body = self._body(node.blocks[0], f"{node.place}/repeat")

        first, last = _loop_frees(node)

        def step(values: Values, host: Host, counts: Counts) -> None:
            _enter(values, what.carried, first)
            for _ in range(what.count):
                body(values, host, counts)
                _turn(values, what.carried, node.block_values[0])
            _leave(values, what.carried, last)

        return step

    def _repeat_while(self, what: RepeatWhile, node: Node) -> Run:
        condition = self._body(node.blocks[0], f"{node.place}/condition")
        body = self._body(node.blocks[1], f"{node.place}/while")

        first, last = _loop_frees(node)

        def step(values: Values, host: Host, counts: Counts) -> None:
            _enter(values, what.carried, first)
            while True:
                condition(values, host, counts)
                if not bool(values[what.predicate_value]):
                    break
                body(values, host, counts)
                _turn(values, what.carried, node.block_values[0])
            _leave(values, what.carried, last)

        return step

    def _branches(self, what: If | Switch, node: Node) -> Run:
        branches = [
            self._body(block, f"{node.place}?{number}") for number, block in enumerate(node.blocks)
        ]
        selector = what.predicate_value if isinstance(what, If) else what.index_value

        def step(values: Values, host: Host, counts: Counts) -> None:
            chosen = values[selector]
            if isinstance(what, If):
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


def _loop_frees(node: Node) -> tuple[tuple[ValueId, ...], tuple[ValueId, ...]]:
    """Return what dies as a loop begins, and what only once it has ended: turns read it."""
    outside = frozenset[ValueId]().union(*(block.outside for block in node.blocks))
    first = tuple(v for v in node.frees if v not in outside)
    return first, tuple(v for v in node.frees if v in outside)


def _enter(values: Values, carried: tuple[Carried, ...], frees: tuple[ValueId, ...]) -> None:
    first = [values[item.initial] for item in carried]
    for v in frees:
        values[v] = None
    for item, array in zip(carried, first, strict=True):
        values[item.turn] = array


def _turn(values: Values, carried: tuple[Carried, ...], left: tuple[ValueId, ...]) -> None:
    following = [values[item.following] for item in carried]
    for v in left:
        values[v] = None
    for item, array in zip(carried, following, strict=True):
        values[item.turn] = array


def _leave(values: Values, carried: tuple[Carried, ...], frees: tuple[ValueId, ...]) -> None:
    final = [values[item.turn] for item in carried]
    for v in (*frees, *(item.turn for item in carried)):
        values[v] = None
    for item, array in zip(carried, final, strict=True):
        values[item.final] = array
