"""Writing blocks of the logical form as Python functions: a line for each call on arrays.

The text is made of numbers and of names that the runtime or numpy gave: `v` holds the values of the
program, `b1` is memory that is used over and over, `c1` a constant, `f1` a function, `n1` a node
that is more than calls. Where a value that nobody reads any more lies in memory that nobody else
holds, what is computed from it may be written over it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from hloipu_runtime.codelets.codelet import Block, Codelet
from hloipu_runtime.codelets.straight import Call, Straight
from hloipu_runtime.kernels.storage import storage_dtype
from hloipu_runtime.program.mapping import Sizes
from hloipu_runtime.program.program import Array, Value
from hloipu_runtime.program.steps import ValueId
from hloipu_runtime.sim.buffers import Buffers
from hloipu_runtime.sim.collapse import Node
from hloipu_runtime.sim.owning import first_held_alone

REUSED_ELEMENTS = 1 << 14
"""From here on writing into a dead operand beats a fresh buffer, whose pages must be mapped."""

BUFFERED_BYTES = 1 << 12
"""From here on memory that is at hand, and in cache, beats fresh memory."""


@dataclass
class Names:
    """What the names in the text mean."""

    meanings: dict[str, Any] = field(default_factory=dict)
    _known: dict[int, str] = field(default_factory=dict)

    def of(self, letter: str, thing: Any) -> str:
        """Return a name for a thing: a ufunc's own, else the letter and a number."""
        if isinstance(thing, np.ufunc):
            self.meanings[thing.__name__] = thing
            return thing.__name__
        name = self._known.get(id(thing))
        if name is None or self.meanings[name] is not thing:
            name = f"{letter}{len(self.meanings)}"
            self._known[id(thing)] = name
            self.meanings[name] = thing
        return name


def whole_block(shape: Sizes) -> Block:
    """Return the block of a whole tensor."""
    return Block(None, (), shape, (0,) * len(shape), shape)


def straight_of(node: Node, table: Sequence[Value]) -> Straight | None:
    """Return a node as calls, None where it is more than that."""
    if not isinstance(node.what, Codelet):
        return None
    return node.what.straight(
        [whole_block(table[v].shape) for v in node.reads],
        [whole_block(table[v].shape) for v in node.writes],
    )


class BlockSource:
    """Writes the nodes of one block; `general` gives the function of a node that is no calls."""

    def __init__(
        self,
        nodes: Sequence[Node],
        table: Sequence[Value],
        names: Names,
        general: Callable[[Node], Callable[..., None]],
        buffers: Buffers,
    ) -> None:
        self._table = table
        self._names = names
        self._general = general
        self._buffers = buffers
        self._straight = [straight_of(node, table) for node in nodes]
        self._nodes = nodes
        self._private = self._private_values()
        self._held: dict[ValueId, str] = {}
        """Names of the buffers that values lie in."""

    def lines(self) -> Iterator[tuple[Node, list[str]]]:
        """Yield the lines of each node."""
        for node, straight in zip(self._nodes, self._straight, strict=True):
            if straight is None:
                yield node, [f"{self._names.of('n', self._general(node))}(v, host, counts)"]
            else:
                yield node, self._calls(node, straight)

    def _private_values(self) -> set[ValueId]:
        """Return the values that live and die in this block, in memory that no other value sees."""
        made: set[ValueId] = set()
        seen: set[ValueId] = set()
        dying: set[ValueId] = set()
        for node, straight in zip(self._nodes, self._straight, strict=True):
            dying.update(node.frees)
            if straight is None:
                seen.update(node.reads)
                continue
            takers = {call.number for call in straight.calls if call.takes_out}
            results = straight.results
            made.update(
                v
                for v, number in zip(node.writes, results, strict=True)
                if number in takers and results.count(number) == 1
            )
            viewed = {x for call in straight.calls if not call.is_fresh for x in call.arguments}
            viewed.update(results)
            seen.update(v for n, v in enumerate(node.reads) if n in viewed)
            seen.update(v for v, x in zip(node.writes, results, strict=True)
                        if x in {y for c in straight.calls if not c.is_fresh for y in c.arguments})  # fmt: skip
        return (made & dying) - seen

    def _calls(self, node: Node, straight: Straight) -> list[str]:
        writer = _NodeWriter(self, node, straight)
        lines = writer.lines()
        guarded = self._needed_row_major(node, straight)
        if not guarded:
            return lines
        general = f"{self._names.of('n', self._general(node))}(v, host, counts)"
        if not lines:
            return [general]
        return [
            f"if {' and '.join(f'v[{v}].flags.c_contiguous' for v in guarded)}:",
            *(f"    {line}" for line in lines),
            f"else:\n    {general}",
        ]

    def _needed_row_major(self, node: Node, straight: Straight) -> list[ValueId]:
        if not straight.needs_row_major:
            return []
        shape = self._table[node.writes[0]].shape
        return [v for v in dict.fromkeys(node.reads) if self._table[v].shape == shape]
