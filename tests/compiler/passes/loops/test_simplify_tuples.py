"""`simplify-tuples`: elements are read where tuples were made."""

from hloipu_compiler.passes import run_passes
from tests.support.passes import entry, opcodes, parsed, passed

T = "(f32[2], s32[])"


def test_an_element_of_a_tuple_is_what_was_put_there() -> None:
    text = entry(
        f"  p = f32[2] parameter(0)\n  q = s32[] parameter(1)\n  t = {T} tuple(p, q)\n"
        "  a = f32[2] get-tuple-element(t), index=0\n  ROOT r = f32[2] negate(a)"
    )
    after = passed(text, "simplify-tuples,eliminate-dead-code")
    assert opcodes(after) == ["negate"]


def test_a_tuple_of_all_elements_is_the_tuple() -> None:
    text = entry(
        f"  p = {T} parameter(0)\n  a = f32[2] get-tuple-element(p), index=0\n"
        f"  b = s32[] get-tuple-element(p), index=1\n  ROOT r = {T} tuple(a, b)"
    )
    after = passed(text, "simplify-tuples,eliminate-dead-code")
    assert opcodes(after) == []


def test_a_tuple_of_some_elements_or_in_another_order_is_another() -> None:
    pair = "(f32[2], f32[2])"
    for index in ((1, 0), (0, 0)):
        text = entry(
            f"  p = {pair} parameter(0)\n"
            f"  a = f32[2] get-tuple-element(p), index={index[0]}\n"
            f"  b = f32[2] get-tuple-element(p), index={index[1]}\n  ROOT r = {pair} tuple(a, b)"
        )
        assert opcodes(passed(text, "simplify-tuples"))[-1] == "tuple"
    longer = "(f32[2], f32[2], f32[2])"
    text = entry(
        f"  p = {longer} parameter(0)\n  a = f32[2] get-tuple-element(p), index=0\n"
        f"  b = f32[2] get-tuple-element(p), index=1\n  ROOT r = {pair} tuple(a, b)"
    )
    assert opcodes(passed(text, "simplify-tuples"))[-1] == "tuple"


def test_copies_of_tuples() -> None:
    text = entry(
        f"  p = {T} parameter(0)\n  c = {T} copy(p)\n"
        "  a = f32[2] get-tuple-element(c), index=0\n"
        "  ROOT d = f32[2] negate(a)"
    )
    after = passed(text, "simplify-tuples,eliminate-dead-code")
    assert opcodes(after) == ["get-tuple-element", "negate"]


def test_barriers_stay() -> None:
    text = entry(
        f"  p = {T} parameter(0)\n  c = {T} opt-barrier(p)\n"
        "  ROOT a = f32[2] get-tuple-element(c), index=0"
    )
    module = parsed(text)
    assert run_passes(module, None, "simplify-tuples")[0] is module
