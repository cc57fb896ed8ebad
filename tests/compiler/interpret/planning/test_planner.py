"""Planning: what takes no step, what is left out, and what is kept for its effect."""

from typing import Any

import numpy as np
import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.evaluator import Evaluator
from hloipu_compiler.interpret.planning.plan import Plan
from hloipu_compiler.interpret.planning.site import Effects
from hloipu_runtime.errors import UnsupportedError
from tests.support.arrays import f32


def plan_of(lines: str, rest: str = "") -> Plan:
    return Evaluator(parse(f"HloModule m\n{rest}ENTRY e {{\n{lines}}}\n")).plan


def steps(plan: Plan) -> list[str]:
    return [step.instruction.name for step in plan.steps]


def test_tuples_and_forwarded_values_take_no_step() -> None:
    plan = plan_of("""  a = f32[4] parameter(0)
  b = (f32[2], f32[3]) parameter(1)
  t = (f32[4], (f32[2], f32[3])) tuple(a, b)
  u = (f32[2], f32[3]) get-tuple-element(t), index=1
  v = f32[3] get-tuple-element(u), index=1
  w = f32[3] copy(v)
  x = f32[3] opt-barrier(w)
  ROOT r = (f32[3], f32[4]) tuple(x, a)
""")
    assert steps(plan) == []
    assert plan.parameter_count == 3
    assert plan.results == (2, 0)
    assert plan.unused_parameters == (1,)


def test_tuple_elements_are_found_by_leaf() -> None:
    text = """HloModule m
ENTRY e {
  p = ((f32[], f32[]), f32[], (f32[], (f32[]))) parameter(0)
  q = (f32[], (f32[])) get-tuple-element(p), index=2
  r = (f32[]) get-tuple-element(q), index=1
  s = (f32[], f32[]) get-tuple-element(p), index=0
  ROOT t = (f32[], (f32[]), (f32[], f32[])) tuple(p.1, r, s)
}
""".replace("p.1", "m").replace("  q =", "  m = f32[] get-tuple-element(p), index=1\n  q =")
    leaves = [np.float32(i) for i in range(5)]
    nested = ((leaves[0], leaves[1]), leaves[2], (leaves[3], (leaves[4],)))
    flat = Evaluator(parse(text)).run_stored([np.asarray(x) for x in leaves])
    assert [float(x) for x in flat] == [2, 4, 0, 1]
    assert nested[1] == 2


def test_dead_instructions_take_no_step() -> None:
    plan = plan_of("""  a = f32[4] parameter(0)
  dead = f32[4] tanh(a)
  deader = f32[4] negate(dead)
  b = f32[4] exponential(a)
  ROOT r = f32[4] negate(b)
""")
    assert steps(plan) == ["b", "r"]


def test_outputs_that_nobody_reads_are_dropped_at_once() -> None:
    plan = plan_of("""  a = f32[4] parameter(0)
  i = s32[4] iota(), iota_dimension=0
  s = (f32[4], s32[4]) sort(a, i), dimensions={0}, to_apply=less
  ROOT r = s32[4] get-tuple-element(s), index=1
""", """less {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  c = s32[] parameter(2)
  d = s32[] parameter(3)
  ROOT r = pred[] compare(a, b), direction=LT
}
""")  # fmt: skip
    (sort,) = plan.steps
    assert sort.outputs[1] == plan.results[0]
    assert sort.outputs[0] not in plan.results
    # What is not read shares one slot, so that it is overwritten and never kept.
    assert sort.outputs[0] == plan.slot_count - 1


def test_each_slot_is_freed_once_by_its_last_reader() -> None:
    plan = plan_of("""  a = f32[4] parameter(0)
  b = f32[4] tanh(a)
  c = f32[4] add(a, b)
  d = f32[4] multiply(b, c)
  ROOT r = f32[4] subtract(d, c)
""")
    freed = {slot: step.instruction.name for step in plan.steps for slot in step.frees}
    b, c, d = (step.outputs[0] for step in plan.steps[:3])
    assert freed == {0: "c", b: "d", c: "r", d: "r"}
    assert sum(len(step.frees) for step in plan.steps) == 4


def test_a_parameter_that_is_a_result_is_never_freed() -> None:
    plan = plan_of("""  a = f32[4] parameter(0)
  b = f32[4] tanh(a)
  ROOT r = (f32[4], f32[4]) tuple(b, a)
""")
    assert [step.frees for step in plan.steps] == [()]


OUTFEED = """send_out {
  x = f32[4] parameter(0)
  t = token[] after-all()
  ROOT o = token[] outfeed(x, t), outfeed_shape=f32[4], outfeed_config="there"
}
through {
  x = f32[4] parameter(0)
  ROOT c = token[] call(x), to_apply=send_out
}
"""


@pytest.mark.parametrize("callee", ["send_out", "through"])
def test_a_dead_call_is_kept_for_the_effect_inside(callee: str) -> None:
    got: list[Any] = []
    text = f"""HloModule m
{OUTFEED}ENTRY e {{
  a = f32[4] parameter(0)
  dead = token[] call(a), to_apply={callee}
  ROOT r = f32[4] negate(a)
}}
"""
    effects = Effects(outfeed=lambda config, x: got.append((config, x[0].tolist())))
    Evaluator(parse(text), effects)(f32([1, 2, 3, 4]))
    assert got == [("there", [1, 2, 3, 4])]


def test_an_op_without_a_rule_is_named() -> None:
    text = """  a = f32[4] parameter(0)
  z = f32[] constant(0)
  ROOT bad = f32[] reduce(a, z), dimensions={0}, to_apply=r
"""
    reducer = """r {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  v = f32[1] reshape(a)
  w = f32[1] reshape(b)
  c = f32[2] concatenate(v, w), dimensions={0}
  i = s32[] constant(0)
  d = f32[1] dynamic-slice(c, i), dynamic_slice_sizes={1}
  ROOT s = f32[] reshape(d)
}
"""
    with pytest.raises(UnsupportedError, match=r"'c': .*'concatenate' inside a computation"):
        plan_of(text, reducer)
