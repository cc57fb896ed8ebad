"""`eliminate-dead-code`: instructions, what loops and branches carry, computations."""

from hloipu_compiler.passes import run_passes
from tests.support.passes import entry, opcodes, parsed, passed, root

LOOP = """body {
  s = (s32[], f32[], f32[], f32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[] get-tuple-element(s), index=1
  y = f32[] get-tuple-element(s), index=2
  z = f32[] get-tuple-element(s), index=3
  one = s32[] constant(1)
  j = s32[] add(i, one)
  u = f32[] cosine(x)
  v = f32[] sine(y)
  w = f32[] add(z, x)
  ROOT t = (s32[], f32[], f32[], f32[]) tuple(j, u, v, w)
}

below {
  s = (s32[], f32[], f32[], f32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  y = f32[] get-tuple-element(s), index=2
  n = s32[] constant(3)
  ROOT r = pred[] compare(i, n), direction=LT
}
"""
STATE = "(s32[], f32[], f32[], f32[])"


def loop(index: int) -> str:
    return entry(
        "  p = f32[] parameter(0)\n  zero = s32[] constant(0)\n  d = f32[] tanh(p)\n"
        f"  t = {STATE} tuple(zero, p, d, p)\n"
        f"  w = {STATE} while(t), condition=below, body=body\n"
        f"  ROOT r = f32[] get-tuple-element(w), index={index}",
        LOOP,
    )


def test_dead_instructions_and_computations_go() -> None:
    text = entry(
        "  p = f32[2] parameter(0)\n  q = f32[2] parameter(1)\n  a = f32[2] sine(p)\n"
        "  b = f32[2] cosine(a)\n  ROOT r = f32[2] negate(p)",
        "unused {\n  x = f32[] parameter(0)\n  ROOT s = f32[] sine(x)\n}\n",
    )
    after = passed(text, "eliminate-dead-code")
    assert opcodes(after) == ["negate"]
    assert len(after.entry.parameters) == 2
    assert [c.name for c in after.computations] == ["e"]


def test_state_that_only_feeds_itself_goes() -> None:
    after = passed(loop(1), "eliminate-dead-code")
    assert opcodes(after, "body") == [
        "get-tuple-element", "get-tuple-element", "constant", "add", "cosine", "tuple",
    ]  # fmt: skip
    assert str(root(after).attributes["index"]) == "1"
    assert len(after.entry["w"].shape.elements) == 2  # type: ignore[union-attr]
    assert "tanh" not in opcodes(after)


def test_state_that_feeds_the_result_through_another_element_stays() -> None:
    after = passed(loop(3), "eliminate-dead-code")
    assert len(after.entry["w"].shape.elements) == 3  # type: ignore[union-attr]
    assert "sine" not in opcodes(after, "body")


def test_state_of_a_loop_that_is_the_result_stays() -> None:
    text = entry(
        f"  p = {STATE} parameter(0)\n  ROOT w = {STATE} while(p), condition=below, body=body", LOOP
    )
    after = passed(text, "eliminate-dead-code")
    assert len(root(after).shape.elements) == 4


def test_state_from_a_parameter_is_taken_apart() -> None:
    text = entry(
        f"  p = {STATE} parameter(0)\n  w = {STATE} while(p), condition=below, body=body\n"
        "  ROOT r = f32[] get-tuple-element(w), index=2",
        LOOP,
    )
    after = passed(text, "eliminate-dead-code")
    assert opcodes(after) == [
        "get-tuple-element", "get-tuple-element", "tuple", "while", "get-tuple-element",
    ]  # fmt: skip


def test_shared_bodies_are_left_alone() -> None:
    text = entry(
        f"  p = {STATE} parameter(0)\n  w = {STATE} while(p), condition=below, body=body\n"
        f"  v = {STATE} while(w), condition=below, body=body\n"
        "  ROOT r = f32[] get-tuple-element(v), index=1",
        LOOP,
    )
    after = passed(text, "eliminate-dead-code")
    assert len(after.entry["w"].shape.elements) == 4  # type: ignore[union-attr]


def test_branches_give_and_take_what_is_read() -> None:
    pair = "(f32[], f32[])"
    branch = (
        "{0} {{\n  s = (f32[], f32[]) parameter(0)\n  a = f32[] get-tuple-element(s), index=1\n"
        "  b = f32[] {1}(a)\n  c = f32[] tanh(a)\n  ROOT t = (f32[], f32[]) tuple(b, c)\n}}\n"
    )
    text = entry(
        f"  i = pred[] parameter(0)\n  p = f32[] parameter(1)\n  q = f32[] sine(p)\n"
        f"  t = {pair} tuple(q, p)\n"
        f"  c = {pair} conditional(i, t, t), true_computation=f, false_computation=g\n"
        "  ROOT r = f32[] get-tuple-element(c), index=0",
        branch.format("f", "cosine") + "\n" + branch.format("g", "sine"),
    )
    after = passed(text, "eliminate-dead-code")
    assert "sine" not in opcodes(after)
    assert opcodes(after, "f") == ["get-tuple-element", "cosine", "tuple"]


def test_effects_stay() -> None:
    text = entry(
        "  p = f32[2] parameter(0)\n  t = token[] after-all()\n"
        "  o = token[] outfeed(p, t), outfeed_shape=f32[2]\n"
        '  u = f32[2] custom-call(p), custom_call_target="x", custom_call_has_side_effect=true\n'
        '  v = f32[2] custom-call(p), custom_call_target="y"\n  ROOT r = f32[2] negate(p)'
    )
    after, _ = run_passes(parsed(text), None, "eliminate-dead-code")
    assert opcodes(after) == ["after-all", "outfeed", "custom-call", "negate"]


def test_who_waits_for_dead_code_waits_no_more() -> None:
    text = entry(
        "  p = f32[2] parameter(0)\n  a = f32[2] sine(p)\n"
        "  ROOT r = f32[2] negate(p), control-predecessors={a}"
    )
    after = passed(text, "eliminate-dead-code")
    assert "control-predecessors" not in root(after).attributes
