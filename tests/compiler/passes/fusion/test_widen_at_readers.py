"""`fuse-elementwise` widens f16 at readers: every reader has its own copy, an expression one."""

from hloipu_compiler.passes.fusion.fuse_elementwise import elementwise_fused, copied_to_readers
from hloipu_compiler.plan.plan import Plan
from tests.support.passes import SUM, assert_same_values, entry, opcodes, parsed

BODY = """\
  x = {t}[8,9] parameter(0)
  w = f32[8,9] convert(x)
  z = f32[] constant(0)
  s = f32[8] reduce(w, z), dimensions={{1}}, to_apply=sum
  e = f32[8,9] exponential(w)
  q = f32[8,9] multiply(w, w)
  m = f32[8,9] add(e, q)
  ROOT r = (f32[8], f32[8,9]) tuple(s, m)"""


def test_readers_widen_for_themselves() -> None:
    module = parsed(entry(BODY.format(t="f16"), SUM))
    name = module.entry.name
    given = Plan(ipus={(name, x.name): 2 for x in module.entry.instructions})
    made, plan = copied_to_readers(module, given)
    assert opcodes(made).count("convert") == 4
    assert {(name, x.name) for x in made.entry.instructions} == set(plan.ipus)
    assert_same_values(module, made)
    fused = elementwise_fused(made, 64)
    (body,) = (c for c in fused.computations if c.name.startswith("fused"))
    assert [x.opcode for x in body.instructions].count("convert") == 1
    assert_same_values(module, fused)


def test_what_stays() -> None:
    for text in (BODY.format(t="s16"), BODY.format(t="f16").replace("(w, w)", "(e, e)")):
        module = parsed(entry(text, SUM))
        made = copied_to_readers(module, Plan())[0]
        assert (made is module) == ("s16" in text)
