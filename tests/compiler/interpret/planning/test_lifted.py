"""Branches and loops inside a computation that is applied to many elements at once."""

from math import gcd, prod

import numpy as np
import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.evaluator import evaluate
from tests.support.arrays import Array, s32

N = 300


def mapped(computations: str, operands: int = 1, size: int = N) -> str:
    """The program that maps `f` over s32 arrays."""
    lines = "".join(f"  x{i} = s32[{size}] parameter({i})\n" for i in range(operands))
    names = ", ".join(f"x{i}" for i in range(operands))
    return (
        f"HloModule m\n{computations}ENTRY e {{\n{lines}"
        f"  ROOT r = s32[{size}] map({names}), dimensions={{0}}, to_apply=f\n}}\n"
    )


def run(text: str, *arrays: Array) -> list[int]:
    (result,) = evaluate(parse(text), *arrays)
    assert result.dtype == np.int32
    values: list[int] = result.tolist()
    return values


BRANCHES = """double {
  a = s32[] parameter(0)
  ROOT r = s32[] add(a, a)
}
square {
  a = s32[] parameter(0)
  ROOT r = s32[] multiply(a, a)
}
seven {
  a = s32[] parameter(0)
  ROOT r = s32[] constant(7)
}
"""


def test_a_branch_by_predicate_is_chosen_for_each_element() -> None:
    text = mapped(BRANCHES + """f {
  a = s32[] parameter(0)
  z = s32[] constant(0)
  p = pred[] compare(a, z), direction=LT
  ROOT r = s32[] conditional(p, a, a), true_computation=square, false_computation=double
}
""")  # fmt: skip
    x = np.arange(-N // 2, N // 2, dtype=np.int32)
    assert run(text, x) == [v * v if v < 0 else 2 * v for v in x.tolist()]


def test_a_branch_by_index_beyond_the_last_takes_the_last() -> None:
    text = mapped(BRANCHES + """f {
  a = s32[] parameter(0)
  ROOT r = s32[] conditional(a, a, a, a), branch_computations={double, square, seven}
}
""", size=5)  # fmt: skip
    assert run(text, s32([0, 1, 2, 3, -1])) == [0, 1, 7, 7, 7]


def test_branches_with_tuples_of_arguments_and_results() -> None:
    text = mapped("""swap {
  t = (s32[], s32[]) parameter(0)
  a = s32[] get-tuple-element(t), index=0
  b = s32[] get-tuple-element(t), index=1
  ROOT r = (s32[], s32[]) tuple(b, a)
}
keep {
  ROOT t = (s32[], s32[]) parameter(0)
}
f {
  a = s32[] parameter(0)
  b = s32[] parameter(1)
  t = (s32[], s32[]) tuple(a, b)
  p = pred[] compare(a, b), direction=GT
  s = (s32[], s32[]) conditional(p, t, t), true_computation=swap, false_computation=keep
  u = s32[] get-tuple-element(s), index=0
  v = s32[] get-tuple-element(s), index=1
  ROOT r = s32[] subtract(v, u)
}
""", 2)  # fmt: skip
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-50, 50, N).astype(np.int32) for _ in range(2))
    assert run(text, x, y) == np.abs(x - y).tolist()


LOOP = """more {
  s = (s32[], s32[]) parameter(0)
  b = s32[] get-tuple-element(s), index=1
  z = s32[] constant(0)
  ROOT r = pred[] compare(b, z), direction=NE
}
euclid {
  s = (s32[], s32[]) parameter(0)
  a = s32[] get-tuple-element(s), index=0
  b = s32[] get-tuple-element(s), index=1
  m = s32[] remainder(a, b)
  ROOT r = (s32[], s32[]) tuple(b, m)
}
f {
  a = s32[] parameter(0)
  b = s32[] parameter(1)
  t = (s32[], s32[]) tuple(a, b)
  w = (s32[], s32[]) while(t), condition=more, body=euclid
  ROOT r = s32[] get-tuple-element(w), index=0
}
"""


