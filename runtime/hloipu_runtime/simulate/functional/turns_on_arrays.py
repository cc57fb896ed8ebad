"""Runs counted loops on small arrays as numpy calls that are prepared once, on memory that is kept.

All that a turn does beside numpy's own work is done once: windows and other views are made, and
values are given memory, which others get when they have died. A run copies in what the loop begins
with, calls, and copies out what is left; `turn_calls` writes the calls.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np

from hloipu_runtime.kernels.contractions.blas_threads import on_one_thread
from hloipu_runtime.kernels.native.settings import settings
from hloipu_runtime.program.mapping import Sizes
from hloipu_runtime.program.program import Array, Value
from hloipu_runtime.program.steps import Repeat
from hloipu_runtime.simulate.functional.known_turns import KnownTurns
from hloipu_runtime.simulate.functional.nodes import Node
from hloipu_runtime.simulate.functional.whole_tensors import Values
from hloipu_runtime.simulate.run.host import Counts

if TYPE_CHECKING:
    from hloipu_runtime.simulate.functional.turn_calls import TurnCalls

MOST_CALLS = 1 << 13
"""Of all turns of a loop: some 4 MB of Python's objects; *assumed*."""
SECONDS_PER_NODE = 3e-5
"""To prepare, of each turn: the block's text runs until that has taken as long, so that both
together take twice the time of the better choice at most. Measured on x86-64."""
MOST_LAYOUTS = 4
"""Of what a loop begins with, that are prepared for."""


class TurnsOnArrays:
    """The turns of one loop of an engine."""

    def __init__(
        self, node: Node, known: KnownTurns | None, table: Sequence[Value], first: Values
    ) -> None:
        assert isinstance(node.what, Repeat)
        self._node, self._known, self._table, self._first = node, known, table, first
        self._place, self._what = f"{node.place}/repeat", node.what
        self._outside = [v for v in node.reads if first[v] is None]
        self._outside += [x.initial for x in node.what.carried if x.initial not in self._outside]
        self.seconds = 0.0
        """That the block's text took until now."""
        nodes = len((node.blocks[0] if known is None else known.body).nodes)
        self._preparing = SECONDS_PER_NODE * nodes * node.what.count
        self._layouts = 0
        self._lie: list[tuple[Sizes, Sizes]] | None = None
        """Shapes and strides of what the loop begins with, where calls are prepared."""
        self._calls: list[Callable[[], object]] = []
        self._one_thread: on_one_thread | nullcontext[None] = nullcontext()
        self._begin: list[Array] = []
        self._end: list[Array] = []
        self.bytes = 0
        """Of memory that is kept."""

    def run(self, values: Values, counts: Counts) -> bool:
        """Do all turns; False where the block's text is to."""
        if self.seconds < self._preparing or self._layouts > MOST_LAYOUTS:
            return False
        if settings().compiles or counts.limit.most is not None:
            return False
        given = [np.asarray(values[v]) for v in self._outside]
        lie = [(x.shape, x.strides) for x in given]
        if lie != self._lie:
            self._lie = None
            self._layouts += 1
            if self._layouts > MOST_LAYOUTS or not self._prepare(given):
                return False
            self._lie = lie
        for place, x in zip(self._begin, given, strict=True):
            np.copyto(place, x)
        with self._one_thread:
            for call in self._calls:
                call()
        for v in self._node.frees:
            values[v] = None
        for item, x in zip(self._what.carried, self._end, strict=True):
            values[item.final] = x.copy()
        counts.ran(self._place, self._what.count)
        return True

    def _prepare(self, given: Sequence[Array]) -> bool:
        from hloipu_runtime.simulate.functional.turn_calls import Refused, TurnCalls

        writer = TurnCalls(self._table, self._first)
        try:
            carried = {x.initial for x in self._what.carried} - self._node.blocks[0].outside
            self._begin = [
                writer.begin(v, x, is_carried=v in carried)
                for v, x in zip(self._outside, given, strict=True)
            ]
            self._end = self._written(writer)
        except Refused:
            self._calls, self.bytes, self._layouts = [], 0, MOST_LAYOUTS + 1
            return False
        self._calls, self.bytes = writer.calls, writer.pool.bytes
        self._one_thread = on_one_thread() if writer.multiplies else nullcontext()
        return True

    def _written(self, writer: "TurnCalls") -> list[Array]:
        what, known = self._what, self._known
        body = self._node.blocks[0] if known is None else known.body
        writer.hand_on([(x.initial, x.turn) for x in what.carried], ())
        turns = [()] * what.count if known is None else list(known.turns())
        for turn in turns:
            writer.turn(body, () if known is None else known.targets, turn)
            writer.hand_on(
                [(x.following, x.turn) for x in what.carried], self._node.block_values[0]
            )
            writer.require_at_most(MOST_CALLS)
        return [writer.array(x.turn) for x in what.carried]
