"""Sums of rows with zeros around them are rows side by side."""

import pytest

from hloipu_compiler.partition.scans.rows_apart import rows_joined
from tests.support.passes import assert_same_values, parsed

HEAD = """HloModule m

ENTRY e {
  a = f32[1,3] parameter(0)
  b = f32[2,3] parameter(1)
  c = f32[1,3] parameter(2)
  z = f32[] constant(0)
  o = f32[] constant(1)
"""


def text(lines: str, result: str = "g") -> str:
    return f"{HEAD}  {lines}\n  ROOT r = (f32[6,3]) tuple({result})\n}}\n"


SPREAD = """p = f32[6,3] pad(a, z), padding=0_5x0_0
  q = f32[6,3] pad(b, z), padding=3_1x0_0
  s = f32[6,3] pad(c, z), padding=1_4x0_0
"""
ADDED = "h = f32[6,3] add(s, q)\n  g = f32[6,3] add(h, p)"


@pytest.mark.parametrize(
    ("lines", "sizes"),
    [
        (SPREAD + f"  {ADDED}", [1, 1, 1, 2, 1]),
        (SPREAD + "  g = f32[6,3] add(s, q)", [1, 1, 1, 2, 1]),
        (SPREAD + "  g = f32[6,3] add(p, s)", [1, 1, 4]),
    ],
)
def test_rows_stand_side_by_side(lines: str, sizes: list[int]) -> None:
    module = parsed(text(lines))
    made = rows_joined(module)
    assert_same_values(module, made)
    entry = made.entry
    (joined,) = (x for x in entry.instructions if x.opcode == "concatenate")
    assert joined.name == "g"
    assert [entry.instructions[i].shape.dimensions[0] for i in joined.operands] == sizes  # type: ignore[union-attr]
    assert not {"pad", "add"} & {x.opcode for x in entry.instructions}


@pytest.mark.parametrize(
    "lines",
    [
        SPREAD.replace("3_1x", "1_3x") + f"  {ADDED}",  # two have a row in common
        SPREAD.replace("pad(b, z)", "pad(b, o)") + "  g = f32[6,3] add(s, q)",
        SPREAD + "  g = f32[6,3] multiply(s, q)",
        SPREAD + "  g = f32[6,3] add(p, p)",
        SPREAD + "  n = f32[6,3] negate(p)\n  g = f32[6,3] add(n, q)",
    ],
)
def test_other_sums_stay(lines: str) -> None:
    module = parsed(text(lines))
    assert rows_joined(module) is module


def test_what_else_is_added_is_added_to_the_rows() -> None:
    lines = f"{SPREAD}  {ADDED}\n  n = f32[6,3] broadcast(o), dimensions={{}}\n" \
        "  k = f32[6,3] add(g, n)"  # fmt: skip
    module = parsed(text(lines, "k"))
    made = rows_joined(module)
    assert_same_values(module, made)
    assert [x.opcode for x in made.entry.instructions].count("add") == 1


def test_a_sum_within_is_kept_where_something_else_reads_it() -> None:
    lines = f"{SPREAD}  {ADDED}\n  k = f32[6,3] multiply(h, g)"
    module = parsed(text(lines, "k"))
    assert_same_values(module, rows_joined(module))


def test_columns_are_joined_too() -> None:
    body = """HloModule m

ENTRY e {
  a = s32[2,1] parameter(0)
  b = s32[2,2] parameter(1)
  z = s32[] constant(0)
  p = s32[2,3] pad(a, z), padding=0_0x2_0
  q = s32[2,3] pad(b, z), padding=0_0x0_1
  ROOT g = s32[2,3] add(p, q)
}
"""
    module = parsed(body)
    made = rows_joined(module)
    assert_same_values(module, made)
    assert made.entry.instructions[made.entry.root].opcode == "concatenate"
