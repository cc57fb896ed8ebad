"""Training steps cut into micro-batches and stages: the same state as gradients taken apart.

A covering sample; `make pipeline-conformance` runs more of all configurations.
"""

from typing import Any

import numpy as np
import pytest

import hloipu
from hloipu_runtime.program.steps import ComputeSet, Exchange, Pipeline
from hloipu_runtime.program.uses import steps_within, written_by
from tests.support.pipeline_reference import SCALED, SUBTLE_STEPS, TYPES, accumulated
from tests.support.pipeline_trials import Cut, assert_equal_to_jax, compiled, sample
from tests.support.training_steps import OTHERS, STEPS, UNUSUAL_STEPS

SAMPLE = sample(60, steps=(*STEPS, *UNUSUAL_STEPS, *SUBTLE_STEPS, SCALED.name))


@pytest.mark.thinned(18)
@pytest.mark.parametrize("cut", SAMPLE, ids=map(str, SAMPLE))
def test_state_is_that_of_gradients_taken_apart(cut: Cut) -> None:
    assert_equal_to_jax(cut, compiled(cut))


@pytest.mark.parametrize("optimizer", OTHERS)
@pytest.mark.thinned(5)
def test_updates_of_other_kinds_are_told_from_gradients(optimizer: str) -> None:
    """Their state is of other shapes than weights, or goes through products."""
    cut = Cut(f"mlp_{optimizer}", 2, "grouped", 3)
    assert_equal_to_jax(cut, compiled(cut))


@pytest.mark.parametrize("cut", SAMPLE[:8], ids=map(str, SAMPLE[:8]))
@pytest.mark.thinned(4)
def test_tiles_by_themselves_come_to_the_same(cut: Cut) -> None:
    assert_equal_to_jax(cut, compiled(cut), mode="exact")


def test_gradients_are_added_up_where_their_totals_lie() -> None:
    """Totals made elsewhere would wait for the end of the stage, and take memory once more."""
    program = compiled(Cut("mlp_sgd", 2, "grouped", 4)).program
    totals = {n for n, x in enumerate(program.variables) if x.origin.startswith("accumulator")}
    (pipeline,) = (x for x in steps_within(program.body, program) if isinstance(x, Pipeline))
    steps = [x for stage in pipeline.stages for x in steps_within(stage.body, program)]
    assert totals
    for kind, written_there in ((Exchange, set[int]()), (ComputeSet, totals)):
        some = [written_by(x) for x in steps if isinstance(x, kind)]
        assert frozenset().union(*some) & totals == written_there


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
def test_a_gradient_may_be_what_a_queue_feeds(reduction: Any, left: float) -> None:
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


TYPED = """HloModule linear, input_output_alias={ {0}: (0, {}, may-alias) }
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }
ENTRY e {
  w = KIND[40] parameter(0)
  x = KIND[40] parameter(1)
  zero = f32[] constant(0)
  product = KIND[40] multiply(w, x)
  wide = f32[40] convert(product)
  loss = f32[] reduce(wide, zero), dimensions={0}, to_apply=add
  new = KIND[40] subtract(w, x)
  ROOT t = (KIND[40], f32[]) tuple(new, loss)
}
"""


KINDS, REDUCTIONS = ("f32", "bf16", "f16"), ("mean", "sum", "running_mean")
SQUARE = [
    (kind, accumulator, REDUCTIONS[(i + j) % 3])
    for i, kind in enumerate(KINDS)
    for j, accumulator in enumerate((*KINDS, None))
]
"""Every two of gradient's type, accumulator's type and reduction."""


@pytest.mark.parametrize(("kind", "accumulator", "reduction"), SQUARE)
def test_sums_are_rounded_as_documented(kind: str, accumulator: Any, reduction: Any) -> None:
    """Scaled in the gradient's type, added up in the accumulator's, converted back: bit by bit."""
    program = hloipu.compile(
        TYPED.replace("KIND", kind), target="tiny", cache=False, micro_batches=5, stages=1,
        reduction=reduction, accumulator_dtype=accumulator, feed={"data": (1,)},
    )  # fmt: skip
    random = np.random.default_rng(len(kind))
    fed = [random.normal(size=40).astype(TYPES[kind]) for _ in range(5)]
    for mode in ("functional", "exact"):
        state = [np.zeros(40, TYPES[kind])]
        infeeds = {"data": iter([(x,) for x in fed])}
        with program.session(state=state, infeeds=infeeds, mode=mode) as session:
            session.run(1)
            (found,) = session.state().values()
        assert (-found).tobytes() == accumulated(fed, reduction, accumulator).tobytes()
