"""Generates Python source of a block of the logical form.

The text is made of numbers and of names that numpy or this module gave: `v` holds the values of the
program, `b1` is memory that is used over and over, `c1` a constant, `f1` a function, `n1` a node
that is more than calls, `t1` a value within a node.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import numpy as np

from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.codelets.core.straight import Straight
from hloipu_runtime.kernels.core.movement import STRIP_THRESHOLD_ELEMENTS, reshape
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.program import Value
from hloipu_runtime.simulate.functional.buffers import Buffers
from hloipu_runtime.simulate.functional.known_values import is_known
from hloipu_runtime.simulate.functional.node_source import node_lines
from hloipu_runtime.simulate.functional.nodes import KnownWindow, Node
from hloipu_runtime.simulate.functional.whole_tensors import Values, cuts_of, whole_block
from hloipu_runtime.simulate.run.owning import first_held_alone

General = Callable[[Node], Callable[..., None]]
"""Returns a node as a function of values, host and counts."""


@dataclass
class Names:
    """What the names in the text mean."""

    meanings: dict[str, Any] = field(default_factory=dict)
    _known: dict[int, str] = field(default_factory=dict)

    def of(self, letter: str, thing: Any) -> str:
        """Return a name for a thing: a ufunc's own, else the letter and a number."""
        if isinstance(thing, np.ufunc):
            own = str(thing.__name__)
            if own.isidentifier() and self.meanings.setdefault(own, thing) is thing:
                return own
        name = self._known.get(id(thing))  # it stays alive among the meanings
        if name is None:
            name = f"{letter}{len(self.meanings)}"
            self._known[id(thing)] = name
            self.meanings[name] = thing
        return name


@dataclass
class BlockSource:
    """The nodes of one block, to be written."""

    nodes: Sequence[Node]
    table: Sequence[Value]
    names: Names
    general: General
    buffers: Buffers
    first: Values
    """What each run begins with."""

    def lines(self) -> Iterator[tuple[Node, list[str]]]:
        """Yield the lines of each node."""
        straights = [self._straight(node) for node in self.nodes]
        private = private_values(self.nodes, straights)
        held: dict[s.ValueId, Any] = {}
        for node, straight in zip(self.nodes, straights, strict=True):
            if is_known(node, self.first):
                yield node, []
                continue
            if straight is None:
                yield node, self._other(node)
                continue
            asked = self._not_row_major(node, straight, held)
            lines = node_lines(node, straight, self.table, self.names, self.buffers, private, held)
            if asked:
                lines = [
                    f"if {' and '.join(f'v[{x}].flags.c_contiguous' for x in asked)}:",
                    *(f"    {line}" for line in lines),
                    "else:",
                    f"    {self._whole(node)}",
                ]
            yield node, lines

    def _straight(self, node: Node) -> Straight | None:
        if not isinstance(node.what, Codelet) or is_known(node, self.first):
            return None
        return node.what.straight(
            [whole_block(self.table[v].shape) for v in node.reads],
            [whole_block(self.table[v].shape) for v in node.writes],
        )

    def _whole(self, node: Node) -> str:
        return f"{self.names.of('n', self.general(node))}(v, host, counts)"

    def _not_row_major(
        self, node: Node, straight: Straight, held: dict[s.ValueId, Any]
    ) -> list[s.ValueId]:
        """Return operands that should lie row-major and may not."""
        if not straight.needs_row_major:
            return []
        shape = self.table[node.writes[0]].shape
        return [
            v for v in dict.fromkeys(node.reads) if self.table[v].shape == shape and v not in held
        ]

    def _other(self, node: Node) -> list[str]:
        """Return the lines of a node that is no codelet, or none that is straight."""
        what, names = node.what, self.names
        freed = freeing(node.frees)
        match what:
            case s.StreamIn():
                return [f"v[{what.value}] = host.take({names.of('c', what.stream)})"]
            case s.StreamOut():
                stream = names.of("c", what.stream)
                return [f"x = v[{what.value}]", *freed, f"host.give({stream}, x)", "x = None"]
            case s.Definition(base=None, pieces=(piece,)):
                return [f"v[{what.value}] = {self._piece(piece)}", *freed]
            case s.Definition(base=None):
                value = self.table[what.value]
                empty = partial(np.empty, value.shape, storage_dtype(value.element_type))
                put = [f"x[{names.of('c', cuts_of(p)[1])}] = {self._piece(p)}" for p in what.pieces]
                begun = f"x = {names.of('f', empty)}()"
                return [begun, *put, *freed, f"v[{what.value}] = x", "x = None"]
            case KnownWindow():
                return self._window(what, node)
            case _:
                return [self._whole(node)]

    def _piece(self, piece: s.Piece) -> str:
        """Return what a piece takes of its value."""
        source = f"v[{piece.value}]"
        if self.table[piece.value].shape != piece.view:
            view = self.names.of("c", piece.view)
            is_large = prod(piece.view) >= STRIP_THRESHOLD_ELEMENTS
            of_large = f"{self.names.of('f', reshape)}({source}, {view})" if is_large else ""
            source = of_large or f"{source}.reshape({view})"
        origin, _ = cuts_of(piece)
        if origin != tuple(slice(0, size) for size in piece.view):
            source += f"[{self.names.of('c', origin)}]"
        return source

    def _window(self, what: KnownWindow, node: Node) -> list[str]:
        """Return the lines of a slice, or of an update, in place where the data is held alone."""
        (made,), (data, *window) = node.writes, node.reads
        index, freed = f"v[{what.slot}]", freeing(node.frees)
        if not window:
            return [f"v[{made}] = v[{data}][{index}]", *freed]
        lines = [f"x0, x1 = v[{data}], v[{window[0]}]", *freed]
        lines.append(f"o = {self.names.of('f', first_held_alone)}(x0)")
        return [
            *lines, "if o is None: o = x0.copy()", f"o[{index}] = x1", f"v[{made}] = o",
            "x0 = x1 = o = None",
        ]  # fmt: skip


