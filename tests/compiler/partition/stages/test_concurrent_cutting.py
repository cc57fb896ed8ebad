"""Cuts of steps without annotations, some stages of which have several IPUs."""

import pytest

import hloipu
from hloipu_compiler.partition.stages.concurrent_cutting import with_branches
from hloipu_compiler.partition.stages.cut_tables import Budget
from hloipu_compiler.partition.stages.cutting import Costing
from hloipu_compiler.partition.training.inference import inference_phases
from hloipu_compiler.partition.training.step_phases import Roles
from hloipu_compiler.plan.schedule import GROUPED, Schedule

TEXT = """HloModule m
ENTRY e {
  x = f32[4] parameter(0)
  first = f32[4] tanh(x)
  a1 = f32[4] negate(first)
  a2 = f32[4] tanh(a1)
  b1 = f32[4] exponential(first)
  b2 = f32[4] tanh(b1)
  joined = f32[4] add(a2, b2)
  last = f32[4] tanh(joined)
  ROOT end = f32[4] negate(last)
}
"""
COSTS = {"first": 5, "a1": 3, "a2": 2, "b1": 2, "b2": 3, "joined": 1, "last": 2, "end": 2}


def stages(*device_map: tuple[int, ...]) -> dict[str, int]:
    entry = hloipu.verify(TEXT).entry
    phases = inference_phases(entry, Roles((), (0,)))
    cycles = [float(COSTS.get(x.name, 0)) for x in entry.instructions]
    schedule = Schedule(len(device_map), GROUPED, 4, trains=False)
    costing = Costing(cycles, Budget(0.001, float("inf")))
    found = with_branches(entry, phases, schedule, (), costing, device_map)
    return {entry.instructions[n].name: stage for n, stage in found.items()}


def test_the_stage_with_branches_takes_both_of_them() -> None:
    """5 beside 5 and what joins them, 5 before, 4 or 5 behind: no stage need last longer than 6."""
    found = stages((0,), (1, 2), (3,))
    assert found["first"] == 0
    assert {found[name] for name in ("a1", "a2", "b1", "b2")} == {1}
    assert found["last"] == found["end"] == 2


def test_a_stage_of_three_ipus_finds_no_three_branches() -> None:
    assert stages((0,), (1, 2, 3)) == {}


@pytest.mark.parametrize("device_map", [[(0,), (1,), (2,)], [(0,)]])
def test_stages_on_single_ipus_are_cut_elsewhere(device_map: list[tuple[int, ...]]) -> None:
    assert stages(*device_map) == {}
