"""`fuse-elementwise` copies what is cheap to its readers, and an expression has it once."""

from hloipu_compiler.passes.eliminate_dead_code import dead_code_eliminated
from hloipu_compiler.passes.fusion.fuse_elementwise import copied_to_readers, elementwise_fused
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


NORM = """\
  x = f16[8,9] parameter(0)
  m = f16[9] parameter(1)
  b = f16[8,9] broadcast(m), dimensions={1}
  d = f16[8,9] subtract(x, b)
  w = f32[8,9] convert(d)
  z = f32[] constant(0)
  s = f32[9] reduce(w, z), dimensions={0}, to_apply=sum
  e = f16[8,9] exponential(d)
  q = f16[8,9] multiply(d, e)
  ROOT r = (f32[9], f16[8,9]) tuple(s, q)"""


def test_differences_are_computed_at_readers() -> None:
    module = parsed(entry(NORM, SUM))
    after = elementwise_fused(copied_to_readers(module, Plan())[0], 64)
    assert_same_values(module, after)
    assert "subtract" not in opcodes(dead_code_eliminated(after))
    # A value that is a result, or that no region of its readers' sizes has in it, stays.
    for kept in (NORM.replace("(s, q)", "(s, d)").replace("f16[8,9] q", "f16[8,9] d"),
                 NORM.replace("multiply(d, e)", "transpose(d), dimensions={0,1}")):  # fmt: skip
        module = parsed(entry(kept, SUM))
        after = elementwise_fused(copied_to_readers(module, Plan())[0], 64)
        assert "subtract" in opcodes(dead_code_eliminated(after))
