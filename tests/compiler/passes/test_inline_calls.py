"""`inline-calls`: nothing calls any more, and loops own what they run."""

import pytest

from hloipu_compiler.ir.graph import Module
from hloipu_compiler.passes import run_passes
from hloipu_compiler.passes.framework import call_forms
from hloipu_runtime.errors import LimitError
from tests.support.passes import SUM, entry, opcodes, parsed, passed, root

TWICE = """inner {
  x = f32[4] parameter(0)
  ROOT s = f32[4] sine(x), metadata={op_name="sine"}
}

outer {
  x = f32[4] parameter(0)
  a = f32[4] call(x), to_apply=inner
  ROOT b = f32[4] call(a), to_apply=inner
}
"""


def names(module: Module) -> list[str]:
    return [x.name for x in module.entry.instructions]


def test_nested_calls_are_written_out() -> None:
    text = entry("  s = f32[4] parameter(0)\n  ROOT r = f32[4] call(s), to_apply=outer", TWICE)
    after = passed(text, "inline-calls")
    assert opcodes(after) == ["sine", "sine"]
    assert names(after) == ["s", "s.1", "s.2"]
    assert root(after).metadata == '{op_name="sine"}'
    assert [c.name for c in after.computations] == ["e"]


def test_a_call_lends_its_metadata() -> None:
    callee = "f {\n  x = f32[] parameter(0)\n  ROOT s = f32[] sine(x)\n}\n"
    body = '  p = f32[] parameter(0)\n  ROOT r = f32[] call(p), to_apply=f, metadata={op_name="c"}'
    assert root(passed(entry(body, callee), "inline-calls")).metadata == '{op_name="c"}'


@pytest.mark.parametrize("kind", ["kLoop", "kOutput", "kInput", "kCustom"])
def test_fusions_of_any_kind(kind: str) -> None:
    callee = """f {
  x = f32[4] parameter(0)
  y = f32[4] exponential(x)
  ROOT s = f32[4] add(x, y)
}
"""
    body = f"  p = f32[4] parameter(0)\n  ROOT r = f32[4] fusion(p), kind={kind}, calls=f"
    assert opcodes(passed(entry(body, callee), "inline-calls")) == ["exponential", "add"]


def test_calls_inside_of_what_a_reduction_applies() -> None:
    callee = (
        SUM
        + "region {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n"
        + ("  ROOT c = f32[] call(a, b), to_apply=sum\n}\n")
    )
    body = "  p = f32[8] parameter(0)\n  z = f32[] constant(0)\n" + (
        "  ROOT r = f32[] reduce(p, z), dimensions={0}, to_apply=region"
    )
    after = passed(entry(body, callee), "inline-calls")
    assert opcodes(after, "region") == ["add"]
    assert root(after).attributes.called == ("region",)


def test_loops_that_share_a_body_get_one_each() -> None:
    loop = """body {
  s = (s32[], f32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[] get-tuple-element(s), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  y = f32[] cosine(x)
  ROOT t = (s32[], f32[]) tuple(j, y)
}

below {
  s = (s32[], f32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT r = pred[] compare(i, n), direction=LT
}
"""
    body = """  p = f32[] parameter(0)
  z = s32[] constant(0)
  t = (s32[], f32[]) tuple(z, p)
  u = (s32[], f32[]) while(t), condition=below, body=body
  ROOT v = (s32[], f32[]) while(u), condition=below, body=body"""
    after = passed(entry(body, loop), "inline-calls")
    called = [name for x in after.entry.instructions for name in x.attributes.called]
    assert sorted(called) == ["below", "below.1", "body", "body.1"]
    assert opcodes(after, "body") == opcodes(after, "body.1")


def test_a_branch_taken_twice_in_one_conditional() -> None:
    callee = "f {\n  x = f32[] parameter(0)\n  ROOT s = f32[] sine(x)\n}\n"
    body = "  i = s32[] parameter(0)\n  p = f32[] parameter(1)\n" + (
        "  ROOT r = f32[] conditional(i, p, p, p), branch_computations={f, f, f}"
    )
    after = passed(entry(body, callee), "inline-calls")
    assert len(set(root(after).attributes.called)) == 3


