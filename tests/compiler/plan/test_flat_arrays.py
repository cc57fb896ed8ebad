"""Entries that take and make tuples, cut and placed as those of arrays are."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import hloipu
from hloipu_compiler.hlo.printing.printer import print_module
from hloipu_compiler.ir.attributes import Alias
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.plan.entry_arrays import aliased, parameter_arrays
from hloipu_compiler.plan.flat_arrays import with_flat_parameters, with_flat_results
from tests.support import pipeline_trials
from tests.support.pipeline_reference import EVERY_STEP
from tests.support.pipeline_trials import Cut, assert_equal_to_jax
from tests.support.tuple_arguments import taking_a_tuple

NESTED = """\
HloModule nested, input_output_alias={ {1}: (1, {1, 0}, may-alias) }, buffer_donor={ (0, {}) }
ENTRY main {
  a = f32[2]{0} parameter(0)
  t = (f32[2]{0}, (f32[2]{0}, s32[3]{0})) parameter(1)
  b = f32[2]{0} get-tuple-element(t), index=0
  u = (f32[2]{0}, s32[3]{0}) get-tuple-element(t), index=1
  c = f32[2]{0} get-tuple-element(u), index=0
  d = s32[3]{0} get-tuple-element(u), index=1
  e = f32[2]{0} add(a, b)
  f = f32[2]{0} multiply(e, c)
  ROOT r = (f32[2]{0}, f32[2]{0}, s32[3]{0}) tuple(e, f, d)
}
"""
WHOLE = """HloModule whole
body {
  s = (s32[], f32[2]{0}) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  x = f32[2]{0} get-tuple-element(s), index=1
  one = s32[] constant(1)
  m = s32[] add(n, one)
  y = f32[2]{0} add(x, x)
  ROOT t = (s32[], f32[2]{0}) tuple(m, y)
}
test {
  s = (s32[], f32[2]{0}) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  most = s32[] constant(3)
  ROOT p = pred[] compare(n, most), direction=LT
}
ENTRY main {
  s = (s32[], f32[2]{0}) parameter(0)
  ROOT r = (s32[], f32[2]{0}) while(s), condition=test, body=body
}
"""


def test_arrays_keep_their_numbers_and_aliases_name_them() -> None:
    module = hloipu.verify(NESTED)
    made = with_flat_parameters(module)
    hloipu.verify(print_module(made))
    shapes = [made.entry.instructions[i].shape for i in made.entry.parameters]
    assert all(isinstance(shape, ArrayShape) for shape in shapes)
    kinds = [x.kind for x in parameter_arrays(module)]
    assert [x.kind for x in parameter_arrays(made)] == kinds
    assert aliased(made) == aliased(module)
    assert made.attributes["input_output_alias"] == (Alias((1,), 2, ()),)
    a, b, c = (np.array(x, np.float32) for x in ([1, 2], [3, 5], [7, 11]))
    d = np.array([1, 2, 3], np.int32)
    found = hloipu.evaluate(print_module(made), a, b, c, d)
    for one, other in zip(found, [a + b, (a + b) * c, d], strict=True):
        np.testing.assert_array_equal(one, other)


def test_elements_are_taken_out_of_what_a_loop_makes_whole() -> None:
    made = with_flat_results(with_flat_parameters(hloipu.verify(WHOLE)))
    assert made.entry.instructions[made.entry.root].opcode == "tuple"
    count, x = hloipu.evaluate(print_module(made), np.int32(0), np.array([1, 2], np.float32))
    assert count == 3
    np.testing.assert_array_equal(x, [8, 16])


def test_what_takes_and_makes_arrays_stays_as_it_is() -> None:
    module = hloipu.verify(EVERY_STEP["mlp_sgd"].text)
    assert with_flat_parameters(module) is module
    assert with_flat_results(module) is module


@pytest.mark.parametrize(
    ("cut", "shards"),
    [
        (Cut("mlp_adam", 2, "grouped", 3), None),
        (Cut("residual_momentum", 3, "interleaved", 4, replicas=2), None),
        (Cut("transformer_sgd", 1, "grouped", 1), 2),
        (Cut("lstm_adam", 1, "grouped", 1, replicas=2), 2),
    ],
    ids=str,
)
@pytest.mark.thinned(4)
def test_steps_that_take_one_tuple_train(
    cut: Cut, shards: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = EVERY_STEP[cut.step]
    text = taking_a_tuple(step.text)
    assert hloipu.verify(text).entry.instructions[0].name == "every"
    changed: dict[str, Any] = {"stages": None, "shards": shards} if shards else {}
    monkeypatch.setitem(step.__dict__, "text", text)
    program = pipeline_trials.compiled(replace(cut), **changed)
    assert program.program.ipus == (shards or cut.stages)
    assert_equal_to_jax(cut, program)
