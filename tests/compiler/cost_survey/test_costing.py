"""What a machine gives each stage."""

import pytest

from hloipu_compiler.cost_survey.costing import Needs, budget_of
from hloipu_compiler.plan.pipelining import PipelineRequest
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.memory.plan import available_bytes

MACHINE = load_machine("bow")
TILES = MACHINE.chip.tiles_per_ipu


def test_stages_have_all_for_what_they_keep_that_code_and_the_largest_op_leave() -> None:
    code, work = 1000, 50_000_000
    budget = budget_of(MACHINE, PipelineRequest(8, 4), Needs(4 * code, work))
    room = TILES * (available_bytes(MACHINE) - code)
    assert budget.memory_bytes == room - work
    assert budget.updating * room == pytest.approx(budget.memory_bytes)