def test_asynchronous_wrappers() -> None:
    callee = "f {\n  x = f32[4] parameter(0)\n  ROOT s = f32[4] sine(x)\n}\n"
    body = """  p = f32[4] parameter(0)
  a = ((f32[4]), f32[4], u32[]) async-start(p), calls=f
  b = ((f32[4]), f32[4], u32[]) async-update(a), calls=f
  ROOT c = f32[4] async-done(b), calls=f"""
    assert opcodes(passed(entry(body, callee), "inline-calls")) == ["sine"]


def test_control_predecessors_follow_what_they_name() -> None:
    callee = """f {
  x = f32[4] parameter(0)
  a = f32[4] sine(x)
  b = f32[4] cosine(x), control-predecessors={a}
  ROOT s = f32[4] add(a, b)
}
"""
    body = """  a = f32[4] parameter(0)
  c = f32[4] call(a), to_apply=f
  d = f32[4] negate(a), control-predecessors={c}
  ROOT r = f32[4] add(c, d)"""
    after = passed(entry(body, callee), "inline-calls")
    assert after.entry["b"].attributes["control-predecessors"] == ("a.1",)
    assert after.entry["d"].attributes["control-predecessors"] == ("s",)


def test_a_module_without_calls_is_the_same_module() -> None:
    module = parsed(entry("  p = f32[] parameter(0)\n  ROOT r = f32[] sine(p)"))
    assert run_passes(module, None, "inline-calls")[0] is module


def doubling(depth: int) -> str:
    rows = ["f0 {\n  x = f32[] parameter(0)\n  ROOT r = f32[] copy(x)\n}\n"]
    rows += [
        f"f{i} {{\n  x = f32[] parameter(0)\n  a = f32[] call(x), to_apply=f{i - 1}\n"
        f"  ROOT r = f32[] call(a), to_apply=f{i - 1}\n}}\n"
        for i in range(1, depth)
    ]
    body = f"  p = f32[] parameter(0)\n  ROOT r = f32[] call(p), to_apply=f{depth - 1}"
    return entry(body, "\n".join(rows))


def test_a_thousand_uses_are_a_thousand_copies() -> None:
    after, _ = run_passes(parsed(doubling(11)), None, "inline-calls")
    assert opcodes(after) == ["copy"] * 1024


def test_powers_of_calls_end_at_the_limit() -> None:
    with pytest.raises(LimitError, match="more than 50,000 instructions") as error:
        run_passes(parsed(doubling(90)), None, "inline-calls")
    assert (error.value.code, error.value.limit) == ("E5020", "most_instructions")
    with pytest.raises(LimitError, match="more than 100 instructions"):
        run_passes(parsed(doubling(11)), None, "inline-calls{most-instructions=100}")


def test_long_texts_may_make_more_than_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_forms, "MOST_INSTRUCTIONS", 100)
    own = "".join(f"  x{n} = f32[] copy(p)\n" for n in range(90))
    calls = "".join(f"  c{n} = f32[] call(p), to_apply=f\n" for n in range(20))
    called = f"f {{\n  p = f32[] parameter(0)\n{own}  ROOT r = f32[] copy(p)\n}}\n"
    short = parsed(entry("  p = f32[] parameter(0)\n" + calls + "  ROOT r = f32[] copy(p)", called))
    with pytest.raises(LimitError, match="more than 456 instructions"):
        call_forms.check_inlined_size(short, 100)
    long = parsed(
        entry("  p = f32[] parameter(0)\n" + own + "  ROOT r = f32[] call(p), to_apply=f", called)
    )
    call_forms.check_inlined_size(long, 100)


def test_deep_chains_need_no_recursion() -> None:
    rows = ["f0 {\n  x = f32[] parameter(0)\n  ROOT r = f32[] copy(x)\n}\n"]
    rows += [
        f"f{i} {{\n  x = f32[] parameter(0)\n  ROOT r = f32[] call(x), to_apply=f{i - 1}\n}}\n"
        for i in range(1, 3000)
    ]
    body = "  p = f32[] parameter(0)\n  ROOT r = f32[] call(p), to_apply=f2999"
    after, _ = run_passes(parsed(entry(body, "\n".join(rows))), None, "inline-calls")
    assert opcodes(after) == ["copy"]
