"""Annotations inside of what is called: loops, branches, fusions and functions of two callers."""

import re
from random import Random
from typing import Any

import numpy as np
import pytest

import hloipu
from hloipu_compiler.partition.placement.handing_down import handed_down, says_anything
from hloipu_compiler.partition.placement.placing import placed
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.compiled import CompiledProgram
from tests.support.annotated_texts import annotated, crossings

LOOP = """HloModule loop
body {
  s = (s32[], f32[8]{0}, f32[8]{0}, f32[8]{0}) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  a = f32[8]{0} get-tuple-element(s), index=1
  b = f32[8]{0} get-tuple-element(s), index=2
  w = f32[8]{0} get-tuple-element(s), index=3
  one = s32[] constant(1)
  m = s32[] add(n, one)
  wa = f32[8]{0} multiply(a, w)
  c = f32[8]{0} tanh(wa), sharding={maximal device=0}
  d = f32[8]{0} multiply(b, w), sharding={maximal device=1}
  e = f32[8]{0} add(d, c), sharding={maximal device=1}
  ROOT t = (s32[], f32[8]{0}, f32[8]{0}, f32[8]{0}) tuple(m, c, e, w)
}
test {
  s = (s32[], f32[8]{0}, f32[8]{0}, f32[8]{0}) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  most = s32[] constant(5)
  ROOT p = pred[] compare(n, most), direction=LT
}
ENTRY main {
  a = f32[8]{0} parameter(0)
  b = f32[8]{0} parameter(1)
  w = f32[8]{0} parameter(2)
  zero = s32[] constant(0)
  s = (s32[], f32[8]{0}, f32[8]{0}, f32[8]{0}) tuple(zero, a, b, w)
  r = (s32[], f32[8]{0}, f32[8]{0}, f32[8]{0}) while(s), condition=test, body=body
  x = f32[8]{0} get-tuple-element(r), index=1
  y = f32[8]{0} get-tuple-element(r), index=2
  ROOT z = f32[8]{0} subtract(x, y)
}
"""
BRANCHES = """HloModule branches
left {
  p = (f32[8]{0}, f32[8]{0}) parameter(0)
  a = f32[8]{0} get-tuple-element(p), index=0
  b = f32[8]{0} get-tuple-element(p), index=1
  c = f32[8]{0} add(a, b), sharding={maximal device=2}
  ROOT t = (f32[8]{0}, f32[8]{0}) tuple(c, b)
}
right {
  p = (f32[8]{0}, f32[8]{0}) parameter(0)
  a = f32[8]{0} get-tuple-element(p), index=0
  b = f32[8]{0} get-tuple-element(p), index=1
  c = f32[8]{0} multiply(a, b), sharding={maximal device=1}
  d = f32[8]{0} negate(c), sharding={maximal device=0}
  ROOT t = (f32[8]{0}, f32[8]{0}) tuple(d, c)
}
ENTRY main {
  which = pred[] parameter(0)
  a = f32[8]{0} parameter(1)
  b = f32[8]{0} parameter(2)
  p = (f32[8]{0}, f32[8]{0}) tuple(a, b)
  r = (f32[8]{0}, f32[8]{0}) conditional(which, p, p), true_computation=left,
      false_computation=right
  x = f32[8]{0} get-tuple-element(r), index=0
  y = f32[8]{0} get-tuple-element(r), index=1
  ROOT z = f32[8]{0} subtract(x, y), sharding={maximal device=3}
}
"""
CALLS = """HloModule calls
twice {
  a = f32[8]{0} parameter(0)
  ROOT b = f32[8]{0} add(a, a)
}
mixed {
  a = f32[8]{0} parameter(0)
  b = f32[8]{0} tanh(a), sharding={maximal device=1}
  ROOT c = f32[8]{0} negate(b)
}
ENTRY main {
  a = f32[8]{0} parameter(0)
  b = f32[8]{0} call(a), to_apply=twice, sharding={maximal device=0}
  c = f32[8]{0} call(b), to_apply=twice, sharding={maximal device=1}
  ROOT d = f32[8]{0} fusion(c), kind=kLoop, calls=mixed, frontend_attributes={ipu_shard="2"}
}
"""


def numbers(count: int) -> list[Any]:
    return list(np.random.default_rng(count).normal(size=(count, 8)).astype(np.float32))


def compiled(text: str) -> CompiledProgram:
    return hloipu.compile(text, target="tiny", cache=False, over_memory="allow")


def assert_as_evaluated(text: str, *arrays: Any, exact: bool = True) -> None:
    program = compiled(text)
    for mode in ("functional", "exact") if exact else ("functional",):
        found = program.run(*arrays, mode=mode).outputs
        wanted = hloipu.evaluate(text, *arrays)
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-6)


