"""The phases of training steps: gradients found, and nothing taken for what it is not."""

from collections import Counter
from collections.abc import Sequence

import jax
import numpy as np
import pytest

import hloipu
from hloipu_compiler.partition.training.errors import StagingError
from hloipu_compiler.partition.training.phases import phases_of
from hloipu_compiler.partition.training.step_phases import (
    BACKWARD,
    FORWARD,
    FREE,
    UPDATE,
    Pair,
    Phases,
    Roles,
)
from hloipu_compiler.passes.runner import run_passes
from hloipu_compiler.plan.plan import Plan
from tests.support.pipeline_reference import EVERY_STEP, SCALED
from tests.support.training_steps import OTHERS, Step


def phases(text: str, state: int, data: tuple[int, ...]) -> Phases:
    module, _ = run_passes(hloipu.verify(text), Plan(), "front")
    return phases_of(module.entry, Roles(tuple(Pair(n, n) for n in range(state)), data))


def extents(dimensions: Sequence[int]) -> list[int]:
    """Sizes of an array that may lie transposed, or with a row of its own."""
    return sorted(n for n in dimensions if n != 1)


CASES = [
    (step, number % 3 == 0)
    for number, step in enumerate(EVERY_STEP.values())
    if not step.model.is_said and step.optimizer_name not in OTHERS
]


@pytest.mark.parametrize(
    ("step", "named"), CASES, ids=[f"{step.name}-{named}" for step, named in CASES]
)
@pytest.mark.thinned(6)
def test_every_weight_has_a_gradient_of_its_shape(step: Step, named: bool) -> None:
    text = step.named_text if named else step.text
    module, _ = run_passes(hloipu.verify(text), Plan(), "front")
    count = step.state_count
    roles = Roles(tuple(Pair(n, n) for n in range(count)), (count, count + 1))
    found = phases_of(module.entry, roles)
    weights, others, statistics = step.state()
    shapes = [np.shape(x) for x in jax.tree.leaves(weights)]
    assert sorted(n for g in found.gradients for n in g.parameters) == list(range(len(shapes)))
    for gradient in found.gradients:
        shape = module.entry.instructions[gradient.position].shape
        assert extents(shape.dimensions) == extents(shapes[gradient.parameters[0]])  # type: ignore[union-attr]
    first = len(shapes) + len(jax.tree.leaves(others))
    carried = found.kept or found.per_micro_batch
    assert [pair.parameter for pair in carried] == list(
        range(first, first + len(jax.tree.leaves(statistics)))
    )
    assert found.loss == count
    assert found.early == (count,)


@pytest.mark.parametrize(
    ("name", "forward", "backward", "update", "free"),
    [
        ("square_mlp_momentum", 15, 23, 28, 26),
        ("residual_adamw_clipped", 53, 76, 200, 104),
        ("cnn_momentum", 81, 83, 29, 68),
        ("lstm_sgd", 22, 17, 10, 22),
        ("scanned_mlp_adamw_clipped", 12, 13, 106, 110),
    ],
)
def test_so_many_ops_are_in_each_phase(
    name: str, forward: int, backward: int, update: int, free: int
) -> None:
    """A change of these numbers is to be looked at: each op has to be in the phase it is for."""
    step = EVERY_STEP[name]
    module, _ = run_passes(hloipu.verify(step.text), Plan(), "front")
    count = step.state_count
    roles = Roles(tuple(Pair(n, n) for n in range(count)), (count, count + 1))
    found = phases_of(module.entry, roles)
    sizes = Counter(found.phase)
    assert [sizes[x] for x in (FORWARD, BACKWARD, UPDATE, FREE)] == [
        forward, backward, update, free,
    ]  # fmt: skip
    for x, phase in zip(module.entry.instructions, found.phase, strict=True):
        if x.opcode == "get-tuple-element":  # no tuple passes from one phase to another
            assert phase in ("", found.phase[x.operands[0]])


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


def test_a_scale_of_the_loss_is_updated_and_no_optimizer_state() -> None:
    """The update makes it anew of all gradients; the walk does not go on past it to data."""
    count = SCALED.state_count
    found = phases(SCALED.text, count, (count, count + 1))
    scale = count - 2
    assert scale in {pair.parameter for pair in found.updated}
    assert all(scale not in gradient.parameters for gradient in found.gradients)


