"""`expand-bitcasts`: what layouts mean is said by transposes and reshapes."""

import pytest

from tests.support.passes import entry, opcodes, passed, root


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("f32[2,3]{1,0}", "f32[6]{0}", ["reshape"]),
        ("f32[2,3]{0,1}", "f32[3,2]{1,0}", ["transpose"]),
        ("f32[2,3]{0,1}", "f32[6]{0}", ["transpose", "reshape"]),
        ("f32[6]{0}", "f32[2,3]{0,1}", ["reshape", "transpose"]),
        ("f32[2,3,5]{0,2,1}", "f32[10,3]{0,1}", ["transpose", "reshape", "transpose"]),
        ("f32[2,3]{1,0}", "s32[2,3]{1,0}", ["bitcast-convert"]),
        ("f32[4]{0}", "u8[16]{0}", ["bitcast-convert", "reshape"]),
        ("u8[4,4]{0,1}", "f32[4]{0}", ["transpose", "bitcast-convert"]),
    ],
)
def test_layouts_become_ops(before: str, after: str, expected: list[str]) -> None:
    text = entry(f"  p = {before} parameter(0)\n  ROOT b = {after} bitcast(p)")
    made = passed(text, "expand-bitcasts")
    assert opcodes(made) == expected
    assert (root(made).name, str(root(made).shape)) == ("b", after)


def test_a_bitcast_to_the_same_is_its_operand() -> None:
    text = entry("  p = f32[2,3]{0,1} parameter(0)\n  ROOT b = f32[2,3]{0,1} bitcast(p)")
    assert opcodes(passed(text, "expand-bitcasts")) == []


def test_the_layout_that_counts_is_the_one_written() -> None:
    """A copy to another layout may not be dropped before the bitcast has been read."""
    text = entry(
        "  p = f32[2,3]{1,0} parameter(0)\n  c = f32[2,3]{0,1} copy(p)\n"
        "  ROOT b = f32[3,2]{1,0} bitcast(c)"
    )
    assert opcodes(passed(text, "simplify-algebra")) == ["transpose"]
