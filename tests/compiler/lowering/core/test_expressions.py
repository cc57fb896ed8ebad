"""Computations on scalars as expressions: branches become selects, calls are looked into."""

import numpy as np
import pytest

from hloipu_compiler.errors import CodegenError
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.lowering.core.expressions import expression_of
from hloipu_runtime.codelets.core.expression import evaluate

CHOICE = """HloModule m
kept {
  ROOT a = f32[] parameter(0)
}
twice {
  a = f32[] parameter(0)
  ROOT b = f32[] add(a, a)
}
region {
  p = pred[] parameter(0)
  x = f32[] parameter(1)
  y = f32[] parameter(2)
  ROOT r = f32[] conditional(p, x, y), true_computation=kept, false_computation=twice
}
ENTRY e {
  ROOT p = f32[] parameter(0)
}
"""


def test_a_branch_may_hand_on_its_operand() -> None:
    expression = expression_of(parse(CHOICE), "region")
    p = np.array([True, False])
    (found,) = evaluate(expression, [p, np.full(2, 3, np.float32), np.full(2, 5, np.float32)])
    assert found.tolist() == [3.0, 10.0]


def test_an_index_chooses_among_branches() -> None:
    text = CHOICE.replace("p = pred[] parameter(0)\n  x", "p = s32[] parameter(0)\n  x").replace(
        "true_computation=kept, false_computation=twice", "branch_computations={kept, twice}"
    )
    expression = expression_of(parse(text), "region")
    three, five = np.full(4, 3, np.float32), np.full(4, 5, np.float32)
    (found,) = evaluate(expression, [np.array([0, 1, 7, -1], np.int32), three, five])
    assert found.tolist() == [3.0, 10.0, 10.0, 10.0]


def test_what_is_not_elementwise_is_refused_by_name() -> None:
    text = CHOICE.replace("add(a, a)", "rng(a, a), distribution=rng_uniform")
    with pytest.raises(CodegenError, match="'b': 'rng' inside a computation"):
        expression_of(parse(text), "region")