@pytest.mark.parametrize("size", [0, 1, N])
def test_a_loop_runs_as_often_as_each_element_needs(size: int) -> None:
    rng = np.random.default_rng(1)
    x, y = (rng.integers(1, 10_000, size).astype(np.int32) for _ in range(2))
    y[: size // 5] = 0  # these never enter the loop
    pairs = zip(x.tolist(), y.tolist(), strict=True)
    assert run(mapped(LOOP, 2, size), x, y) == [gcd(a, b) for a, b in pairs]


@pytest.mark.parametrize("size", [1, 2, 5, 64, 257])
def test_a_loop_inside_a_reducer(size: int) -> None:
    """The greatest common divisor of many numbers."""
    text = f"""HloModule m
{LOOP}ENTRY e {{
  x = s32[3,{size}] parameter(0)
  z = s32[] constant(0)
  ROOT r = s32[3] reduce(x, z), dimensions={{1}}, to_apply=f
}}
"""
    x = np.random.default_rng(2).integers(1, 50, (3, size)).astype(np.int32) * s32([[6], [10], [7]])
    assert run(text, x) == [gcd(*row) for row in x.tolist()]


def test_a_conditional_inside_a_reducer() -> None:
    """Sum what is positive; negative numbers count as their squares."""
    text = f"""HloModule m
{BRANCHES}keep {{
  ROOT a = s32[] parameter(0)
}}
f {{
  a = s32[] parameter(0)
  b = s32[] parameter(1)
  z = s32[] constant(0)
  p = pred[] compare(a, z), direction=LT
  c = s32[] conditional(p, a, a), true_computation=square, false_computation=keep
  q = pred[] compare(b, z), direction=LT
  d = s32[] conditional(q, b, b), true_computation=square, false_computation=keep
  ROOT r = s32[] add(c, d)
}}
ENTRY e {{
  x = s32[2,{N}] parameter(0)
  z = s32[] constant(0)
  ROOT r = s32[2] reduce(x, z), dimensions={{1}}, to_apply=f
}}
"""
    x = np.random.default_rng(3).integers(-9, 9, (2, N)).astype(np.int32)
    assert run(text, x) == np.where(x < 0, x * x, x).sum(1).tolist()


def test_a_loop_in_a_branch_need_not_end_for_elements_that_do_not_take_it() -> None:
    """The loop `while a != 1: a = a / 2` never ends for 0, which takes the other branch."""
    text = mapped("""unlike_one {
  s = (s32[], s32[]) parameter(0)
  a = s32[] get-tuple-element(s), index=0
  one = s32[] constant(1)
  ROOT r = pred[] compare(a, one), direction=NE
}
halve {
  s = (s32[], s32[]) parameter(0)
  a = s32[] get-tuple-element(s), index=0
  n = s32[] get-tuple-element(s), index=1
  one = s32[] constant(1)
  two = s32[] constant(2)
  h = s32[] divide(a, two)
  m = s32[] add(n, one)
  ROOT r = (s32[], s32[]) tuple(h, m)
}
log {
  a = s32[] parameter(0)
  z = s32[] constant(0)
  t = (s32[], s32[]) tuple(a, z)
  w = (s32[], s32[]) while(t), condition=unlike_one, body=halve
  ROOT r = s32[] get-tuple-element(w), index=1
}
minus {
  a = s32[] parameter(0)
  ROOT r = s32[] constant(-1)
}
f {
  a = s32[] parameter(0)
  z = s32[] constant(0)
  p = pred[] compare(a, z), direction=GT
  ROOT r = s32[] conditional(p, a, a), true_computation=log, false_computation=minus
}
""", size=9)  # fmt: skip
    assert run(text, s32([0, 1, 2, 3, 4, 7, 8, 1000, 0])) == [-1, 0, 1, 1, 2, 2, 3, 9, -1]


def test_a_loop_in_a_loop_need_not_end_for_elements_that_are_done() -> None:
    """Outer: while n > 0, n -= 1 after an inner loop that ends only for n > 0."""
    text = mapped("""outer_more {
  s = (s32[], s32[]) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  z = s32[] constant(0)
  ROOT r = pred[] compare(n, z), direction=GT
}
inner_more {
  s = (s32[], s32[]) parameter(0)
  k = s32[] get-tuple-element(s), index=0
  n = s32[] get-tuple-element(s), index=1
  ROOT r = pred[] compare(k, n), direction=NE
}
inner {
  s = (s32[], s32[]) parameter(0)
  k = s32[] get-tuple-element(s), index=0
  n = s32[] get-tuple-element(s), index=1
  one = s32[] constant(1)
  j = s32[] add(k, one)
  limit = s32[] constant(100)
  wrapped = s32[] remainder(j, limit)
  first = s32[] maximum(wrapped, one)
  ROOT r = (s32[], s32[]) tuple(first, n)
}
outer {
  s = (s32[], s32[]) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  total = s32[] get-tuple-element(s), index=1
  one = s32[] constant(1)
  t = (s32[], s32[]) tuple(one, n)
  w = (s32[], s32[]) while(t), condition=inner_more, body=inner
  k = s32[] get-tuple-element(w), index=0
  more = s32[] add(total, k)
  fewer = s32[] subtract(n, one)
  ROOT r = (s32[], s32[]) tuple(fewer, more)
}
f {
  a = s32[] parameter(0)
  z = s32[] constant(0)
  t = (s32[], s32[]) tuple(a, z)
  w = (s32[], s32[]) while(t), condition=outer_more, body=outer
  ROOT r = s32[] get-tuple-element(w), index=1
}
""", size=5)  # fmt: skip
    x = s32([0, 1, 9, 4, -3])
    assert run(text, x) == [n * (n + 1) // 2 if n > 0 else 0 for n in x.tolist()]


def test_calls_and_maps_inside() -> None:
    text = mapped(BRANCHES + """f {
  a = s32[] parameter(0)
  d = s32[] call(a), to_apply=double
  ROOT s = s32[] map(d), dimensions={}, to_apply=square
}
""", size=4)  # fmt: skip
    assert run(text, s32([1, -2, 3, 0])) == [4, 16, 36, 0]


def test_reshapes_and_broadcasts_of_scalars_do_nothing() -> None:
    text = mapped("""f {
  a = s32[] parameter(0)
  b = s32[] reshape(a)
  c = s32[] broadcast(b), dimensions={}
  d = s32[] transpose(c), dimensions={}
  ROOT r = s32[] negate(d)
}
""", size=prod((2, 3)))  # fmt: skip
    assert run(text, s32(range(6))) == [0, -1, -2, -3, -4, -5]


def test_bits_are_reinterpreted_element_by_element() -> None:
    text = mapped("""f {
  a = s32[] parameter(0)
  x = f32[] bitcast-convert(a)
  n = f32[] negate(x)
  ROOT r = s32[] bitcast-convert(n)
}
""")
    x = np.arange(N, dtype=np.int32) + 2**30
    assert run(text, x) == [v - 2**31 for v in x.tolist()]
