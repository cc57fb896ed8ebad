"""Counting what runs: one count a block, and what of it lies on the slowest branches' way."""

from itertools import pairwise
from typing import NamedTuple

from hloipu_runtime.costing.costs import BlockNumber, Costs
from hloipu_runtime.costing.spent import FREE, Spent
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import Sequence


class ChargePlan(NamedTuple):
    """How a run is charged: once for each execution of a block, whatever is in it."""

    costs: Costs

    def block_of(self, sequence: Sequence) -> BlockNumber:
        """Return the block that each execution of a body, condition or branch counts for.

        A sequence directly within another one belongs to that one's block and is not counted.
        """
        return self.costs.block_of(sequence)

    @property
    def root(self) -> BlockNumber:
        """The block of the program's body."""
        return self.costs.root

    def meter(self) -> "Meter":
        """Return counts for a run, all 0."""
        return Meter(self.costs)


def charge_plan(program: Program, costs: Costs) -> ChargePlan:
    """Return how to charge the runs of a program."""
    if costs.program is not program:
        raise ValueError("the costs are another program's")
    return ChargePlan(costs)


class Meter:
    """Counts executions of blocks; an engine adds 1 to `counts[block]` where it enters one.

    Around branches that run together, an engine calls `fork`, `next_branch` after each branch, and
    `join`: the slowest branch counts for the total, the first of equal ones.
    """

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.counts = [0] * len(costs.blocks)
        """Executions of each block."""
        self.hidden = [0] * len(costs.blocks)
        """Of these, how many were in a branch that waited for a slower one."""
        self._cycles = [block.spent.total.cycles for block in costs.blocks]
        self._forks: list[list[list[int]]] = []

    def fork(self) -> None:
        """Begin branches that run together."""
        self._forks.append([self._on_path()])

    def next_branch(self) -> None:
        """End one of the branches."""
        self._forks[-1].append(self._on_path())

    def join(self) -> None:
        """End the branches: those that waited are hidden behind the slowest."""
        marks = self._forks.pop()
        spent = [
            [after - before for before, after in zip(*pair, strict=True)]
            for pair in pairwise(marks)
        ]
        cycles = [sum(n * c for n, c in zip(counts, self._cycles, strict=True)) for counts in spent]
        slowest = max(range(len(spent)), key=cycles.__getitem__, default=0)
        for number, counts in enumerate(spent):
            if number != slowest:
                for block, count in enumerate(counts):
                    self.hidden[block] += count

    def _on_path(self) -> list[int]:
        return [n - hidden for n, hidden in zip(self.counts, self.hidden, strict=True)]

    @property
    def spent(self) -> Spent:
        """What has been spent so far on the way of the slowest branches."""
        total = FREE
        for block, count in zip(self.costs.blocks, self._on_path(), strict=True):
            if count:
                total = total.plus(block.spent.times(count))
        return total

    @property
    def cycles(self) -> int:
        """Total cycles so far."""
        return sum(n * c for n, c in zip(self._on_path(), self._cycles, strict=True))
