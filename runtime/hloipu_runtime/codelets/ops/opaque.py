"""Work that nobody describes, of a number of cycles that the user states."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hloipu_runtime.codelets.core.codelet import (
    Array,
    Block,
    Codelet,
    Indexing,
    Tensor,
    codelet,
)
from hloipu_runtime.codelets.core.labels import require
from hloipu_runtime.machine.costs import TileWork
from hloipu_runtime.machine.model import Machine


@codelet
@dataclass(frozen=True)
class OpaqueWork(Codelet):
    """Takes one number of each operand, so that it follows them, and makes no number: NaN."""

    name: ClassVar[str] = "opaque"

    cycles: int
    """Of a call; none is known, and none is counted, of how many tiles share it."""

    def indexing(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Indexing:
        """Return no labels: numbers in, a number out."""
        alone = all(x == Tensor("f32", ()) for x in (*operands, *results))
        require(alone and len(results) == 1 and self.cycles >= 0, "no cycles of one number")
        return Indexing((), ((),) * len(operands), ((),))

    def run(self, operands: Sequence[Block], results: Sequence[Block]) -> list[Array]:
        """Return NaN: what it computes nobody knows."""
        return [np.full(results[0].grid + results[0].part, np.nan, np.float32)]

    def work(
        self, machine: Machine, operands: Sequence[Tensor], results: Sequence[Tensor]
    ) -> TileWork:
        """Return the cycles that the user states, which rest on nothing else."""
        return TileWork(self.cycles, self.cycles)
