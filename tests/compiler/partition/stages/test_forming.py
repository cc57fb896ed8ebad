"""Formed entries compute what the step computed, whatever the cuts."""

import jax
import numpy as np
import pytest

import hloipu
from hloipu_compiler.hlo.printing.printer import print_module
from hloipu_compiler.interpret.participants import evaluate_everywhere
from hloipu_compiler.partition.stages.assignment import whole_stages
from hloipu_compiler.partition.stages.forming import formed
from hloipu_compiler.partition.training.phases import phases_of
from hloipu_compiler.partition.training.step_phases import FORWARD, Pair, Roles
from hloipu_compiler.passes.runner import run_passes
from hloipu_compiler.plan.plan import Plan
from tests.support.training_steps import STEPS, Step


@pytest.mark.thinned(12)
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
    placed = whole_stages(module.entry, phases, cut, stages).places
    made = formed(module, phases, placed, stages)
    opcodes = {x.opcode for x in made.module.entry.instructions}
    assert opcodes <= {"parameter", "call", "get-tuple-element", "tuple"}
    again = hloipu.verify(print_module(made.module))
    arguments = [np.asarray(x) for x in jax.tree.leaves((step.state(), *step.batch(0)))]
    before = evaluate_everywhere(module, *arguments)
    after = evaluate_everywhere(again, *arguments)
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)


SORTED_WEIGHTS = """HloModule sorted, input_output_alias={ {0}: (0, {}, may-alias) }
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }
less {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  i = s32[] parameter(2)
  j = s32[] parameter(3)
  ROOT r = pred[] compare(a, b), direction=LT
}
ENTRY e {
  w = f32[4] parameter(0)
  x = f32[4] parameter(1)
  zero = f32[] constant(0)
  order = s32[4] iota(), iota_dimension=0
  both = (f32[4], s32[4]) sort(w, order), dimensions={0}, to_apply=less
  values = f32[4] get-tuple-element(both), index=0
  places = s32[4] get-tuple-element(both), index=1
  product = f32[4] multiply(values, x)
  loss = f32[] reduce(product, zero), dimensions={0}, to_apply=add
  g = f32[4] negate(x)
  ranks = f32[4] convert(places)
  scaled = f32[4] multiply(g, ranks)
  new = f32[4] subtract(w, scaled)
  ROOT t = (f32[4], f32[]) tuple(new, loss)
}
"""


def test_elements_of_what_does_not_vary_are_made_with_it() -> None:
    program = hloipu.compile(
        SORTED_WEIGHTS, target="tiny", cache=False, micro_batches=2, reduction="sum",
        feed={"data": (1,)},
    )  # fmt: skip
    begin = np.array([4, 3, 2, 1], np.float32)
    fed = [(np.ones(4, np.float32),)] * 2
    with program.session(state=[begin], infeeds={"data": iter(fed)}) as session:
        session.run(1)
        (found,) = session.state().values()
    np.testing.assert_array_equal(found, begin + 2 * np.array([3, 2, 1, 0], np.float32))