def test_a_loop_runs_its_ops_where_they_say_and_its_state_lies_where_it_is_read() -> None:
    plan = placed(hloipu.parse(LOOP), Plan(), {})
    assert [plan.held_ipus["main", "r", n] for n in range(4)] == [0, 0, 1, 0]
    assert plan.ipus["body", "wa"] == plan.ipus["body", "c"] == 0
    assert_as_evaluated(LOOP, *numbers(3))


def test_a_token_in_the_state_of_a_loop_lies_nowhere() -> None:
    """It is counted among the leaves, so that those behind it keep their numbers."""
    state = "(s32[], f32[8]{0}, f32[8]{0}, f32[8]{0})"
    text = LOOP.replace(state, "(s32[], token[], f32[8]{0}, f32[8]{0}, f32[8]{0})")
    for number in (3, 2, 1):
        text = text.replace(f"index={number}\n", f"index={number + 1}\n")
    text = text.replace("tuple(m, c", "tuple(m, go, c").replace(
        "tuple(zero, a", "tuple(zero, go, a"
    )
    text = text.replace(
        "  one = s32[]", "  go = token[] get-tuple-element(s), index=1\n  one = s32[]"
    )
    text = text.replace("  zero = s32[]", "  go = token[] after-all()\n  zero = s32[]")
    plan, plain = (placed(hloipu.verify(x), Plan(), {}) for x in (text, LOOP))
    held = plan.held_ipus
    assert ("main", "r", 1) not in held
    assert [held["main", "r", n] for n in (0, 2, 3, 4)] == [0, 0, 1, 0]
    assert plan.ipus == plain.ipus


def test_what_a_loop_does_not_change_crosses_before_it() -> None:
    text = LOOP.replace("{s32[]", "{s32[]")
    program = compiled(text).program
    inside = {v for v, _ in crossings(program)}
    repeat = next(x for x in program.body.steps if type(x).__name__ == "Repeat")
    turning = crossings(program, repeat)
    assert len(turning) == 1, "tanh's result alone goes over in each turn"
    assert len(inside) > 1, "and the weight once, before"


def test_a_tuple_of_shardings_says_where_each_array_of_a_loop_lies() -> None:
    text = LOOP.replace(
        "condition=test, body=body",
        "condition=test, body=body, sharding={{maximal device=1}, {maximal device=1}, "
        "{maximal device=0}, {maximal device=1}}",
    )
    plan = placed(handed_down(hloipu.parse(text)), Plan(), {})
    assert [plan.held_ipus["main", "r", n] for n in range(3)] == [1, 1, 0]
    assert_as_evaluated(text, *numbers(3))


@pytest.mark.parametrize("which", [True, False])
def test_branches_on_several_ipus_leave_their_results_in_one_place(which: bool) -> None:
    text = re.sub(r",\n +false", ", false", BRANCHES)
    plan = placed(hloipu.parse(text), Plan(), {})
    assert {plan.held_ipus["main", "r", n] for n in range(2)} == {3}
    assert plan.shards == 4
    assert_as_evaluated(text, np.bool_(which), *numbers(2))


def test_what_two_call_runs_where_each_says_and_fusions_fall_apart() -> None:
    module = handed_down(hloipu.parse(CALLS))
    assert says_anything(module)
    program = compiled(CALLS).program
    assert len(set(crossings(program))) == len(crossings(program)) == 2 + 1 - 1
    computing = {v.ipu for v in program.variables}
    assert computing == {0, 1, 2}
    (a,) = numbers(1)
    assert_as_evaluated(CALLS, a)


@pytest.mark.parametrize("seed", range(24))
def test_any_annotation_leaves_values_as_they_are(seed: int) -> None:
    draw = Random(seed)
    text = draw.choice((LOOP, re.sub(r",\n +false", ", false", BRANCHES), CALLS))
    text = re.sub(r", (?:sharding=\{maximal device=\d\}|frontend_attributes=\{[^}]*\})", "", text)
    placed_text = annotated(text, draw, draw.randint(2, 4), draw.choice((0.2, 0.5, 1)))
    given = numbers(len(re.findall(r"f32\[8\]\{0\} parameter\(\d\)$", text, re.M)))
    given = given[: len(re.findall(r"= \S+ parameter", text.split("ENTRY")[1]))]
    arrays = [np.bool_(seed % 2), *given[:2]] if "pred[] parameter" in text else given
    count = len(re.findall(r" parameter\(", text.split("ENTRY")[1]))
    assert_as_evaluated(placed_text, *arrays[:count])
