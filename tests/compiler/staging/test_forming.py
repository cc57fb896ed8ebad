"""Formed entries compute what the step computed, whatever the cuts."""

import jax
import numpy as np
import pytest

import hloipu
from hloipu_compiler.evaluate.participants import evaluate_everywhere
from hloipu_compiler.hlo.printer import print_module
from hloipu_compiler.passes.runner import run_passes
from hloipu_compiler.plan.plan import Plan
from hloipu_compiler.staging.assignment import whole_stages
from hloipu_compiler.staging.forming import formed
from hloipu_compiler.staging.phases import FORWARD, Pair, Roles, phases_of
from tests.support.training_steps import STEPS, Step


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_formed_steps_compute_the_same(step: Step, stages: int) -> None:
    module, _ = run_passes(hloipu.verify(step.text), Plan(), "front")
    count = step.state_count
    phases = phases_of(
        module.entry, Roles(tuple(Pair(n, n) for n in range(count)), (count, count + 1))
    )
    ahead = [n for n, phase in enumerate(phases.phase) if phase == FORWARD]
    cut = {position: place * stages // len(ahead) for place, position in enumerate(ahead)}
    placed = whole_stages(module.entry, phases, cut, stages)
    made = formed(module, phases, placed, stages)
    opcodes = {x.opcode for x in made.module.entry.instructions}
    assert opcodes <= {"parameter", "call", "get-tuple-element", "tuple"}
    again = hloipu.verify(print_module(made.module))
    arguments = [np.asarray(x) for x in jax.tree.leaves((step.state(), *step.batch(0)))]
    before = evaluate_everywhere(module, *arguments)
    after = evaluate_everywhere(again, *arguments)
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)
