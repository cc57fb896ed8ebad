"""Copies at the ends of slots: what they cost together, from what each position's cost."""

from itertools import combinations

import pytest

from hloipu_runtime.costs.exchanging import SlotCopies, exchange_cost
from hloipu_runtime.costs.forms import Forms
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.program.channels import pushed
from hloipu_runtime.program.steps import Pipeline
from tests.support.pipelined_programs import PipelineMaker

MACHINE = load_machine("tiny")


@pytest.mark.parametrize("ipus", [(), (0, 0, 1), (0, 1, 0)])
def test_positions_together_cost_what_one_exchange_of_all_their_copies_does(
    ipus: tuple[int, ...],
) -> None:
    program = PipelineMaker(3, 1, 7, ipus=ipus).program()
    (step,) = (x for x in program.body.steps if isinstance(x, Pipeline))
    forms = Forms(program, MACHINE)
    copies = SlotCopies(program, step, MACHINE, forms)
    for count in range(len(step.stages) + 1):
        for positions in combinations(range(len(step.stages)), count):
            made = pushed(program, [c for c in step.channels if c.producer in positions])
            assert copies.cost(positions) == exchange_cost(program, made, MACHINE, forms)
