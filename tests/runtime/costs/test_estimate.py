"""Estimates against a walk of the tree step by step, and what data decides."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hloipu_runtime.costs.costs import Costs
from hloipu_runtime.costs.counting import ChargePlan, spent_of
from hloipu_runtime.costs.estimate import Trips, estimate
from hloipu_runtime.costs.step_costs import step_charges
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import (
    Call,
    If,
    Parallel,
    Repeat,
    RepeatWhile,
    Sequence,
    Step,
    Switch,
)
from tests.support.priced_programs import Maker, Walked, everywhere, row

UNIT = load_machine("unit")


class Case:
    """Steps of known cost: `toil(n)` takes n cycles."""

    def __init__(self, ipus: int = 1) -> None:
        self.make = Maker(ipus)
        self.flag = self.make.variable((), everywhere((), row(1)), "pred")

    def toil(self, cycles: int, ipu: int = 0) -> Step:
        shape = (cycles,)
        return self.make.toil(self.make.variable(shape, everywhere(shape, row(1)), ipu=ipu))

    def loop(self, condition: int, body: int, name: str = "w") -> RepeatWhile:
        steps = Sequence((self.toil(condition),)), Sequence((self.toil(body),))
        return RepeatWhile(steps[0], self.flag, self.flag, steps[1], (), name)

    def choice(self, *cycles: int) -> Switch:
        branches = tuple(Sequence((self.toil(c),)) for c in cycles)
        return Switch(self.flag, self.flag, branches, (), "s")


DECISION = 2 + 7 + 1
"""Cycles of handing on what a predicate says, on `unit`."""


def total(program: Program, trips: Trips = None) -> int | None:
    return estimate(program, UNIT, trips).total_cycles


def test_counted_loops_multiply() -> None:
    case = Case()
    inner = Repeat(10**9, Sequence((case.toil(5),)), ())
    program = case.make.program(case.toil(7), Repeat(10**9, Sequence((inner,)), ()))
    found = estimate(program, UNIT)
    assert found.total_cycles == 7 + 10**9 * (1 + 10**9 * 6)
    assert found.lower_bound_cycles == found.total_cycles
    assert found.seconds == pytest.approx(6e9, rel=1e-6)


def test_a_loop_that_data_ends_is_unknown_but_bounded() -> None:
    case = Case()
    program = case.make.program(case.toil(100), case.loop(3, 20))
    found = estimate(program, UNIT)
    assert (found.total_cycles, found.seconds) == (None, None)
    assert found.lower_bound_cycles == 100 + 3 + DECISION
    assert [tuple(item) for item in found.unknown] == [("body/1", "while", "w")]
    assert total(program, 4) == 100 + 5 * (3 + DECISION) + 4 * 20
    assert total(program, {"w": 2}) == total(program, {"body/1": 2}) == total(program, 2)
    assert total(program, {"other": 2}) is None
    assert estimate(program, UNIT, 4).unknown == ()


def test_branches_are_known_where_they_cost_the_same() -> None:
    case = Case()
    assert total(case.make.program(case.choice(5, 5, 5))) == DECISION + 5
    found = estimate(case.make.program(case.choice(9, 4, 5)), UNIT)
    assert (found.total_cycles, found.lower_bound_cycles) == (None, DECISION + 4)
    assert found.unknown[0].kind == "branch"


def test_what_never_runs_is_known() -> None:
    case = Case()
    assert total(case.make.program(Repeat(0, Sequence((case.loop(1, 1),)), ()))) == 0


def test_branches_side_by_side_cost_their_slowest() -> None:
    case = Case(ipus=2)
    slow, fast = Sequence((case.toil(9),)), Sequence((case.toil(4, ipu=1),))
    program = case.make.program(Parallel((fast, slow)), case.toil(1))
    found = estimate(program, UNIT)
    assert found.total_cycles == 10
    counts = ChargePlan(step_charges(program, UNIT)).counts(Walked(program).runs)
    assert counts == found.counts
    assert counts.hidden == (1, 0, 0)


def test_buckets_add_up() -> None:
    case = Case()
    found = estimate(case.make.program(case.toil(3), case.choice(2, 2)), UNIT)
    parts = (
        found.compute_cycles,
        found.exchange_cycles,
        found.sync_cycles,
        found.host_cycles,
        found.idle_cycles,
    )
    assert parts == (3 + 2 + 2, 7, 1, 0, 0)
    assert sum(parts) == found.total_cycles
    assert found.assumed_cycles == found.total_cycles


@st.composite
def bodies(draw: Any, case: Case, depth: int, functions: tuple[str, ...]) -> Sequence:
    steps: list[Step] = []
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(("toil", "repeat", "while", "if", "nest", "call", "all")))
        if kind == "toil" or depth == 0:
            steps.append(case.toil(draw(st.integers(1, 9))))
            continue
        inner = [draw(bodies(case, depth - 1, functions)) for _ in range(2)]
        if kind == "repeat":
            steps.append(Repeat(draw(st.integers(0, 3)), inner[0], ()))
        elif kind == "while":
            steps.append(RepeatWhile(inner[0], case.flag, case.flag, inner[1], (), "w"))
        elif kind == "if":
            steps.append(If(case.flag, case.flag, inner[0], inner[1], ()))
        elif kind == "all":
            steps.append(Parallel((inner[0],)))
        elif kind == "call" and functions:
            steps.append(Call(draw(st.sampled_from(functions))))
        else:
            steps.append(inner[0])
    return Sequence(tuple(steps))


@st.composite
def programs(draw: Any) -> Program:
    case = Case()
    names: tuple[str, ...] = ()
    for name in ("f", "g/h"):
        case.make.functions[name] = draw(bodies(case, 1, names))
        names = (*names, name)
    return case.make.program(*draw(bodies(case, 3, names)).steps)


class Slowly(Walked):
    """Adds up what steps cost one by one, each time they run."""

    def __init__(self, program: Program, costs: Costs, decisions: list[int]) -> None:
        self.each = {step.path: step.spent.total.cycles for step in costs.steps}
        self.total = 0
        super().__init__(program, decisions)

    def step(self, step: Step, path: str) -> None:
        self.total += self.each.get(path, 0)
        if isinstance(step, RepeatWhile):
            self.total += (self.decisions[0] + 1) * self.each[f"{path}/turn"]
        if isinstance(step, Repeat):
            self.total += step.count * self.each[f"{path}/turn"]
        super().step(step, path)


@settings(max_examples=150, deadline=None)
@given(programs(), st.integers(0, 3), st.integers(0, 1))
def test_a_run_costs_the_sum_of_its_steps(program: Program, turns: int, branch: int) -> None:
    costs = step_charges(program, UNIT)

    class Turns(Slowly):
        def step(self, step: Step, path: str) -> None:
            self.decisions = [turns if isinstance(step, RepeatWhile) else branch]
            super().step(step, path)

    walked = Turns(program, costs, [])
    spent = spent_of(costs, ChargePlan(costs).counts(walked.runs))
    assert spent.total.cycles == walked.total
    found = estimate(program, UNIT, turns, costs)
    if found.total_cycles is not None:
        assert found.total_cycles == walked.total
    assert found.lower_bound_cycles <= walked.total
    # Engines that do not count calls and counted loops are charged the same.
    decided = ("/condition", "/while", "?0", "?1")
    data = {path: n for path, n in walked.runs.items() if path.endswith(decided)}
    assert spent_of(costs, ChargePlan(costs).counts(data)) == spent
