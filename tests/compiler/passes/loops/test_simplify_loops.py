"""`simplify-loops`: constants move into loops and branches, unchanged state is read before them."""

from tests.support.passes import entry, opcodes, passed, root

RUN = "simplify-loops,eliminate-dead-code"
STATE = "(s32[], f32[4], f32[4], s32[])"
LOOP = f"""body {{
  s = {STATE} parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[4] get-tuple-element(s), index=1
  k = f32[4] get-tuple-element(s), index=2
  n = s32[] get-tuple-element(s), index=3
  one = s32[] constant(1)
  j = s32[] add(i, one)
  y = f32[4] multiply(x, k)
  ROOT t = {STATE} tuple(j, y, k, n)
}}

below {{
  s = {STATE} parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] get-tuple-element(s), index=3
  ROOT r = pred[] compare(i, n), direction=LT
}}
"""


def loop(index: int, factor: str) -> str:
    return entry(
        "  p = f32[4] parameter(0)\n  q = f32[4] parameter(1)\n  zero = s32[] constant(0)\n"
        f"  five = s32[] constant(5)\n{factor}\n  t = {STATE} tuple(zero, p, k, five)\n"
        f"  w = {STATE} while(t), condition=below, body=body\n"
        f"  ROOT r = f32[4] get-tuple-element(w), index={index}",
        LOOP,
    )


BROADCAST = "  h = f32[] constant(0.5)\n  k = f32[4] broadcast(h), dimensions={}"


def test_constants_move_into_bodies_and_conditions() -> None:
    after = passed(loop(1, BROADCAST), RUN)
    assert len(after.entry["w"].shape.elements) == 2  # type: ignore[union-attr]
    assert "broadcast" in opcodes(after, "body")
    assert "constant" in opcodes(after, "below")
    assert opcodes(after) == ["constant", "tuple", "while", "get-tuple-element"]


def test_unchanged_state_is_read_before_the_loop() -> None:
    after = passed(loop(2, "  k = f32[4] sine(q)"), RUN)
    assert opcodes(after) == ["sine"]


def test_unchanged_state_that_is_no_constant_stays_state() -> None:
    after = passed(loop(1, "  k = f32[4] sine(q)"), RUN)
    assert len(after.entry["w"].shape.elements) == 3  # type: ignore[union-attr]


def test_exchanged_elements_are_not_unchanged() -> None:
    text = loop(1, BROADCAST).replace("tuple(j, y, k, n)", "tuple(j, k, y, n)")
    after = passed(text, RUN)
    assert len(after.entry["w"].shape.elements) == 3  # type: ignore[union-attr]
    assert "broadcast" not in opcodes(after, "body")


def test_bodies_of_several_loops_stay() -> None:
    text = loop(1, BROADCAST).replace(
        f"  w = {STATE} while(t)",
        f"  v = {STATE} while(t), condition=below, body=body\n  w = {STATE} while(v)",
    )
    after = passed(text, "simplify-loops")
    assert "broadcast" not in opcodes(after, "body")
    assert "broadcast" in opcodes(passed(text, f"inline-calls,{RUN}", settled=False), "body")


def test_constants_move_into_branches() -> None:
    text = entry(
        "  i = pred[] parameter(0)\n  p = f32[] parameter(1)\n  two = f32[] constant(2)\n"
        "  t = (f32[], f32[]) tuple(p, two)\n"
        "  ROOT r = f32[] conditional(i, t, two), true_computation=f, false_computation=g",
        """f {
  s = (f32[], f32[]) parameter(0)
  a = f32[] get-tuple-element(s), index=0
  b = f32[] get-tuple-element(s), index=1
  ROOT c = f32[] multiply(a, b)
}

g {
  x = f32[] parameter(0)
  ROOT y = f32[] sqrt(x)
}
""",
    )
    after = passed(text, RUN, settled=False)
    assert opcodes(after, "f") == ["get-tuple-element", "constant", "multiply"]
    assert opcodes(after, "g") == ["constant", "sqrt"]
    after = passed(text, "front", settled=False)
    assert opcodes(after, "g") == ["constant"]


def test_a_bound_in_the_state_counts_the_loop() -> None:
    after = passed(loop(1, BROADCAST), "front")
    assert opcodes(after)[-2] == "while"
    assert root(after).opcode == "get-tuple-element"
