"""Updates that go weight by weight."""

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.ir.graph import Computation
from hloipu_compiler.lowering.pipelines.draft import order_by_results


def entry(text: str) -> Computation:
    return parse(f"HloModule m\nENTRY e {{\n{text}\n}}\n").entry


UPDATE = """
  m0 = f32[4] parameter(0)
  m1 = f32[4] parameter(1)
  w0 = f32[4] parameter(2)
  w1 = f32[4] parameter(3)
  g0 = f32[4] parameter(4)
  g1 = f32[4] parameter(5)
  n0 = f32[4] add(m0, g0)
  n1 = f32[4] add(m1, g1)
  s0 = f32[4] negate(n0)
  s1 = f32[4] negate(n1)
  v0 = f32[4] add(w0, s0)
  v1 = f32[4] add(w1, s1)
  ROOT t = (f32[4], f32[4], f32[4], f32[4]) tuple(n0, n1, v0, v1)
"""


def test_all_of_a_weight_comes_before_the_next() -> None:
    old = entry(UPDATE)
    new = order_by_results(old)
    names = [x.name for x in new.instructions]
    assert names[6:] == ["n0", "s0", "v0", "n1", "s1", "v1", "t"]
    assert names[:6] == [x.name for x in old.instructions[:6]]
    assert new.instructions[new.root].name == "t"
    read = {x.name: [names[i] for i in x.operands] for x in new.instructions}
    for x in old.instructions:
        assert read[x.name] == [old.instructions[i].name for i in x.operands]


def test_what_several_weights_need_comes_with_the_first() -> None:
    shared = UPDATE.replace("add(m1, g1)", "add(m1, both)").replace("add(m0, g0)", "add(m0, both)")
    update = entry(shared.replace("  n0 =", "  both = f32[4] multiply(g0, g1)\n  n0 ="))
    names = [x.name for x in order_by_results(update).instructions]
    assert names[6:] == ["both", "n0", "s0", "v0", "n1", "s1", "v1", "t"]


def test_effects_and_what_has_one_result_stay_as_they_are() -> None:
    single = entry("  a = f32[4] parameter(0)\n  ROOT b = f32[4] negate(a)")
    assert order_by_results(single) is single
    drawn = entry(
        UPDATE.replace("negate(n0)", "rng(lo, hi), distribution=rng_uniform").replace(
            "  n0 =", "  lo = f32[] constant(0)\n  hi = f32[] constant(1)\n  n0 ="
        )
    )
    assert order_by_results(drawn) is drawn


def test_what_nothing_reads_stays() -> None:
    update = entry(UPDATE.replace("  ROOT t", "  idle = f32[4] negate(g1)\n  ROOT t"))
    names = [x.name for x in order_by_results(update).instructions]
    assert sorted(names) == sorted(x.name for x in update.instructions)
