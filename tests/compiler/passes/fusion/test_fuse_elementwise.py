"""Rounds of integers: written out from short loops, and fused with several results."""

import numpy as np

from hloipu_compiler.hlo.printing.printer import print_module
from hloipu_compiler.interpret.participants import evaluate_everywhere
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.passes import run_passes
from hloipu_compiler.passes.fusion.fuse_elementwise import elementwise_fused
from tests.support.cases import each
from tests.support.on_tiles import check_on_tiles
from tests.support.passes import assert_same_values, entry, opcodes, parsed

CONDITION = """test {
  s = (s32[], u32[7], u32[7], u32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(%d)
  ROOT r = pred[] compare(i, n), direction=LT
}
"""
ROUND = """body {
  s = (s32[], u32[7], u32[7], u32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = u32[7] get-tuple-element(s), index=1
  y = u32[7] get-tuple-element(s), index=2
  t = u32[4] get-tuple-element(s), index=3
  one = s32[] constant(1)
  j = s32[] add(i, one)
  a = u32[7] add(x, y)
  first = u32[1] slice(t), slice={[0:1]}
  rest = u32[3] slice(t), slice={[1:4]}
  k = u32[] reshape(first)
  all = u32[] constant(32)
  m = u32[] subtract(all, k)
  kb = u32[7] broadcast(k), dimensions={}
  mb = u32[7] broadcast(m), dimensions={}
  l = u32[7] shift-left(y, kb)
  h = u32[7] shift-right-logical(y, mb)
  o = u32[7] or(l, h)
  b = u32[7] xor(a, o)
  c = u32[7] add(a, b)
  ROOT r = (s32[], u32[7], u32[7], u32[4]) tuple(j, c, b, t)
}
"""
START = """\
  x = u32[7] parameter(0)
  y = u32[7] parameter(1)
  t = u32[4] constant({13, 15, 26, 6})
  zero = s32[] constant(0)
  s = (s32[], u32[7], u32[7], u32[4]) tuple(zero, x, y, t)
  w = (s32[], u32[7], u32[7], u32[4]) while(s), condition=test, body=body
  p = u32[7] get-tuple-element(w), index=1
  q = u32[7] get-tuple-element(w), index=2
  ROOT r = (u32[7], u32[7]) tuple(p, q)"""


def _loop(turns: int) -> str:
    return entry(START, CONDITION % turns + "\n" + ROUND)


@each(("turns", "stays"), [(1, False), (5, False), (8, False), (9, True)])
def test_short_loops_of_rounds_become_a_few_kernels(turns: int, stays: bool) -> None:
    module = parsed(_loop(turns))
    after, _ = run_passes(module)
    assert_same_values(module, after)
    assert ("while" in opcodes(after)) is stays
    if not stays:
        assert opcodes(after).count("fusion") <= 1 + turns * 7 // 64
        inputs = [np.arange(7, dtype=np.uint32), np.arange(7, dtype=np.uint32) * 77777]
        expected = [np.asarray(x) for x in evaluate_everywhere(module, *inputs)]
        check_on_tiles(print_module(after), inputs, expected)


def _fused(body: str) -> Module:
    module = parsed(entry(body))
    after = elementwise_fused(module, 64)
    assert_same_values(module, after)
    return after


TWICE = """\
  x = {t}[9] parameter(0)
  y = {t}[9] parameter(1)
  a = {t}[9] add(x, y)
  b = {t}[9] multiply(a, y)
  c = {t}[9] subtract(a, x)
"""


def test_integers_of_two_readers_are_fused_with_both() -> None:
    both = "  ROOT r = ({t}[9], {t}[9]) tuple(b, c)"
    assert opcodes(_fused((TWICE + both).format(t="u32"))).count("fusion") == 1
    # Floats that several read are left to regions of rows.
    assert "fusion" not in opcodes(_fused((TWICE + both).format(t="f32")))


def test_a_result_that_is_read_before_the_group_ends_is_not_put_off() -> None:
    """`d` reads b, and c reads what becomes of it: together they would wait for each other."""
    later = (
        "  d = {t}[9] reverse(b), dimensions={{0}}\n  e = {t}[9] add(c, d)\n"
        "  f = {t}[9] add(e, a)\n  ROOT r = ({t}[9], {t}[9]) tuple(b, f)"
    )
    assert "reverse" in opcodes(_fused((TWICE + later).format(t="u32")))


def _gradients_added_up(n: int, terms: int) -> str:
    """Return a text that adds up products in turn, and makes something of the sum."""
    lines = [f"  w = f32[{n},{n}] parameter(0)"]
    for k in range(terms):
        lines += [
            f"  x{k} = f32[{n},2] parameter({k + 1})",
            f"  g{k} = f32[{n},{n}] dot(x{k}, x{k}), lhs_contracting_dims={{1}}, "
            "rhs_contracting_dims={1}",
        ]
        if k:
            left = f"s{k - 1}" if k > 1 else "g0"
            lines += [f"  s{k} = f32[{n},{n}] add({left}, g{k})"]
    lines += [f"  h = f32[{n},{n}] negate(s{terms - 1})", f"  ROOT r = f32[{n},{n}] add(w, h)"]
    return "\n".join(lines)


def test_large_terms_are_added_up_as_they_come() -> None:
    """At most two gradients of a weight lie in memory at once; small ones are added at the end."""
    for n, sums in ((3000, 3), (30, 1)):
        after = _fused(_gradients_added_up(n, terms=4))
        made = [x for x in after.entry.instructions if x.opcode in ("add", "fusion")]
        assert len(made) == sums
        assert max(len(x.operands) for x in made) == (3 if n == 3000 else 5)
    assert_same_values(parsed(entry(_gradients_added_up(30, 4))), after)
