"""Loops over layers cut into stages: which loops, where, and what goes with them."""

import numpy as np
import pytest

from hloipu_compiler.interpret.evaluator import Evaluator
from hloipu_compiler.interpret.random_inputs import random_arguments
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.partition.scans.plain_stacks import layer_loops, with_plain_stacks
from hloipu_compiler.partition.scans.staged_loops import (
    StagedStep,
    peeled_step,
    with_own_broadcasts,
)
from hloipu_compiler.plan.pipelining import PipelineRequest
from hloipu_compiler.plan.roles import required_wrapping
from hloipu_compiler.plan.wrapping import Wrapping, WrappingRequest
from tests.support.pieces import front, staged
from tests.support.training_steps import SCANNED_STEPS, STEPS

MLP = "scanned_mlp_adam"


def flat(name: str) -> tuple[Module, Wrapping]:
    text = {**STEPS, **SCANNED_STEPS}[name].text
    module = front(text)
    return module, required_wrapping(module, WrappingRequest(1), feeds_rest=True)


def in_stages(name: str, stages: int, micro_batches: int = 2) -> StagedStep:
    return staged(*flat(name), PipelineRequest(micro_batches, stages))


def whiles(step: StagedStep) -> dict[str, int]:
    """Return the loops of a step in stages by the rows of the first stack that they read."""
    entry = step.pieces.module.entry
    return {x.name: step.known.get(x.name, -1) for x in entry.instructions if x.opcode == "while"}


def test_two_stages_have_a_loop_of_each_kind() -> None:
    step = in_stages(MLP, 2)
    ahead, back = (line.split(":")[0].split()[-1] for line in step.lines)
    assert [line.split(": ")[1] for line in step.lines] == [
        "trips 0-1 in stage 0, trips 2-3 in stage 1",
        "trips 0-1 in stage 1, trips 2-3 in stage 0",
    ]
    assert whiles(step) == {
        f"{ahead}.trips_0_2": 0, f"{ahead}.trips_2_4": 1,
        f"{back}.trips_0_2": 1, f"{back}.trips_2_4": 0,
    }  # fmt: skip


def test_weights_and_moments_of_a_stage_are_pieces_of_their_own() -> None:
    step = in_stages(MLP, 2)
    rows = {stack.name: stack.sizes for stack in step.pieces.stacks}
    assert len(rows) == 2 * 9  # as parameters and as results
    assert set(rows.values()) == {(2, 2)}
    shapes = [step.pieces.module.entry.instructions[p].shape for p in
              step.pieces.module.entry.parameters]  # fmt: skip
    assert sum("[2,6,9]" in str(shape) for shape in shapes) == 6


def test_what_waits_for_the_backward_pass_is_in_pieces_too() -> None:
    entry = in_stages(MLP, 2).pieces.module.entry
    assert not [
        x.name for x in entry.instructions if str(x.shape).startswith(("f32[4,4", "f32[4,9"))
    ]


@pytest.mark.parametrize("stages", [1, 2])
def test_steps_without_loops_over_layers_stay_as_they_are(stages: int) -> None:
    for name in ("mlp_adam", "lstm_adam"):
        module, wrapping = flat(name)
        assert layer_loops(module, wrapping) == []
        made = staged(module, wrapping, PipelineRequest(2, stages))
        assert made.pieces.module is module
        assert made.known == {}


def test_a_step_that_is_not_cut_stays_as_it_is() -> None:
    module, wrapping = flat(MLP)
    assert staged(module, wrapping, PipelineRequest(4, 1)).pieces.module is module


def test_stages_that_are_annotated_leave_loops_whole() -> None:
    marked = DRAWN.replace(
        "multiply(y, agains)", 'multiply(y, agains), frontend_attributes={ipu_stage="1"}'
    )
    module = front(marked)
    wrapping = required_wrapping(module, WrappingRequest(1), feeds_rest=True)
    assert layer_loops(module, wrapping)
    assert staged(module, wrapping, PipelineRequest(2, 2)).pieces.module is module
    assert peeled_step(module, wrapping, PipelineRequest(2, 2)).trips == {}


