"""Accumulators of single weights in types of their own."""

from typing import Any

import numpy as np
import pytest

import hloipu
from hloipu_runtime.errors import HloipuError

TWO_WEIGHTS = """HloModule two, input_output_alias={
  {0}: (0, {}, may-alias), {1}: (1, {}, may-alias) }
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }
ENTRY e {
  v = f32[2] parameter(0)
  w = f32[2] parameter(1)
  x = f32[2] parameter(2)
  zero = f32[] constant(0)
  two = f32[] constant(2)
  twos = f32[2] broadcast(two), dimensions={}
  left = f32[2] multiply(v, x)
  twice = f32[2] multiply(x, twos)
  right = f32[2] multiply(w, twice)
  both = f32[2] add(left, right)
  loss = f32[] reduce(both, zero), dimensions={0}, to_apply=add
  new.v = f32[2] subtract(v, x)
  new.w = f32[2] subtract(w, twice)
  ROOT t = (f32[2], f32[2], f32[]) tuple(new.v, new.w, loss)
}
"""
FED = [(np.array([2048.0, 1.0], np.float32),), (np.array([1.0, 1.0], np.float32),)]
"""2048 + 1 is 2048 in f16, whose next number is 2050."""


def trained(**options: Any) -> list[np.ndarray]:
    program = hloipu.compile(
        TWO_WEIGHTS, target="tiny", cache=False, micro_batches=2, reduction="sum",
        feed={"data": (2,)}, **options,
    )  # fmt: skip
    state = [np.zeros(2, np.float32)] * 2
    with program.session(state=state, infeeds={"data": iter(FED)}) as session:
        session.run(1)
        return list(session.state().values())


@pytest.mark.parametrize(
    ("options", "v", "w"),
    [
        ({}, 2049, 4098),
        ({"accumulator": {"0": "f16"}}, 2048, 4098),
        ({"accumulator": {"w": "f16"}}, 2049, 4096),
        ({"accumulator_dtype": "f16", "accumulator": {"w": "f32"}}, 2048, 4098),
    ],
    ids=str,
)
def test_a_weight_may_have_an_accumulator_of_its_own_type(
    options: dict[str, object], v: int, w: int
) -> None:
    found = trained(**options)
    assert [list(-x) for x in found] == [[v, 2], [w, 4]]


def test_the_loss_is_of_each_micro_batch_though_data_are_the_gradients() -> None:
    program = hloipu.compile(
        TWO_WEIGHTS, target="tiny", cache=False, micro_batches=2, feed={"data": (2,)},
        outfeed=["loss=2"],
    )  # fmt: skip
    state = [np.ones(2, np.float32)] * 2
    with program.session(state=state, infeeds={"data": iter(FED)}) as session:
        session.run(1)
        assert [x.element for x in session.stream("loss").drain()] == [3 * 2049, 3 * 2]


@pytest.mark.parametrize(("name", "code"), [("2", "E0514"), ("7", "E3151"), ("nothing", "E3151")])
def test_only_weights_have_accumulators(name: str, code: str) -> None:
    with pytest.raises(HloipuError) as error:
        trained(accumulator={name: "f16"})
    assert error.value.code == code
