"""Execution counts of blocks after a run, and costs along the critical path."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from hloipu_runtime.costs.costs import (
    Called,
    Choice,
    Costs,
    DataLoop,
    Inner,
    Loop,
    Pipelined,
    Together,
    blocks_inside,
)
from hloipu_runtime.costs.spent import FREE, Spent

Decide = Callable[[DataLoop | Choice, int], list[int]]
"""How often each block inside runs, from how often the block around it does."""


class BlockCounts(NamedTuple):
    """Executions of every block of a program."""

    counts: tuple[int, ...]
    hidden: tuple[int, ...]
    """Of these, those beside a slower branch, which no total contains."""

    def shown(self, block: int) -> int:
        """Return how often a block runs on the critical path."""
        return self.counts[block] - self.hidden[block]


def count_blocks(costs: Costs, decide: Decide, runs: int = 1) -> BlockCounts:
    """Return how often blocks run in `runs` runs of the program."""
    counts = [0] * len(costs.blocks)
    counts[costs.root] = runs
    for number in range(costs.root, -1, -1):
        for inner in costs.blocks[number].inner:
            times = _times(inner, counts[number], decide)
            for block, count in zip(blocks_inside(inner), times, strict=True):
                counts[block] += count
    return BlockCounts(tuple(counts), tuple(_hidden(costs, counts, decide)))


def spent_of(costs: Costs, counts: BlockCounts) -> Spent:
    """Return what executions of blocks cost along the critical path."""
    total = FREE
    for number, block in enumerate(costs.blocks):
        shown = counts.shown(number)
        if shown:
            total = total.plus(block.spent.times(shown))
    return total


def cycles_of_blocks(costs: Costs, counts: BlockCounts) -> list[int]:
    """Return the cycles of all executions of each block, with what is inside."""
    return _cycles_with_inner(
        costs,
        list(counts.counts),
        lambda inner, _: [counts.counts[b] for b in blocks_inside(inner)],
    )


class ChargePlan:
    """Charges the runs of a program by how often its blocks ran: one number a block."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self._numbers = {block.path: number for number, block in enumerate(costs.blocks)}
        self._pipelines = frozenset(
            f"{inner.path}/repeat"
            for block in costs.blocks
            for inner in block.inner
            if isinstance(inner, Pipelined)
        )
        """What engines count for the micro-batches of a pipeline, whose blocks are its bodies."""

    def counts(self, runs: Mapping[str, int]) -> BlockCounts:
        """Return the counts of a run that counted blocks by their path.

        Only what data decides is looked up: bodies and conditions of loops, and branches. Which of
        several branches side by side was slowest is told for all executions together.
        """
        seen = [0] * len(self.costs.blocks)
        for path, count in runs.items():
            if path not in self._pipelines:
                seen[self._numbers[path]] += count
        return count_blocks(
            self.costs,
            lambda inner, _: [seen[block] for block in blocks_inside(inner)],
            runs.get("body", 1),
        )


def _times(inner: Inner, around: int, decide: Decide) -> list[int]:
    match inner:
        case Loop():
            return [around * inner.iterations]
        case Called():
            return [around]
        case Together():
            return [around] * len(inner.branches)
        case Pipelined():
            return [around * inner.iterations] * len(blocks_inside(inner))
        case DataLoop() | Choice():
            return decide(inner, around)


def _hidden(costs: Costs, counts: list[int], decide: Decide) -> list[int]:
    """Return how many executions of each block lie beside a slower branch."""
    hidden = [0] * len(counts)
    beside = (Together, Pipelined)
    if not any(isinstance(inner, beside) for b in costs.blocks for inner in b.inner):
        return hidden
    cycles = _cycles_with_inner(costs, counts, decide)
    for number in range(costs.root, -1, -1):
        around = counts[number]
        for inner in costs.blocks[number].inner:
            blocks = blocks_inside(inner)
            times = _times(inner, around, decide)
            waiting = _waiting(inner, blocks, around, cycles, counts)
            for block, count, beside_another in zip(blocks, times, waiting, strict=True):
                hidden[block] += beside_another
                hidden[block] += _part(count - beside_another, hidden[number], around)
    return hidden


def _waiting(
    inner: Inner, blocks: Sequence[int], around: int, cycles: list[int], counts: list[int]
) -> list[int]:
    """Return how many executions of the blocks inside lie beside slower ones of the same thing."""
    each = [_each(cycles[b], counts[b]) for b in blocks]
    if isinstance(inner, Together):
        slowest = max(range(len(blocks)), key=each.__getitem__, default=-1)
        return [0 if n == slowest else around for n in range(len(blocks))]
    if isinstance(inner, Pipelined):
        shown = [0] * len(blocks)
        for slots, positions in inner.slowest(each):
            for position in positions:
                shown[position] += slots
        return [around * (inner.iterations - n) for n in shown]
    return [0] * len(blocks)


def _cycles_with_inner(costs: Costs, counts: list[int], decide: Decide) -> list[int]:
    cycles_by_block: list[int] = []
    for number, block in enumerate(costs.blocks):
        total = block.spent.total.cycles * counts[number]
        for inner in block.inner:
            times = _times(inner, counts[number], decide)
            parts = [
                _part(cycles_by_block[b], count, counts[b])
                for b, count in zip(blocks_inside(inner), times, strict=True)
            ]
            if isinstance(inner, Together):
                total += max(parts, default=0)
            elif isinstance(inner, Pipelined):
                each = [part / (inner.iterations or 1) for part in parts]
                found_slots = inner.slowest(each)
                total += round(sum(slots * sum(each[n] for n in on) for slots, on in found_slots))
            else:
                total += sum(parts)
        cycles_by_block.append(total)
    return cycles_by_block


def _part(total: int, share: int, whole: int) -> int:
    return total * share // whole if whole else 0


def _each(total: int, count: int) -> float:
    return total / count if count else 0.0
