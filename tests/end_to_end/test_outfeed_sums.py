"""Outfeeds that the device adds up, in steps cut into micro-batches and run on replicas."""

from typing import Any, Literal

import jax
import numpy as np
import pytest

import hloipu
from hloipu_runtime.errors import UsageError
from tests.support.pipeline_reference import expected
from tests.support.training_steps import STEPS

STEP_NAME = "residual_sgd"
STEP = STEPS[STEP_NAME]
FIRST = STEP.state_count
STEPS_PER_RUN = 2
MICRO_BATCHES = 3


def losses(kept: str, mode: Literal["functional", "exact"], **options: Any) -> list[Any]:
    """Return what the outfeed of the loss gives in one run; `kept`: its mode, with a colon."""
    replicas = options.get("replicas", 1)
    program = hloipu.compile(
        STEP.text, target="tiny", over_memory="allow", cache=False, loop=STEPS_PER_RUN,
        micro_batches=MICRO_BATCHES, feed={"data": (FIRST, FIRST + 1)},
        outfeed=[f"loss{kept}={FIRST}"], **options,
    )  # fmt: skip
    state = [np.asarray(x) for x in jax.tree.leaves(STEP.state())]
    batches = [STEP.batch(n) for n in range(STEPS_PER_RUN * MICRO_BATCHES * replicas)]
    with program.session(state=state, infeeds={"data": iter(batches)}, mode=mode) as session:
        session.run(STEPS_PER_RUN)
        return [np.asarray(x.element) for x in session.stream("loss").drain()]


@pytest.mark.parametrize("kind", ["sum", "mean"])
@pytest.mark.parametrize("mode", ["functional", "exact"])
@pytest.mark.parametrize("options", [{}, {"stages": 2}, {"replicas": 2}], ids=str)
@pytest.mark.thinned(3)
def test_a_run_gives_what_the_losses_of_jax_come_to(
    kind: str, mode: Literal["functional", "exact"], options: dict[str, Any]
) -> None:
    replicas = options.get("replicas", 1)
    each = expected(STEP_NAME, MICRO_BATCHES, replicas, "mean", None).losses
    each = each.astype(np.float64).reshape(STEPS_PER_RUN * MICRO_BATCHES, replicas)
    (found,) = losses(f":{kind}", mode, **options)
    wanted = each.sum(axis=0) if kind == "sum" else each.mean(axis=0)
    np.testing.assert_allclose(found, wanted if replicas > 1 else wanted[0], rtol=2e-5)


AFTER_THE_UPDATE = """HloModule counter, input_output_alias={
  {0}: (0, {}, may-alias), {1}: (1, {}, may-alias) }
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }
ENTRY e {
  w = f32[4] parameter(0)
  count = s32[] parameter(1)
  x = f32[4] parameter(2)
  zero = f32[] constant(0)
  one = s32[] constant(1)
  product = f32[4] multiply(w, x)
  loss = f32[] reduce(product, zero), dimensions={0}, to_apply=add
  new = f32[4] subtract(w, x)
  next = s32[] add(count, one)
  size = f32[] reduce(new, zero), dimensions={0}, to_apply=add
  ROOT t = (f32[4], s32[], f32[], f32[]) tuple(new, next, loss, size)
}
"""


def test_what_an_update_makes_is_added_once_in_each_step() -> None:
    program = hloipu.compile(
        AFTER_THE_UPDATE, target="tiny", cache=False, loop=3, micro_batches=2,
        feed={"data": (2,)}, outfeed=["size:sum=3", "half:mean=3", "loss=2"],
    )  # fmt: skip
    fed = [(np.ones(4, np.float32),)] * 6
    with program.session(
        state=[np.zeros(4, np.float32), np.int32(0)], infeeds={"data": iter(fed)}
    ) as session:
        session.run(3)
        (size,) = (x.element for x in session.stream("size").drain())
        (half,) = (x.element for x in session.stream("half").drain())
    assert (size, half) == (-4 - 8 - 12, (-4 - 8 - 12) / 3)


EACH_TYPE = """HloModule echo

ENTRY e {{
  x = {0}[2] parameter(0)
  ROOT y = {0}[2] copy(x)
}}
"""


@pytest.mark.parametrize("turns", [3, 9, 10, 16, 50, 99])
@pytest.mark.parametrize("element_type", ["f32", "f16", "s32", "c64"])
@pytest.mark.parametrize("mode", ["functional", "exact"])
def test_a_mean_is_over_any_number_of_turns(
    turns: int, element_type: str, mode: Literal["functional", "exact"]
) -> None:
    text = EACH_TYPE.format(element_type)
    program = hloipu.compile(
        text, target="tiny", cache=False, loop=turns, feed={"x": (0,)}, outfeed=["mean:mean=0"]
    )
    dtype = {"f32": np.float32, "f16": np.float16, "s32": np.int32, "c64": np.complex64}
    fed = np.arange(2 * turns).reshape(turns, 2).astype(dtype[element_type])
    with program.session(infeeds={"x": (fed,)}, mode=mode) as session:
        session.run(turns)
        (mean,) = (each.element for each in session.stream("mean").drain())
    wide = fed.astype(np.complex128 if element_type == "c64" else np.float64)
    np.testing.assert_allclose(
        mean, wide.mean(axis=0), rtol=1e-3 if element_type == "f16" else 1e-6
    )


@pytest.mark.parametrize("outfeed", ["both=2,3", "rest"])
def test_what_comes_at_different_rates_goes_to_different_queues(outfeed: str) -> None:
    """Losses of two micro-batches beside one size of an update would come out in wrong pairs."""

    def compiled(*outfeeds: str) -> None:
        hloipu.compile(
            AFTER_THE_UPDATE, target="tiny", cache=False, loop=3, micro_batches=2,
            feed={"data": (2,)}, outfeed=outfeeds,
        )  # fmt: skip

    with pytest.raises(UsageError) as refusal:
        compiled(outfeed)
    assert refusal.value.code == "E3151"
    assert "--outfeed NAME=3" in (refusal.value.hint or "")
    compiled("losses=2", "sizes=3")
    compiled("both:mean=2,3")
