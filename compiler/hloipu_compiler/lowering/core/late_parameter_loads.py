"""Late parameter loads: parameters come in shortly before use where memory is scarce.

Weights of networks take much memory until they are read for the first and, often, only time.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hloipu_compiler.ir.graph import Computation
from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.values import TileTensor, Value, value_on_tiles
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.steps import ValueId

_TOGETHER = 32
"""One part in so many of a tile's memory may be taken by what comes in together, ahead of its use.
Assumed: small beside what there is, yet few round trips to the host."""


class _Arrival(NamedTuple):
    stream: str
    target: TileTensor
    first_use: int


class Arrivals:
    """Parameters that have not come in yet."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.waiting: dict[ValueId, _Arrival] = {}
        """In the order of their first uses."""

    def wait(self, arrivals: Iterable[tuple[str, TileTensor, int]]) -> None:
        """Take up streams, their values and the positions at which these are read first."""
        ordered = sorted((_Arrival(*x) for x in arrivals), key=lambda x: x.first_use)
        self.waiting = {x.target.value: x for x in ordered}

    def need(self, operands: Iterable[Sequence[Value]]) -> None:
        """Write the steps that bring in what is read now, and with it what is read next."""
        if not self.waiting:
            return
        values = [value_on_tiles(leaf) for leaves in operands for leaf in leaves]
        for value in values:
            if value is not None and value in self.waiting:
                self._bring(value)

    def finish(self) -> None:
        """Write the steps that bring in what is left."""
        for value in list(self.waiting):
            self._come(value)

    def _bring(self, value: ValueId) -> None:
        bytes_left = self.builder.machine.memory.bytes_per_tile // _TOGETHER
        bytes_left -= self._come(value)
        for other in list(self.waiting):
            if self._size(other) > bytes_left:
                return
            bytes_left -= self._come(other)

    def _size(self, value: ValueId) -> int:
        return self.builder.variables[self.waiting[value].target.variable].bytes_per_tile

    def _come(self, value: ValueId) -> int:
        """Write the step that brings one value in; return its bytes on a tile."""
        size = self._size(value)
        stream, target, _ = self.waiting.pop(value)
        self.builder.emit(s.Sync())
        self.builder.emit(s.StreamIn(stream, target.variable, target.value))
        return size


def first_uses(computation: Computation) -> dict[int, int]:
    """Return the position of the first instruction that reads each parameter, by its position."""
    first_use_by_parameter: dict[int, int] = {}
    parameters = frozenset(computation.parameters)
    for position, instruction in enumerate(computation.instructions):
        for operand in instruction.operands:
            if operand in parameters:
                first_use_by_parameter.setdefault(operand, position)
    return first_use_by_parameter