TWO_LOSSES = """ENTRY e {
  v = f32[3,2] parameter(0)
  w = f32[3,2] parameter(1)
  x = f32[4,3] parameter(2)
  zero = f32[] constant(0)
  y = f32[4,2] dot(x, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  first = f32[] reduce(y, zero), dimensions={0,1}, to_apply=add
  z = f32[4,2] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  squares = f32[4,2] multiply(z, z)
  second = f32[] reduce(squares, zero), dimensions={0,1}, to_apply=add
  both = f32[] add(first, second)
  one = f32[] constant(1)
  ones = f32[4,2] broadcast(one), dimensions={}
  h = f32[3,2] dot(x, ones), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  g = f32[3,2] dot(x, z), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  new.v = f32[3,2] subtract(v, h)
  new.w = f32[3,2] subtract(w, g)
  ROOT t = (f32[3,2], f32[3,2], f32[]RESULTS)
}"""


def two_losses(*names: str) -> str:
    shapes = ", f32[]" * (len(names) - 1)
    text = TWO_LOSSES.replace("RESULTS", f"{shapes}) tuple(new.v, new.w, {', '.join(names)}")
    return HEAD + text


def test_of_several_losses_that_of_all_weights_is_taken() -> None:
    found = phases(two_losses("first", "both"), 2, (2,))
    assert found.loss == 3
    assert [gradient.parameters for gradient in found.gradients] == [(0,), (1,)]


def test_a_weight_beside_the_loss_is_in_doubt() -> None:
    with pytest.raises(StagingError, match=r"result 2, has no gradient .* parameter 1") as caught:
        phases(two_losses("first"), 2, (2,))
    assert caught.value.code == "E0504"


def test_an_update_may_not_read_what_each_micro_batch_counts() -> None:
    text = (
        HEAD
        + """ENTRY e {
  w = f32[3,2] parameter(0)
  seen = f32[] parameter(1)
  x = f32[4,3] parameter(2)
  zero = f32[] constant(0)
  y = f32[4,2] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  squares = f32[4,2] multiply(y, y)
  loss = f32[] reduce(squares, zero), dimensions={0,1}, to_apply=add
  g = f32[3,2] dot(x, y), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  more = f32[] reduce(x, zero), dimensions={0,1}, to_apply=add
  new.seen = f32[] add(seen, more)
  rate = f32[] exponential(seen)
  rates = f32[3,2] broadcast(rate), dimensions={}
  change = f32[3,2] multiply(g, rates)
  new = f32[3,2] subtract(w, change)
  ROOT t = (f32[3,2], f32[], f32[]) tuple(new, new.seen, loss)
}"""
    )
    with pytest.raises(StagingError, match="the update reads 'seen'") as caught:
        phases(text, 2, (2,))
    assert caught.value.code == "E0505"


def test_an_update_within_a_loop_is_no_gradient() -> None:
    """A mean over micro-batches of new weights would be no update by the mean of gradients."""
    text = (
        HEAD
        + """below { s = (s32[], f32[3,2]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT }
body { s = (s32[], f32[3,2]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  w = f32[3,2] get-tuple-element(s), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  less = f32[3,2] tanh(w)
  ROOT t = (s32[], f32[3,2]) tuple(next, less) }
ENTRY e {
  w = f32[3,2] parameter(0)
  x = f32[4,3] parameter(1)
  zero = f32[] constant(0)
  y = f32[4,2] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  loss = f32[] reduce(y, zero), dimensions={0,1}, to_apply=add
  g = f32[3,2] dot(x, y), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  new = f32[3,2] subtract(w, g)
  nought = s32[] constant(0)
  start = (s32[], f32[3,2]) tuple(nought, new)
  done = (s32[], f32[3,2]) while(start), condition=below, body=body
  w.1 = f32[3,2] get-tuple-element(done), index=1
  ROOT t = (f32[3,2], f32[]) tuple(w.1, loss)
}"""
    )
    with pytest.raises(StagingError, match=r"parameter 0 comes out of 'done' \(while\)") as caught:
        phases(text, 1, (1,))
    assert caught.value.code == "E0504"
