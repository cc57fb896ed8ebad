"""The phases of training steps: gradients found, and nothing taken for what it is not."""

import jax
import numpy as np
import pytest

import hloipu
from hloipu_compiler.passes.runner import run_passes
from hloipu_compiler.plan.plan import Plan
from hloipu_compiler.staging.errors import StagingError
from hloipu_compiler.staging.phases import Pair, Phases, Roles, phases_of
from tests.support.training_steps import STEPS, Step


def phases(text: str, state: int, data: tuple[int, ...]) -> Phases:
    module, _ = run_passes(hloipu.verify(text), Plan(), "front")
    return phases_of(module.entry, Roles(tuple(Pair(n, n) for n in range(state)), data))


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_every_weight_has_a_gradient_of_its_shape(step: Step) -> None:
    module, _ = run_passes(hloipu.verify(step.text), Plan(), "front")
    count = step.state_count
    roles = Roles(tuple(Pair(n, n) for n in range(count)), (count, count + 1))
    found = phases_of(module.entry, roles)
    weights, others, statistics = step.state()
    shapes = [np.shape(x) for x in jax.tree.leaves(weights)]
    assert sorted(n for g in found.gradients for n in g.parameters) == list(range(len(shapes)))
    for gradient in found.gradients:
        shape = module.entry.instructions[gradient.position].shape
        assert shape.dimensions == shapes[gradient.parameters[0]]  # type: ignore[union-attr]
    first = len(shapes) + len(jax.tree.leaves(others))
    carried = [pair.parameter for pair in found.per_micro_batch]
    assert carried == list(range(first, first + len(jax.tree.leaves(statistics))))
    assert found.loss == count
    assert found.early == (count,)


HEAD = """HloModule m
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }
"""


def test_what_varies_may_not_be_read_by_the_update() -> None:
    text = (
        HEAD
        + """ENTRY e {
  w = f32[3,2] parameter(0)
  x = f32[4,3] parameter(1)
  scale = f32[] parameter(2)
  zero = f32[] constant(0)
  y = f32[4,2] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  loss = f32[] reduce(y, zero), dimensions={0,1}, to_apply=add
  ones = f32[4,2] broadcast(scale), dimensions={}
  g = f32[3,2] dot(x, ones), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  back = f32[3,2] broadcast(scale), dimensions={}
  plain = f32[3,2] divide(g, back)
  new = f32[3,2] subtract(w, plain)
  ROOT t = (f32[3,2], f32[]) tuple(new, loss)
}"""
    )
    with pytest.raises(StagingError, match=r"'scale'.*micro-batch to micro-batch") as caught:
        phases(text, 1, (1, 2))
    assert caught.value.code == "E0502"
    assert phases(text, 1, (1,)).gradients[0].parameters == (0,)


def test_a_step_without_a_loss_is_refused() -> None:
    text = (
        HEAD
        + """ENTRY e {
  w = f32[3,2] parameter(0)
  x = f32[4,3] parameter(1)
  y = f32[4,2] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  g = f32[3,2] dot(x, y), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  new = f32[3,2] subtract(w, g)
  ROOT t = (f32[3,2]) tuple(new)
}"""
    )
    with pytest.raises(StagingError, match="no result is a loss") as caught:
        phases(text, 1, (1,))
    assert caught.value.code == "E0501"


def test_gradients_of_an_updated_model_are_refused() -> None:
    text = (
        HEAD
        + """ENTRY e {
  w = f32[3,2] parameter(0)
  m = f32[3,2] parameter(1)
  x = f32[4,3] parameter(2)
  zero = f32[] constant(0)
  y = f32[4,2] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  loss = f32[] reduce(y, zero), dimensions={0,1}, to_apply=add
  g = f32[3,2] dot(x, y), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  ahead = f32[3,2] subtract(w, g)
  again = f32[4,2] dot(x, ahead), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  second = f32[3,2] dot(x, again), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  moment = f32[3,2] add(m, ahead)
  new = f32[3,2] subtract(w, second)
  ROOT t = (f32[3,2], f32[3,2], f32[]) tuple(new, moment, loss)
}"""
    )
    with pytest.raises(StagingError, match="'ahead' is part of the update") as caught:
        phases(text, 2, (2,))
    assert caught.value.code == "E0503"
