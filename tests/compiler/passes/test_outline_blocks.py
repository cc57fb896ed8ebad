"""Outlining: which blocks become calls, and that values stay."""

import pytest

from hloipu_compiler.ir.graph import Module
from tests.support.layered_texts import layered_text
from tests.support.passes import entry, parsed, passed

ALL = "outline-blocks{least-code=0,least-saved=1}"


def calls(module: Module) -> list[str]:
    return [x.attributes.called[0] for x in module.entry.instructions if x.opcode == "call"]


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_values_stay_and_layers_share_a_block(seed: int, backward: bool) -> None:
    text = layered_text(seed, 4, backward=backward, shared=seed % 2 == 0, between=seed % 3 == 0)
    # Not settled: a second run may find blocks within blocks.
    after = passed(text, ALL, settled=False)
    before = parsed(text)
    assert len(calls(after)) >= 2 + backward
    assert len(set(calls(after))) < len(calls(after))
    count = sum(len(c.instructions) for c in after.computations)
    assert count < sum(len(c.instructions) for c in before.computations) + 12


def test_a_block_hands_back_what_others_read_and_no_more() -> None:
    after = passed(layered_text(1, 4), ALL)
    block = after.computation[calls(after)[0]]
    root = block.instructions[block.root]
    # The running value goes to the next layer, the second op of two layers into the result.
    assert len(root.operands) == 2


@pytest.mark.parametrize("operands", ["b, y", "y, b", "b, a"])
def test_operands_from_outside_may_differ(operands: str) -> None:
    text = entry(
        f"""  x = f32[4] parameter(0)
  y = f32[4] parameter(1)
  a = f32[4] subtract(x, y)
  b = f32[4] multiply(a, x)
  c = f32[4] subtract({operands})
  d = f32[4] multiply(c, y)
  ROOT e = (f32[4]) tuple(d)"""
    )
    assert len(calls(passed(text, ALL))) == 2


def test_operands_within_must_be_the_same() -> None:
    text = entry(
        """  x = f32[4] parameter(0)
  a = f32[4] exponential(x)
  b = f32[4] subtract(a, x)
  c = f32[4] exponential(b)
  d = f32[4] subtract(b, c)
  ROOT r = (f32[4]) tuple(d)"""
    )
    assert calls(passed(text, ALL)) == []


@pytest.mark.parametrize(
    "op",
    [
        "f32[4] rng(z, o), distribution=rng_uniform",
        'f32[4] custom-call(x), custom_call_target="t", custom_call_has_side_effect=true',
        "f32[4] all-reduce(x), replica_groups={}, to_apply=sum",
    ],
)
def test_what_acts_or_meets_stays_where_it_is(op: str) -> None:
    before = (
        "sum {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}\n"
    )
    text = entry(
        f"""  x = f32[4] parameter(0)
  z = f32[] constant(0)
  o = f32[] constant(1)
  p = {op}
  q = {op}
  r = {op}
  s = f32[4] add(p, q)
  ROOT t = (f32[4], f32[4]) tuple(r, s)""",
        before,
    )
    after = passed(text, ALL, evaluated=False)
    assert calls(after) == []


def test_a_small_computation_is_left_alone() -> None:
    text = layered_text(0, 4)
    assert passed(text, "outline-blocks").entry == parsed(text).entry


def test_many_layers_take_linear_work() -> None:
    after = passed(layered_text(3, 60), ALL, evaluated=False, settled=False)
    assert len(calls(after)) >= 58
    assert len(set(calls(after))) == 1
