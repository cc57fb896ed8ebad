"""Cycles along the critical path of blocks within blocks, against a walk over every turn."""

from collections import Counter
from random import Random

import pytest

from hloipu_runtime.costs.costs import (
    BlockCost,
    Called,
    Choice,
    Costs,
    DataLoop,
    Inner,
    Loop,
    Pipelined,
    Together,
)
from hloipu_runtime.costs.counting import (
    ChargePlan,
    count_blocks,
    cycles_of_blocks,
    spent_of,
)
from hloipu_runtime.costs.estimate import estimate
from hloipu_runtime.costs.spent import Spent
from hloipu_runtime.machine.charges import Charge
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.program.steps import Pipeline, Sequence, Stage
from tests.support.program_builder import ProgramBuilder

TINY = load_machine("tiny")


class Blocks:
    """Draws blocks within blocks, and walks them turn by turn."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.blocks: list[BlockCost] = []
        self.functions: list[int] = []
        self.trips: dict[str, int] = {}
        self.taken: dict[str, int] = {}
        """Branch of each choice."""
        self.runs: Counter[int] = Counter()
        self.block("body", 3)
        self.costs = Costs(ProgramBuilder().program(), TINY, (), tuple(self.blocks))

    def block(self, path: str, level: int) -> int:
        kinds = ["loop", "while", "if", "together", "pipeline", "call"]
        inner = [
            self.inner(f"{path}/{n}", self.draw.choice(kinds), level - 1)
            for n in range(self.draw.randrange(3) if level else 0)
        ]
        compute, sync = (Charge(self.draw.randrange(1000), self.draw.randrange(9)) for _ in "ab")
        self.blocks.append(
            BlockCost(path, Spent(compute, sync=sync), (), tuple(inner), frozenset())
        )
        return len(self.blocks) - 1

    def inner(self, path: str, kind: str, level: int) -> Inner:
        draw = self.draw
        if kind == "loop":
            return Loop(path, path, draw.randrange(4), self.block(f"{path}/repeat", level))
        if kind == "while":
            self.trips[path] = draw.randrange(3)
            condition = self.block(f"{path}/condition", level)
            return DataLoop(path, path, condition, self.block(f"{path}/while", level))
        if kind == "if":
            count = draw.randint(1, 3)
            self.taken[path] = draw.randrange(count)
            branches = tuple(self.block(f"{path}?{n}", level) for n in range(count))
            return Choice(path, path, branches)
        if kind == "together":
            count = draw.randint(1, 3)
            return Together(path, tuple(self.block(f"{path}|{n}", level) for n in range(count)))
        if kind == "call" and self.functions and draw.random() < 0.5:
            return Called(draw.choice(self.functions))
        if kind == "call":
            self.functions.append(self.block(path, level))
            return Called(self.functions[-1])
        return self.pipeline(path, level)

    def pipeline(self, path: str, level: int) -> Pipelined:
        """Return bodies of which some share an IPU."""
        draw = self.draw
        count, turns, interval = draw.randint(1, 3), draw.randrange(4), draw.randint(1, 3)
        bodies = tuple(self.block(f"{path}/repeat/{n}", level) for n in range(count))
        ipus = tuple((draw.randrange(2),) for _ in bodies)
        stages = tuple(Stage(f"p{n}", at, Sequence()) for n, at in enumerate(ipus))
        step = Pipeline(turns, interval, stages, (), ())
        return Pipelined(path, path, turns, bodies, ipus, tuple(step.timetable.patterns()), step)

    def cycles(self, block: int) -> int:
        """Return the cycles of a block's run, and count those of the blocks inside."""
        self.runs[block] += 1
        found = self.blocks[block]
        total = found.spent.compute.cycles + found.spent.sync.cycles
        return total + sum(self.inside(inner) for inner in found.inner)

    def inside(self, inner: Inner) -> int:
        match inner:
            case Called():
                return self.cycles(inner.body)
            case Loop():
                return sum(self.cycles(inner.body) for _ in range(inner.iterations))
            case DataLoop():
                trips = self.trips[inner.path]
                condition = sum(self.cycles(inner.condition) for _ in range(trips + 1))
                return condition + sum(self.cycles(inner.body) for _ in range(trips))
            case Choice():
                return self.cycles(inner.branches[self.taken[inner.path]])
            case Together():
                return max(self.cycles(branch) for branch in inner.branches)
            case Pipelined():
                table = inner.step.timetable
                return sum(self.slot(inner, table.active(n)) for n in range(table.slots))

    def slot(self, inner: Pipelined, active: tuple[int, ...]) -> int:
        """Return how long positions work, later ones first on an IPU that they share."""
        free = Counter[int]()
        for position in reversed(active):
            free[inner.ipus[position][0]] += self.cycles(inner.bodies[position])
        return max(free.values(), default=0)

    def decide(self, inner: DataLoop | Choice, around: int) -> list[int]:
        if isinstance(inner, DataLoop):
            trips = self.trips[inner.path]
            return [around * (trips + 1), around * trips]
        taken = self.taken[inner.path]
        return [around * (n == taken) for n in range(len(inner.branches))]


