"""Sums of metrics that a step keeps beside its weights, as Keras does: of every micro-batch."""

import numpy as np
import pytest

import hloipu

METRICS = """HloModule metrics, input_output_alias={
  {2}: (0, {}, may-alias), {3}: (1, {}, may-alias), {4}: (2, {}, may-alias) }
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }
ENTRY e {
  w = f32[4,2] parameter(0)
  loss.total = f32[] parameter(1)
  error.total = f32[] parameter(2)
  x = f32[3,4] parameter(3)
  y = f32[3,2] parameter(4)
  zero = f32[] constant(0)
  two = f32[] constant(2)
  rate = f32[] constant(0.125)
  guess = f32[3,2] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  residual = f32[3,2] subtract(guess, y)
  square = f32[3,2] multiply(residual, residual)
  loss = f32[] reduce(square, zero), dimensions={0,1}, to_apply=add
  new.loss.total = f32[] add(loss.total, loss)
  again = f32[3,2] subtract(y, guess)
  size = f32[3,2] abs(again)
  error = f32[] reduce(size, zero), dimensions={0,1}, to_apply=add
  new.error.total = f32[] add(error.total, error)
  twos = f32[3,2] broadcast(two), dimensions={}
  slope = f32[3,2] multiply(residual, twos)
  gradient = f32[4,2] dot(x, slope), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  rates = f32[4,2] broadcast(rate), dimensions={}
  change = f32[4,2] multiply(gradient, rates)
  new.w = f32[4,2] subtract(w, change)
  ROOT t = (f32[], f32[], f32[4,2], f32[], f32[]) tuple(
    new.loss.total, new.error.total, new.w, new.loss.total, new.error.total)
}
"""


@pytest.mark.parametrize("stages", [1, 2])
def test_every_micro_batch_is_added_and_weights_are_updated_once(stages: int) -> None:
    program = hloipu.compile(
        METRICS, target="tiny", cache=False, stages=stages, micro_batches=2, reduction="sum",
        feed={"data": (3, 4)},
    )  # fmt: skip
    rng = np.random.default_rng(0)
    w = rng.integers(-2, 3, (4, 2)).astype(np.float32)
    fed = [
        (rng.integers(-2, 3, (3, 4)).astype(np.float32), rng.integers(-2, 3, (3, 2)).astype("f"))
        for _ in range(2)
    ]
    state = [w, np.float32(0), np.float32(0)]
    with program.session(state=state, infeeds={"data": iter(fed)}) as session:
        session.run(1)
        found = list(session.state().values())
    residuals = [x @ w - y for x, y in fed]
    slopes = [2 * x.T @ r for (x, _), r in zip(fed, residuals, strict=True)]
    np.testing.assert_array_equal(found[0], w - sum(slopes) / 8)
    assert found[1] == sum((r * r).sum() for r in residuals)
    assert found[2] == sum(abs(r).sum() for r in residuals)
