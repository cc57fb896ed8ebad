"""The functional mode: the logical form of a proved program, whole tensors at a time.

Nothing but the program is looked at. Each vertex group collapses to one call of its own codelet on
a grid of no axes, transfers that only bring a value elsewhere vanish, and values take the place of
variables. This is right because, and only if, `program.verify` proved that descriptors do what the
logical form says.
"""

import sys
from collections.abc import Callable

import numpy as np

from hloipu_runtime.codelets.codelet import Block, Codelet
from hloipu_runtime.kernels.storage import storage_dtype
from hloipu_runtime.program.mapping import Sizes
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

Values = list[Array | None]
Run = Callable[[Values, Host, Counts], None]

REUSED_ELEMENTS = 1 << 14
"""From here on writing into a dead operand beats a fresh buffer, whose pages must be mapped."""


class FunctionalEngine:
    """Runs one proved program on whole tensors."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._nodes = collapse(program).nodes
        self._steps = [self._bind(node) for node in self._nodes]

    def run(self, host: Host, counts: Counts | None = None, watch: Watch | None = None) -> Counts:
        """Run the program once."""
        counts = Counts() if counts is None else counts
        values: Values = [None] * len(self.program.values)
        for value, array in self.program.constants.values():
            values[value] = array
        counts.ran("body")
        for node, step in zip(self._nodes, self._steps, strict=True):
            step(values, host, counts)
            counts.advance()
            if watch is not None:
                for v in node.writes:
                    made = values[v]
                    if made is not None:
                        watch(v, made)
        return counts

    def _bind(self, node: Node) -> Run:
        """Return a node as a function; values in `frees` are dropped by it."""
        what = node.what
        match what:
            case Codelet():
                return self._compute(what, node)
            case Definition():
                return self._assemble(what, node)
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

    def _compute(self, codelet: Codelet, node: Node) -> Run:
        table = self.program.values
        reads, writes, frees = node.reads, node.writes, node.frees
        operand_shapes = [table[v].shape for v in reads]
        operand_blocks = [_empty_block(shape) for shape in operand_shapes]
        result_blocks = [_empty_block(table[v].shape) for v in writes]
        overwritten = self._overwritten(codelet, node)
        run = codelet.run

        def step(values: Values, host: Host, counts: Counts) -> None:
            operands = [values[v] for v in reads]
            for v in frees:
                values[v] = None
            results = result_blocks
            for number in overwritten:
                array = operands[number]
                if (
                    sys.getrefcount(array) <= _LONE_REFERENCES
                    and array is not None
                    and array.base is None
                    and array.flags.writeable
                ):
                    results = [result_blocks[0]._replace(array=array), *result_blocks[1:]]
                    break
            array = None
            blocks = [
                Block(x, (), block.part, block.starts, block.whole)
                for x, block in zip(operands, operand_blocks, strict=True)
            ]
            for v, found in zip(writes, run(blocks, results), strict=True):
                values[v] = found

        return step

    def _overwritten(self, codelet: Codelet, node: Node) -> list[int]:
        """Return the operands that the first result may be written into, if they are held alone."""
        table = self.program.values
        first = table[node.writes[0]]
        elements = int(np.prod(first.shape, dtype=np.int64))
        return [
            number
            for number, value in enumerate(node.reads)
            if value in node.frees
            and node.reads.count(value) == 1
            and codelet.may_overwrite(number)
            and table[value].shape == first.shape
            and storage_dtype(table[value].element_type) == storage_dtype(first.element_type)
            and (elements >= REUSED_ELEMENTS or codelet.overwrites_a_part)
        ]

    def _assemble(self, definition: Definition, node: Node) -> Run:
        """Return the function that puts pieces of values together."""
        value = self.program.values[definition.value]
        dtype = storage_dtype(value.element_type)
        alone = len(definition.pieces) == 1 and definition.base is None

        def step(values: Values, host: Host, counts: Counts) -> None:
            found: Array | None = None
            if definition.base is not None:
                base = values[definition.base]
                found = np.array(base)
            for piece in definition.pieces:
                source = values[piece.value]
                if source is None:
                    raise RuntimeError("a value is read before it is made")
                if source.shape != piece.view:
                    source = source.reshape(piece.view)
                cut = tuple(
                    slice(low + shift, high + shift)
                    for (low, high), shift in zip(piece.box, piece.shift, strict=True)
                )
                if alone:
                    found = source[cut]
                    continue
                if found is None:
                    found = np.empty(value.shape, dtype)
                found[tuple(slice(low, high) for low, high in piece.box)] = source[cut]
            for v in node.frees:
                values[v] = None
            values[definition.value] = np.empty(value.shape, dtype) if found is None else found

        return step

    def _stream_out(self, what: StreamOut, frees: tuple[ValueId, ...]) -> Run:
        def step(values: Values, host: Host, counts: Counts) -> None:
            array = values[what.value]
            for v in frees:
                values[v] = None
            if array is not None:
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
                number = in_range(int(chosen), len(branches))  # type: ignore[arg-type]
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


def _empty_block(shape: Sizes) -> Block:
    return Block(None, (), shape, (0,) * len(shape), shape)


def _lone_references() -> int:
    probe: list[Array | None] = [np.empty(1)]
    array = probe[0]
    return sys.getrefcount(array)


_LONE_REFERENCES = _lone_references()
"""The list of operands, the name in the loop, and the argument."""
