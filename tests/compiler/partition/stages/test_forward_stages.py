"""Stages of forward ops that state of micro-batches ties together."""

import numpy as np
import pytest

import hloipu
from hloipu_compiler.ir.graph import Computation
from hloipu_compiler.partition.stages.forward_stages import forward_stages
from hloipu_compiler.partition.training.phases import phases_of
from hloipu_compiler.partition.training.step_phases import FORWARD, Pair, Phases, Roles
from hloipu_runtime.errors import HloipuError
from tests.support.pipeline_trials import Cut, assert_equal_to_jax, compiled

STEP = """HloModule m, input_output_alias={
  {0}: (0, {}, may-alias), {1}: (1, {}, may-alias), {2}: (2, {}, may-alias) }
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }
ENTRY e {
  w = f32[2,2] parameter(0)
  count = s32[] parameter(1)
  average = f32[] parameter(2)
  x = f32[4,2] parameter(3)
  zero = f32[] constant(0)
  one = s32[] constant(1)
  twice = s32[] add(count, count)
  scale = f32[] convert(twice)
  half = f32[] multiply(average, average)
  y = f32[4,2] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  squares = f32[4,2] multiply(y, y)
  scales = f32[4,2] broadcast(scale), dimensions={}
  scaled = f32[4,2] multiply(squares, scales)
  loss = f32[] reduce(scaled, zero), dimensions={0,1}, to_apply=add
  thrice = s32[] add(twice, one)
  new.average = f32[] add(half, loss)
  slope = f32[4,2] multiply(y, scales)
  g = f32[2,2] dot(x, slope), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  new = f32[2,2] subtract(w, g)
  ROOT t = (f32[2,2], s32[], f32[], f32[]) tuple(new, thrice, new.average, loss)
}
"""


def placed(wanted: dict[str, int]) -> tuple[Computation, Phases, dict[str, int]]:
    """Return the stages of forward ops by name, where some are wanted at 1 and later ones at 2."""
    entry = hloipu.verify(STEP).entry
    phases = phases_of(entry, Roles((Pair(0, 0), Pair(1, 1), Pair(2, 2)), (3,)))
    at = {entry.position[name]: stage for name, stage in wanted.items()}
    found = forward_stages(entry, phases, at)
    return entry, phases, {x.name: found[n] for n, x in enumerate(entry.instructions)}


def test_what_makes_state_anew_is_where_it_is_read() -> None:
    """The cut goes through the ops that a count is made of: they come down to the first."""
    _, phases, stage = placed(
        {"twice": 0, "scale": 1, "y": 1, "squares": 1, "scales": 2, "scaled": 2, "loss": 2}
    )
    assert [pair.parameter for pair in phases.per_micro_batch] == [1, 2]
    assert (stage["twice"], stage["thrice"]) == (0, 0)
    assert stage["scale"] == 1


def test_ops_beside_the_loss_come_up_to_what_state_is_made_of() -> None:
    _, _, stage = placed({"twice": 0, "y": 1, "scaled": 2, "loss": 2})
    assert (stage["half"], stage["new.average"]) == (2, 2)


def test_forward_ops_alone_have_stages() -> None:
    entry, phases, stage = placed({"loss": 1})
    for position, x in enumerate(entry.instructions):
        assert (stage[x.name] >= 0) == (phases.phase[position] == FORWARD)


@pytest.mark.parametrize(("stages", "recompute"), [(2, "none"), (3, "cheap"), (4, "full")])
@pytest.mark.thinned(2)
def test_a_key_is_split_in_one_stage_and_drawn_from_in_others(stages: int, recompute: str) -> None:
    """However the cut goes through the ops that split it, and in pieces where it lies in such."""
    cut = Cut("dropout_momentum", stages, "grouped", 3, recompute=recompute)
    assert_equal_to_jax(cut, compiled(cut))


