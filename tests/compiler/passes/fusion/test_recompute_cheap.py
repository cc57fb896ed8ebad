"""`recompute-cheap`: what is used late is made again, bits stay, nothing lives longer for it."""

import pytest

from hloipu_compiler.analysis.live_bytes import buffers_of, live_bytes
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.passes import run_passes
from tests.support.passes import assert_same_values, entry, opcodes, parsed, passed

SUM = """sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
"""

LATE = entry(
    """  x = f32[64,64] parameter(0)
  e = f32[64,64] exponential(x)
  a = f32[64,64] reverse(e), dimensions={0}
  b = f32[64,64] reverse(a), dimensions={1}
  c = f32[64,128] concatenate(a, b), dimensions={1}
  z = f32[] constant(0)
  r = f32[64] reduce(c, z), dimensions={1}, to_apply=sum
  s = f32[64,64] broadcast(r), dimensions={0}
  y = f32[64,64] add(e, s)
  ROOT out = f32[64,64] divide(y, x)""",
    SUM,
)
"""e is used at once, and at the end; x, of which it is made, lives to the end anyhow."""


def peak(module: Module) -> int:
    buffers = buffers_of(module.entry, module.computation, {})
    return max(live_bytes(buffers, range(len(module.entry.instructions))))


def test_what_is_used_late_is_made_again_there() -> None:
    after = passed(LATE, "recompute-cheap", settled=False)
    found = opcodes(after)
    assert found.count("exponential") == 2
    assert found.index("reduce") < len(found) - 1 - found[::-1].index("exponential")
    assert peak(after) == peak(parsed(LATE)) - 64 * 64 * 4


def test_a_second_run_finds_nothing() -> None:
    after = passed(LATE, "recompute-cheap", settled=False)
    assert run_passes(after, None, "recompute-cheap")[0] is after


def test_what_would_keep_its_operand_alive_stays() -> None:
    text = LATE.replace("divide(y, x)", "negate(y)")  # x dies early: e has to be kept
    module = parsed(text)
    assert run_passes(module, None, "recompute-cheap")[0] is module


def test_what_is_dear_stays() -> None:
    text = LATE.replace("exponential(x)", "sort(x), dimensions={0}, to_apply=less").replace(
        "HloModule m\n",
        "HloModule m\n\nless {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n"
        "  ROOT c = pred[] compare(a, b), direction=LT\n}\n",
    )
    module = parsed(text)
    assert run_passes(module, None, "recompute-cheap")[0] is module


def test_several_ops_are_made_again_up_to_a_number() -> None:
    text = LATE.replace("exponential(x)", "exponential(t)").replace(
        "  e =", "  n = f32[64,64] negate(x)\n  t = f32[64,64] tanh(n)\n  e ="
    )
    assert opcodes(passed(text, "recompute-cheap", settled=False)).count("tanh") == 2
    module = parsed(text)
    assert run_passes(module, None, "recompute-cheap{most-ops=2}")[0] is module


def test_what_is_live_only_while_there_is_room_stays() -> None:
    """The gap of e lies where little is live; the peak comes after its last use."""
    text = entry(
        """  x = f32[64,64] parameter(0)
  e = f32[64,64] exponential(x)
  a = f32[64,64] reverse(e), dimensions={0}
  b = f32[64,64] reverse(a), dimensions={1}
  y = f32[64,64] add(e, b)
  l = f32[64,640] concatenate(y, y, y, y, y, y, y, y, y, y), dimensions={1}
  z = f32[] constant(0)
  r = f32[64] reduce(l, z), dimensions={1}, to_apply=sum
  s = f32[64,64] broadcast(r), dimensions={0}
  ROOT out = f32[64,64] divide(s, x)""",
        SUM,
    )
    module = parsed(text)
    assert run_passes(module, None, "recompute-cheap")[0] is module


@pytest.mark.parametrize("percent", [0, 50, 90])
def test_values_stay_to_the_bit_in_loops_too(percent: int) -> None:
    body = """b {
  t = (s32[], f32[16,16]) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  x = f32[16,16] get-tuple-element(t), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  e = f32[16,16] logistic(x)
  a = f32[16,16] reverse(e), dimensions={0}
  d = f32[16,32] concatenate(a, a), dimensions={1}
  c = f32[16,16] slice(d), slice={[0:16], [8:24]}
  y = f32[16,16] multiply(c, e)
  w = f32[16,16] add(y, x)
  ROOT r = (s32[], f32[16,16]) tuple(next, w)
}

c {
  t = (s32[], f32[16,16]) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  n = s32[] constant(3)
  ROOT m = pred[] compare(i, n), direction=LT
}
"""
    text = entry(
        """  x = f32[16,16] parameter(0)
  i = s32[] constant(0)
  t = (s32[], f32[16,16]) tuple(i, x)
  l = (s32[], f32[16,16]) while(t), condition=c, body=b
  ROOT r = f32[16,16] get-tuple-element(l), index=1""",
        body,
    )
    before = parsed(text)
    after, _ = run_passes(before, None, f"recompute-cheap{{full-percent={percent}}}")
    assert opcodes(after, "b").count("logistic") == 2
    assert_same_values(before, after)