@pytest.mark.parametrize("stages", [1, 2])
def test_statistics_of_layers_go_from_micro_batch_to_micro_batch(stages: int) -> None:
    name = "scanned_statistics_adam"
    moving = SCANNED_STEPS[name].state_count - 1
    module, wrapping = flat(name)
    made = staged(module, wrapping, PipelineRequest(2, stages))
    old = made.pieces.numbers
    wanted = {moving} if old is None else set(old.parameters[moving])
    assert wanted <= made.request.carried


def test_a_stack_that_is_turned_first_is_read_as_it_is() -> None:
    module, wrapping = flat("scanned_transformer_adam")
    loops = layer_loops(module, wrapping)
    made = with_plain_stacks(module, loops)
    turned = [sum(x.opcode == "transpose" for x in m.entry.instructions) for m in (module, made)]
    assert turned[1] == turned[0] - 2
    arguments = random_arguments(module, 3)
    before, after = Evaluator(module)(*arguments), Evaluator(made)(*arguments)
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_each_op_has_a_broadcast_of_its_own() -> None:
    module = front("""HloModule shared
ENTRY e {
  a = f32[4] parameter(0)
  b = f32[4] parameter(1)
  c = f32[] parameter(2)
  s = f32[4] broadcast(c), dimensions={}
  x = f32[4] multiply(a, s)
  y = f32[4] multiply(b, s)
  ROOT t = (f32[4], f32[4], f32[4]) tuple(x, y, s)
}
""")
    entry = with_own_broadcasts(module).entry
    assert [len(entry.users[n]) for n, x in enumerate(entry.instructions)
            if x.opcode == "broadcast"] == [1, 1, 1]  # fmt: skip


def test_layers_that_something_takes_whole_stay_one_array() -> None:
    """The data choose a layer that comes once more, so that nobody knows which rows it reads."""
    module = front(DRAWN)
    wrapping = required_wrapping(module, WrappingRequest(1), feeds_rest=True)
    made = peeled_step(module, wrapping, PipelineRequest(2, 2))
    assert made.loops
    assert made.pieces.stacks == ()


DRAWN = """HloModule drawn, input_output_alias={ {0}: (0, {}, may-alias) }
add { p = f32[] parameter(0)  q = f32[] parameter(1)  ROOT r = f32[] add(p, q) }
goes_on {
  s = (s32[], f32[2,24], f32[4,24]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(4)
  ROOT below = pred[] compare(i, n), direction=LT
}
layer {
  s = (s32[], f32[2,24], f32[4,24]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[2,24] get-tuple-element(s), index=1
  w = f32[4,24] get-tuple-element(s), index=2
  zero = s32[] constant(0)
  row = f32[1,24] dynamic-slice(w, i, zero), dynamic_slice_sizes={1,24}
  bias = f32[24] reshape(row)
  biases = f32[2,24] broadcast(bias), dimensions={1}
  y = f32[2,24] add(x, biases)
  one = s32[] constant(1)
  j = s32[] add(i, one)
  ROOT t = (s32[], f32[2,24], f32[4,24]) tuple(j, y, w)
}
ENTRY e {
  w = f32[4,24] parameter(0)
  x = f32[2,24] parameter(1)
  k = s32[] parameter(2)
  zero = s32[] constant(0)
  nothing = f32[] constant(0)
  s = (s32[], f32[2,24], f32[4,24]) tuple(zero, x, w)
  loop = (s32[], f32[2,24], f32[4,24]) while(s), condition=goes_on, body=layer
  y = f32[2,24] get-tuple-element(loop), index=1
  drawn = f32[1,24] dynamic-slice(w, k, zero), dynamic_slice_sizes={1,24}
  again = f32[24] reshape(drawn)
  agains = f32[2,24] broadcast(again), dimensions={1}
  z = f32[2,24] multiply(y, agains)
  loss = f32[] reduce(z, nothing), dimensions={0,1}, to_apply=add
  half = f32[] constant(0.5)
  halves = f32[4,2] broadcast(half), dimensions={}
  slopes = f32[4,24] dot(halves, z), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  new = f32[4,24] subtract(w, slopes)
  ROOT r = (f32[4,24], f32[]) tuple(new, loss)
}
"""
