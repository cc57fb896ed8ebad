"""Ops on sizes that no grid divides: values on tiles are XLA's, and a box that is off shows."""

import ml_dtypes
import numpy as np
import pytest

from hloipu_compiler.hlo.parse import parse
from tests.support.xla_oracle import Oracle
from tools.conformance.case import Case, Input
from tools.conformance.deviations import Evidence, read
from tools.conformance.explainers import padding_is_its_own_op, passes_nan_over, with_padding_apart
from tools.conformance.odd_shapes import odd_cases
from tools.conformance.outcome import FAILED, budget_for, xla_results
from tools.conformance.values import inputs_of
from tools.tile_conformance import AGREES, TileOutcome, judged

CASES = odd_cases(36, 0)


def outcome(oracle: Oracle, number: int) -> TileOutcome:
    machine = ("tiny", "tiny-7")[number // 18]
    return judged(CASES[number], oracle, read(), [machine])


@pytest.mark.parametrize(
    "number", range(len(CASES)), ids=lambda n: CASES[n].name.split(" {")[0][:60]
)
def test_values_on_tiles_are_those_of_xla(number: int, oracle: Oracle) -> None:
    found = outcome(oracle, number)
    assert found.status == AGREES, found.said


def test_negative_padding_is_explained_where_xla_agrees_with_it_as_a_pad(oracle: Oracle) -> None:
    text = """HloModule m

ENTRY main {
  p0 = f32[7,5,5] parameter(0)
  p1 = f32[7,3,5] parameter(1)
  ROOT r = f32[2,5,5] convolution(p0, p1), window={size=3 stride=2 pad=-2_2 lhs_dilate=1}, dim_labels=f0b_i0o->0bf
}
"""  # noqa: E501
    inputs = Input("f32", (7, 5, 5), "moderate"), Input("f32", (7, 3, 5), "moderate")
    case = Case("convolution", "f32", "cut", text, inputs, terms=21, summed=(0, 1))
    assert judged(case, oracle, read(), ["tiny"]).status == AGREES
    assert judged(case, oracle, [], ["tiny"]).status == FAILED
    module = parse(text)
    given = inputs_of(case)
    theirs = xla_results(case, oracle)[0][0]
    wrong = Evidence(case, module, given, 0, theirs + 1, theirs, budget_for(case, "f32"), None)
    assert not padding_is_its_own_op(wrong).any()
    assert with_padding_apart(text.replace("-2_2", "0_0")) is None


def test_lost_nan_are_explained_where_the_other_numbers_give_what_xla_gives() -> None:
    text = """HloModule m

lesser {
  a = bf16[] parameter(0)
  b = bf16[] parameter(1)
  ROOT c = bf16[] minimum(a, b)
}

ENTRY main {
  p0 = bf16[4] parameter(0)
  c1 = bf16[] constant(inf)
  ROOT r = bf16[] reduce(p0, c1), dimensions={0}, to_apply=lesser
}
"""
    case = Case("reduce", "bf16", "nan", text, (Input("bf16", (4,), "moderate"),), terms=4)
    numbers = np.array([2, np.nan, -3, 5], ml_dtypes.bfloat16)
    nan, least = (np.array(x, ml_dtypes.bfloat16) for x in (np.nan, -3))
    given = case, parse(text), [numbers], 0
    budget = budget_for(case, "bf16")
    assert passes_nan_over(Evidence(*given, nan, least, budget, None)).all()
    assert not passes_nan_over(Evidence(*given, nan, least + 1, budget, None)).any()
    assert not passes_nan_over(Evidence(*given, least + 1, least, budget, None)).any()
