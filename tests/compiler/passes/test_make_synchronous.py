"""`make-synchronous`: starts and dones become the plain op."""

import pytest

from tests.support.passes import SUM, entry, opcodes, parsed, passed, root

RUN = "make-synchronous,simplify-tuples,eliminate-dead-code"
TWO = "HloModule m, replica_count=2\n\n"


@pytest.mark.parametrize(
    ("start", "done", "expected"),
    [
        ("f32[4] all-reduce-start(p), replica_groups={{0,1}}, to_apply=sum",
         "f32[4] all-reduce-done(s)", "all-reduce"),
        ("(f32[4], f32[8]) all-gather-start(p), replica_groups={{0,1}}, dimensions={0}",
         "f32[8] all-gather-done(s)", "all-gather"),
        ("(f32[4], f32[4], u32[], u32[]) collective-permute-start(p), source_target_pairs={{0,1}}",
         "f32[4] collective-permute-done(s)", "collective-permute"),
    ],
)  # fmt: skip
def test_collectives(start: str, done: str, expected: str) -> None:
    text = entry(f"  p = f32[4] parameter(0)\n  s = {start}\n  ROOT d = {done}", SUM)
    text = text.replace("HloModule m\n\n", TWO)
    parsed(text)
    after = passed(text, RUN)
    assert opcodes(after) == [expected]
    assert root(after).attributes.keys() == parsed(text).entry["s"].attributes.keys()


def test_gathers_of_several_operands() -> None:
    shape = "((f32[4], s32[2]), (f32[8], s32[4]))"
    text = entry(
        "  p = f32[4] parameter(0)\n  q = s32[2] parameter(1)\n"
        f"  s = {shape} all-gather-start(p, q), replica_groups={{{{0,1}}}}, dimensions={{0}}\n"
        "  ROOT d = (f32[8], s32[4]) all-gather-done(s)"
    ).replace("HloModule m\n\n", TWO)
    assert opcodes(passed(text, RUN)) == ["all-gather"]


def test_copies() -> None:
    text = entry(
        "  p = f32[2] parameter(0)\n  s = (f32[2], f32[2], u32[]) copy-start(p)\n"
        "  d = f32[2] copy-done(s)\n  ROOT r = f32[2] negate(d)"
    )
    assert opcodes(passed(text, RUN)) == ["negate"]