@pytest.mark.parametrize("seed", range(60))
def test_the_critical_path_is_that_of_every_turn(seed: int) -> None:
    drawn = Blocks(seed)
    root = drawn.costs.root
    cycles = drawn.cycles(root)
    counts = count_blocks(drawn.costs, drawn.decide)
    assert list(counts.counts) == [drawn.runs[n] for n in range(root + 1)]
    assert spent_of(drawn.costs, counts).total.cycles == cycles
    whole = cycles_of_blocks(drawn.costs, counts)
    for block in range(root + 1):
        runs = drawn.runs[block]
        assert whole[block] == runs * drawn.cycles(block)
    of_three = count_blocks(drawn.costs, drawn.decide, 3)
    assert spent_of(drawn.costs, of_three).total.cycles == 3 * cycles


@pytest.mark.parametrize("seed", range(60))
def test_runs_are_charged_by_what_engines_count(seed: int) -> None:
    """Paths that are no block's, such as a pipeline's micro-batches, are counted too."""
    drawn = Blocks(seed)
    drawn.cycles(drawn.costs.root)
    runs = Counter({drawn.blocks[n].path: 2 * count for n, count in drawn.runs.items()})
    for inner in (inner for block in drawn.blocks for inner in block.inner):
        if isinstance(inner, Pipelined):
            runs[f"{inner.path}/repeat"] += 5
    assert ChargePlan(drawn.costs).counts(runs) == count_blocks(drawn.costs, drawn.decide, 2)


@pytest.mark.parametrize("seed", range(60))
def test_estimates_are_of_the_cheapest_branches(seed: int) -> None:
    drawn = Blocks(seed)
    for inner in (inner for block in drawn.blocks for inner in block.inner):
        if isinstance(inner, Choice):
            drawn.taken[inner.path] = min(
                range(len(inner.branches)), key=lambda n: drawn.cycles(inner.branches[n])
            )
    found = estimate(drawn.costs.program, TINY, drawn.trips, drawn.costs)
    assert found.lower_bound_cycles == drawn.cycles(drawn.costs.root)


def test_of_branches_side_by_side_the_slowest_counts_where_the_cheapest_choice_is_looked_for() -> (
    None
):
    def block(cycles: int, *inner: Inner) -> BlockCost:
        return BlockCost(f"b{cycles}", Spent(Charge(cycles, 0)), (), inner, frozenset())

    blocks = (
        block(1), block(100), block(0, Together("t", (0, 1))), block(50),
        block(7, Choice("c", "c", (2, 3))),
    )  # fmt: skip
    costs = Costs(ProgramBuilder().program(), TINY, (), blocks)
    found = estimate(costs.program, TINY, None, costs)
    assert (found.lower_bound_cycles, found.total_cycles) == (57, None)
    assert [unknown.path for unknown in found.unknown] == ["c"]
