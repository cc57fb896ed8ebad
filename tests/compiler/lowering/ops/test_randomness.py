"""Random ops on tiles: values and positions in the stream are those of the evaluator."""

from typing import Any

import numpy as np
import pytest

from hloipu_compiler.errors import CodegenError
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.evaluator import evaluate
from hloipu_compiler.lowering.core.lowering import lower
from hloipu_compiler.plan.plan import Plan
from hloipu_compiler.planners.tuning import Tuning
from hloipu_runtime.codelets.ops.random import RngBits
from hloipu_runtime.machine.load import load_machine
from tests.support.on_tiles import check_on_tiles, groups_of
from tests.support.tile_runs import same_on_tiles

Array = np.ndarray[Any, Any]

DRAWS = """
HloModule draws
ENTRY e {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  s = u64[3] parameter(2)
  r = f32[37,5] rng(a, b), distribution=rng_uniform
  n = f32[6,5] rng(a, b), distribution=rng_normal
  g = u64[2] rng-get-and-update-state(), delta=7
  h = u64[2] rng-get-and-update-state(), delta=1
  p = (u64[3], u32[33,7]) rng-bit-generator(s), algorithm=rng_philox
  q = u8[50] rng-bit-generator(s), algorithm=rng_philox
  ROOT t = (f32[37,5], f32[6,5], u64[2], u64[2], (u64[3], u32[33,7]), u8[50])
    tuple(r, n, g, h, p, q)
}
"""

IN_LOOPS_AND_BRANCHES = """
HloModule draws
one {
  p = f32[5] parameter(0)
  a = f32[] constant(0)
  b = f32[] constant(1)
  r = f32[5] rng(a, b), distribution=rng_uniform
  ROOT s = f32[5] add(p, r)
}
two {
  p = f32[5] parameter(0)
  ROOT s = f32[5] negate(p)
}
c {
  s = (s32[], f32[5]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(5)
  ROOT lt = pred[] compare(i, n), direction=LT
}
b {
  s = (s32[], f32[5]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[5] get-tuple-element(s), index=1
  k = s32[] constant(1)
  j = s32[] add(i, k)
  t = s32[] constant(3)
  q = pred[] compare(i, t), direction=LT
  y = f32[5] conditional(q, x, x), true_computation=one, false_computation=two
  lo = f32[] constant(0)
  hi = f32[] constant(9)
  r = f32[5] rng(lo, hi), distribution=rng_normal
  z = f32[5] add(y, r)
  ROOT o = (s32[], f32[5]) tuple(j, z)
}
ENTRY e {
  x = f32[5] parameter(0)
  z = s32[] constant(0)
  t = (s32[], f32[5]) tuple(z, x)
  w = (s32[], f32[5]) while(t), condition=c, body=b
  y = f32[5] get-tuple-element(w), index=1
  g = u64[2] rng-get-and-update-state(), delta=1
  ROOT o = (f32[5], u64[2]) tuple(y, g)
}
"""

IN_A_CONDITION = """
HloModule draws
c {
  s = s32[] parameter(0)
  r = s32[] rng(s, s), distribution=rng_uniform
  ROOT lt = pred[] compare(r, s), direction=LT
}
b {
  ROOT s = s32[] parameter(0)
}
ENTRY e {
  x = s32[] parameter(0)
  ROOT w = s32[] while(x), condition=c, body=b
}
"""


def test_values_of_each_op() -> None:
    state = np.array([1, 2**64 - 3, 5], np.uint64)
    given: list[Array] = [np.array(-1, np.float32), np.array(2, np.float32), state]
    want = evaluate(parse(DRAWS), *given)
    check_on_tiles(DRAWS, given, want)
    words = 37 * 5 + 6 * 5
    np.testing.assert_array_equal(want[2], [words, 0])
    np.testing.assert_array_equal(want[3], [words + 7, 0])


def test_loops_and_branches_carry_the_state() -> None:
    given = np.zeros(5, np.float32)
    want = evaluate(parse(IN_LOOPS_AND_BRANCHES), given)
    check_on_tiles(IN_LOOPS_AND_BRANCHES, [given], want)
    # Three turns draw twice, two turns once.
    np.testing.assert_array_equal(want[1], [(3 * 2 + 2) * 5, 0])


def test_a_condition_may_not_draw() -> None:
    with pytest.raises(CodegenError, match="E0470"):
        lower(parse(IN_A_CONDITION), Plan(), load_machine("tiny"))


@pytest.mark.parametrize(
    ("random_bits", "algorithm"), [("hardware", "rng_default"), ("philox", "rng_philox")]
)
def test_bits_of_no_stated_algorithm_are_drawn_as_asked(random_bits: str, algorithm: str) -> None:
    text = """
HloModule draws
ENTRY e {
  s = u64[2] parameter(0)
  ROOT p = (u64[2], u32[4000]) rng-bit-generator(s), algorithm=rng_default
}
"""
    given = [np.array([3, 5], np.uint64)]
    run = same_on_tiles(text, load_machine("gc200"), given, Tuning(random_bits=random_bits))
    drawn = [x.codelet for x in groups_of(run.program) if isinstance(x.codelet, RngBits)]
    assert [x.algorithm for x in drawn] == [algorithm]
