"""The codelet of all elementwise work: an expression on operands that broadcast into the result."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from hloipu_runtime.codelets.codelet import Block, Codelet, Index, Indexing, Tensor, codelet
from hloipu_runtime.codelets.elementwise_costs import elementwise_work
from hloipu_runtime.codelets.expression import Expression, Plan, plan_of
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.kernels.storage import storage_dtype
from hloipu_runtime.machine.costs import TileWork
from hloipu_runtime.machine.model import Machine

Array = np.ndarray[Any, Any]


class _Arrangement(NamedTuple):
    """How an operand's dimensions are put in the result's order, with 1 where it has none."""

    order: tuple[int, ...]
    places: tuple[bool, ...]
    """For each dimension of the result: whether the operand has it."""


@codelet
@dataclass(frozen=True)
class Elementwise(Codelet):
    """Computes an expression for each element of the result.

    Dimension d of operand k follows dimension `labels[k][d]` of the results, which all have `rank`
    dimensions and one shape. An operand repeats along dimensions that it does not name.
    """

    name: ClassVar[str] = "elementwise"
    whole_parts: ClassVar[bool] = True
    expression: Expression
    labels: tuple[tuple[int, ...], ...]
    rank: int

    @property
    def code_bytes(self) -> int:  # type: ignore[override]  # nobody writes it
        """Loops and their ends, and each op's instructions; assumed."""
        return 256 + 64 * len(self.expression.nodes)

    def indexing(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Indexing:
        """Return one label for each dimension of the result."""
        place = tuple(Index(d) for d in range(self.rank))
        return Indexing(
            results[0].shape,
            tuple(tuple(Index(label) for label in labels) for labels in self.labels),
            (place,) * len(results),
        )

    def run(self, operands: Sequence[Block], results: Sequence[Block]) -> list[Array]:
        """Compute the expression on all parts at once."""
        target = results[0]
        arrays = [block.data for block in operands]
        if self._rearranged:
            axes = len(target.grid)
            for k, arrangement in self._rearranged:
                arrays[k] = _arranged(arrays[k], arrangement, axes)
        outs: list[Array | None] | None = [block.array for block in results]
        if target.array is None and len(results) == 1:
            outs = None
        return self._plan.run(arrays, outs, target.grid + target.part)

    def work(
        self, machine: Machine, operands: Sequence[Tensor], results: Sequence[Tensor]
    ) -> TileWork:
        """Return the cycles of one tile, by the tables of popops."""
        return elementwise_work(
            machine, self.expression, self.labels, [x.shape for x in operands], results[0].shape
        )

    def may_overwrite(self, operand: int) -> bool:
        """Whether an operand has the result's dimensions, in order, and elements of its width.

        And it is not a result itself, which would be lost.
        """
        if operand in self.expression.results:
            return False
        before = self.expression.operand_types[operand]
        after = self.expression.result_types[0]
        return (
            self.labels[operand] == tuple(range(self.rank))
            and storage_dtype(before) == storage_dtype(after)
            and ELEMENT_TYPES[before].bits == ELEMENT_TYPES[after].bits
        )

    @cached_property
    def _plan(self) -> Plan:
        return plan_of(self.expression)

    @cached_property
    def _rearranged(self) -> tuple[tuple[int, _Arrangement], ...]:
        """Operands whose dimensions are not simply those of the result."""
        every = tuple(range(self.rank))
        found = []
        for k, labels in enumerate(self.labels):
            if labels != every:
                order = tuple(sorted(range(len(labels)), key=labels.__getitem__))
                found.append((k, _Arrangement(order, tuple(d in labels for d in every))))
        return tuple(found)


def _arranged(array: Array, arrangement: _Arrangement, axes: int) -> Array:
    """Put the dimensions after `axes` grid axes in the result's order, with 1 for those missing."""
    order, places = arrangement
    if order != tuple(range(len(order))):
        array = array.transpose((*range(axes), *(axes + d for d in order)))
    if all(places):
        return array
    kept = (slice(None),) * axes
    return array[kept + tuple(slice(None) if present else None for present in places)]