def test_state_that_the_first_stage_reads_and_the_last_makes_is_refused() -> None:
    assert_equal_to_jax(cut := Cut("recurrent_momentum", 1, "grouped", 3), compiled(cut))
    with pytest.raises(HloipuError, match=r"F0 reads 'state_2___carry__.1'") as caught:
        compiled(Cut("recurrent_momentum", 2, "grouped", 3))
    assert caught.value.code == "E0508"
    assert caught.value.hint


MARKED = """HloModule m, input_output_alias={
  {0}: (0, {}, may-alias), {1}: (1, {}, may-alias), {2}: (2, {}, may-alias) }
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }
ENTRY e {
  w = f32[2,2] parameter(0)
  v = f32[2,2] parameter(1)
  count = s32[] parameter(2)
  x = f32[4,2] parameter(3)
  zero = f32[] constant(0)
  one = s32[] constant(1)
  first = f32[] convert(count), frontend_attributes={ipu_stage="0"}
  firsts = f32[4,2] broadcast(first), dimensions={}
  xw = f32[4,2] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, frontend_attributes={ipu_stage="0"}
  y = f32[4,2] multiply(xw, firsts), frontend_attributes={ipu_stage="0"}
  square = s32[] multiply(count, count), frontend_attributes={ipu_stage="1"}
  second = f32[] convert(square), frontend_attributes={ipu_stage="1"}
  seconds = f32[4,2] broadcast(second), dimensions={}
  yv = f32[4,2] dot(y, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}, frontend_attributes={ipu_stage="1"}
  z = f32[4,2] multiply(yv, seconds), frontend_attributes={ipu_stage="1"}
  loss = f32[] reduce(z, zero), dimensions={0,1}, to_apply=add
  twice = s32[] add(count, count)
  new.count = s32[] add(twice, one)
  g.v = f32[2,2] dot(y, seconds), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  slope = f32[4,2] dot(seconds, v), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  slopes = f32[4,2] multiply(slope, firsts)
  g.w = f32[2,2] dot(x, slopes), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  new.w = f32[2,2] subtract(w, g.w)
  new.v = f32[2,2] subtract(v, g.v)
  ROOT t = (f32[2,2], f32[2,2], s32[], f32[]) tuple(new.w, new.v, new.count, loss)
}
"""  # noqa: E501


def test_state_that_several_annotated_stages_read_is_sent_by_the_first() -> None:
    program = hloipu.compile(
        MARKED, target="tiny", cache=False, micro_batches=2, feed={"data": (3,)}, reduction="sum"
    )
    w, v = np.eye(2, dtype=np.float32) + 1, np.array([[2, 0], [1, 1]], np.float32)
    x, ones = np.arange(8, dtype=np.float32).reshape(4, 2), np.ones((4, 2), np.float32)
    with program.session(state=[w, v, np.int32(1)], infeeds={"data": iter([(x,), (x,)])}) as run:
        run.run(1)
        new_w, new_v, count = run.state().values()
    # The loss is the sum of x w v times the count and its square; counts are 1 and 3.
    np.testing.assert_array_equal(new_w, w - (1 + 27) * x.T @ (ones @ v.T))
    np.testing.assert_array_equal(new_v, v - (1 + 27) * (x @ w).T @ ones)
    assert count == 7


def test_state_is_read_before_it_is_made_anew() -> None:
    program = hloipu.compile(
        STEP, target="tiny", cache=False, micro_batches=2, stages=1, feed={"data": (3,)},
        reduction="sum",
    )  # fmt: skip
    w, x = np.eye(2, dtype=np.float32), np.ones((4, 2), np.float32)
    state = [w, np.int32(1), np.float32(0)]
    with program.session(state=state, infeeds={"data": iter([(x,), (x,)])}) as session:
        session.run(1)
        new, count, average = session.state().values()
    # loss is 2 * count * 8; counts are 1 and 3
    assert count == 2 * (2 * 1 + 1) + 1
    assert average == (2 * 1 * 8) ** 2 + 2 * 3 * 8
    np.testing.assert_array_equal(new, w - (2 * 1 + 2 * 3) * x.T @ x)