def freeing(values: Sequence[s.ValueId]) -> list[str]:
    """Return the line that drops values."""
    return [" = ".join(f"v[{x}]" for x in values) + " = None"] if values else []


def private_values(nodes: Sequence[Node], straights: Sequence[Straight | None]) -> set[s.ValueId]:
    """Return the values that live and die in a block, in memory that no other value shares."""
    made: set[s.ValueId] = set()
    shared: set[s.ValueId] = set()
    dying: set[s.ValueId] = set()
    for node, straight in zip(nodes, straights, strict=True):
        dying.update(node.frees)
        if straight is None:
            shared.update(node.reads)
            continue
        results = straight.results
        takers = {call.number for call in straight.calls if call.takes_out}
        viewed = {x for call in straight.calls if not call.is_fresh for x in call.arguments}
        for v, number in zip(node.writes, results, strict=True):
            if number in takers and number not in viewed and results.count(number) == 1:
                made.add(v)
        shared.update(v for k, v in enumerate(node.reads) if k in viewed or k in results)
    return (made & dying) - shared


def loop_lines(
    what: s.Repeat | s.RepeatWhile, node: Node, blocks: Sequence[str], turns: str,
    given: Sequence[int] = (),
) -> list[str]:  # fmt: skip
    """Return the lines of a loop that goes through `turns`, each with what is `given` to values.

    `blocks` are the names of its body, or condition and body.
    """
    carried, left = what.carried, node.block_values[0]
    first, last = _loop_frees(node)
    initial, turn = [x.initial for x in carried], [x.turn for x in carried]
    following, final = [x.following for x in carried], [x.final for x in carried]
    lines = _moved(initial, first, turn)
    if given:
        lines.append(f"for _, ({', '.join(f'v[{x}]' for x in given)},) in {turns}:")
    else:
        lines.append(f"for _ in {turns}:")
    if isinstance(what, s.RepeatWhile):
        lines.append(f"    {blocks[0]}(v, host, counts)")
        lines.append(f"    if not v[{what.predicate_value}]: break")
    lines.append(f"    {blocks[-1]}(v, host, counts)")
    lines += [f"    {line}" for line in _moved(following, left, turn)]
    return lines + _moved(turn, (*last, *turn), final)


def call_lines(what: s.Call, node: Node, function: str) -> list[str]:
    """Return the lines of a call: arguments become the function's values, its own the results."""
    first, last = _loop_frees(node)
    arguments, results = what.arguments, what.results
    lines = _moved([x.outer for x in arguments], first, [x.inner for x in arguments])
    lines.append(f"{function}(v, host, counts)")
    dropped = dict.fromkeys((*last, *(x.inner for x in arguments), *node.block_values[0]))
    return lines + _moved([x.inner for x in results], tuple(dropped), [x.outer for x in results])


def _moved(
    origins: Sequence[s.ValueId], dropped: Sequence[s.ValueId], targets: Sequence[s.ValueId]
) -> list[str]:
    """Return what hands arrays on, all at once, and drops values before they arrive."""
    lines = []
    if origins:
        lines.append(f"x = {', '.join(f'v[{n}]' for n in origins)},")
    if dropped:
        lines.append(" = ".join(f"v[{n}]" for n in dropped) + " = None")
    if targets:
        lines.append(f"{', '.join(f'v[{n}]' for n in targets)}, = x")
        lines.append("x = None")
    return lines


def _loop_frees(node: Node) -> tuple[tuple[s.ValueId, ...], tuple[s.ValueId, ...]]:
    """Return what dies as a loop begins, and what only once it has ended: turns read it."""
    outside = frozenset[s.ValueId]().union(*(block.outside for block in node.blocks))
    first = tuple(v for v in node.frees if v not in outside)
    return first, tuple(v for v in node.frees if v in outside)
