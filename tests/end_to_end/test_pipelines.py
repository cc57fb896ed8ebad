"""Training steps cut into micro-batches and stages: the same state as gradients taken apart.

A covering sample; `make pipeline-conformance` runs more of all configurations.
"""

import numpy as np
import pytest

import hloipu
from tests.support.pipeline_trials import Cut, assert_equal_to_jax, compiled, sample

SAMPLE = sample(60)


@pytest.mark.parametrize("cut", SAMPLE, ids=map(str, SAMPLE))
def test_state_is_that_of_gradients_taken_apart(cut: Cut) -> None:
    assert_equal_to_jax(cut, compiled(cut))


@pytest.mark.parametrize("cut", SAMPLE[:8], ids=map(str, SAMPLE[:8]))
def test_tiles_by_themselves_come_to_the_same(cut: Cut) -> None:
    assert_equal_to_jax(cut, compiled(cut), mode="exact")


LINEAR = """HloModule linear, input_output_alias={ {0}: (0, {}, may-alias) }
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }
ENTRY e {
  w = f32[3,2] parameter(0)
  x = f32[3,2] parameter(1)
  zero = f32[] constant(0)
  half = f32[] constant(0.5)
  product = f32[3,2] multiply(w, x)
  loss = f32[] reduce(product, zero), dimensions={0,1}, to_apply=add
  rate = f32[3,2] broadcast(half), dimensions={}
  slope = f32[3,2] multiply(x, rate)
  new = f32[3,2] subtract(w, slope)
  ROOT t = (f32[3,2], f32[]) tuple(new, loss)
}
"""


@pytest.mark.parametrize(
    ("reduction", "left"), [("mean", 1 - 1.5 / 2), ("sum", 1 - 6 / 2), ("running_mean", 0.25)]
)
def test_a_gradient_may_be_what_a_queue_feeds(reduction: str, left: float) -> None:
    program = hloipu.compile(
        LINEAR, target="tiny", cache=False, micro_batches=4, reduction=reduction,
        feed={"data": (1,)},
    )  # fmt: skip
    ones = np.ones((3, 2), np.float32)
    fed = [(ones * n,) for n in range(4)]
    with program.session(state=[ones], infeeds={"data": iter(fed)}) as session:
        session.run(1)
        (found,) = session.state().values()
    np.testing.assert_array_equal(found, ones * np.float32(left))
