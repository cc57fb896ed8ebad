"""Comparators of sorts: each form that is read, and what each form means."""

import numpy as np
import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.evaluator import evaluate
from hloipu_compiler.interpret.planning.comparators import ComparatorKey, comparator_keys
from tests.support.arrays import f32, s32


def keys_of(lines: str, types: str = "f32") -> list[ComparatorKey] | None:
    return comparator_keys(parse(text_of(lines, types)), "c")


def text_of(lines: str, types: str) -> str:
    names = types.split()
    comparator = "".join(
        f"  {side}{i} = {t}[] parameter({2 * i + (side == 'b')})\n"
        for i, t in enumerate(names)
        for side in "ab"
    )
    entry = "".join(f"  x{i} = {t}[8] parameter({i})\n" for i, t in enumerate(names))
    shape = ", ".join(f"{t}[8]" for t in names)
    shape = f"({shape})" if len(names) > 1 else shape
    operands = ", ".join(f"x{i}" for i in range(len(names)))
    return (
        f"HloModule m\nc {{\n{comparator}{lines}}}\nENTRY e {{\n{entry}"
        f"  ROOT s = {shape} sort({operands}), dimensions={{0}}, to_apply=c\n}}\n"
    )


def compare(left: str, right: str, direction: str, order: str = "", name: str = "ROOT r") -> str:
    kind = f", type={order}" if order else ""
    return f"  {name} = pred[] compare({left}, {right}), direction={direction}{kind}\n"


@pytest.mark.parametrize(
    ("left", "right", "direction", "descending"),
    [
        ("a0", "b0", "LT", False), ("a0", "b0", "LE", False),
        ("a0", "b0", "GT", True), ("a0", "b0", "GE", True),
        ("b0", "a0", "LT", True), ("b0", "a0", "GT", False),
    ],
)  # fmt: skip
def test_one_comparison(left: str, right: str, direction: str, descending: bool) -> None:
    assert keys_of(compare(left, right, direction)) == [ComparatorKey(0, descending, "ieee", None)]
    assert keys_of(compare(left, right, direction, "TOTALORDER")) == [
        ComparatorKey(0, descending, "total", None)
    ]


def test_the_key_may_be_any_operand() -> None:
    assert keys_of(compare("a1", "b1", "GT"), "f32 s32") == [ComparatorKey(1, True, "ieee", None)]


CANONICAL = """  nan = f32[] constant(nan)
  zero = f32[] constant(0)
  ane = pred[] compare(a0, a0), direction=NE
  aeq = pred[] compare(a0, zero), direction=EQ
  az = f32[] select(aeq, zero, a0)
  ac = f32[] select(ane, nan, az)
  bne = pred[] compare(b0, b0), direction=NE
  beq = pred[] compare(b0, zero), direction=EQ
  bz = f32[] select(beq, zero, b0)
  bc = f32[] select(bne, nan, bz)
"""


def test_the_form_of_jax_for_floats() -> None:
    lines = CANONICAL + compare("ac", "bc", "LT", "TOTALORDER")
    assert keys_of(lines) == [ComparatorKey(0, False, "equal_zeros", None)]


def test_the_form_of_jax_for_bf16_widened_before() -> None:
    widening = "  a0 = f32[] convert(h0)\n  b0 = f32[] convert(k0)\n"
    lines = widening + CANONICAL + compare("ac", "bc", "LT", "TOTALORDER")
    text = text_of("", "bf16").replace("a0", "h0").replace("b0", "k0")
    text = text.replace("}\nENTRY", f"{lines}}}\nENTRY", 1)
    assert comparator_keys(parse(text), "c") == [ComparatorKey(0, False, "equal_zeros", None)]


def test_half_a_canonical_form_is_a_key_of_its_own() -> None:
    """With only the zeros made equal, NaNs still have an order by sign."""
    lines = CANONICAL + compare("az", "bz", "LT", "TOTALORDER")
    (key,) = keys_of(lines) or []
    assert (key.order, key.value is not None) == ("total", True)
    values = f32([np.nan, -np.nan, 0.0, -0.0, 1, -1, np.inf, -np.inf])
    values[1] = np.array([0xFFC00000], np.uint32).view(np.float32)[0]
    (got,) = evaluate(parse(text_of(lines, "f32")), values)
    assert np.isnan(got[0])
    assert np.signbit(got[0])
    assert got[1:4].tolist() == [-np.inf, -1, 0]
    assert np.signbit(got[3:5]).tolist() == [False, True]  # equal, so in the order they came


def test_another_value_chosen_by_is_no_canonical_form() -> None:
    """`log(x) != log(x) ? nan : x` makes NaN of negative numbers."""
    lines = """  nan = f32[] constant(nan)
  zero = f32[] constant(0)
  al = f32[] log(a0)
  ane = pred[] compare(al, al), direction=NE
  aeq = pred[] compare(a0, zero), direction=EQ
  az = f32[] select(aeq, zero, a0)
  ac = f32[] select(ane, nan, az)
  bl = f32[] log(b0)
  bne = pred[] compare(bl, bl), direction=NE
  beq = pred[] compare(b0, zero), direction=EQ
  bz = f32[] select(beq, zero, b0)
  bc = f32[] select(bne, nan, bz)
"""
    lines += compare("ac", "bc", "LT", "TOTALORDER")
    values = f32([-3, 5, 2, -7, 1, -1, 4, 3])
    (got,) = evaluate(parse(text_of(lines, "f32")), values)
    assert got.tolist() == [1, 2, 3, 4, 5, -3, -7, -1]


def test_a_widening_alone_keeps_the_order_of_zeros() -> None:
    lines = "  aw = f64[] convert(a0)\n  bw = f64[] convert(b0)\n"
    assert keys_of(lines + compare("aw", "bw", "LT", "TOTALORDER")) == [
        ComparatorKey(0, False, "total", None)
    ]
    assert keys_of(lines + compare("aw", "bw", "LT")) == [ComparatorKey(0, False, "ieee", None)]


def test_several_keys() -> None:
    """`a0 < b0 or (a0 == b0 and a1 > b1)`, the operands of or and and in either order."""
    for either in ("either(first, both)", "either(both, first)"):
        for both in ("same, second", "second, same"):
            lines = (
                compare("a0", "b0", "LT", name="first")
                + compare("a0", "b0", "EQ", name="same")
                + compare("a1", "b1", "GT", name="second")
                + f"  both = pred[] and({both})\n  ROOT r = pred[] {either}\n".replace(
                    "either", "or"
                )
            )
            assert keys_of(lines, "s32 s32") == [
                ComparatorKey(0, False, "ieee", None),
                ComparatorKey(1, True, "ieee", None),
            ]
            got = evaluate(
                parse(text_of(lines, "s32 s32")),
                s32([2, 1, 2, 1, 3, 2, 1, 0]),
                s32([1, 2, 3, 4, 5, 6, 7, 8]),
            )
            assert got[0].tolist() == [0, 1, 1, 1, 2, 2, 2, 3]
            assert got[1].tolist() == [8, 7, 4, 2, 6, 3, 1, 5]


def test_a_function_of_the_element_is_a_derived_key() -> None:
    lines = "  an = f32[] abs(a0)\n  bn = f32[] abs(b0)\n" + compare("an", "bn", "LT")
    (key,) = keys_of(lines) or []
    assert (key.operand, key.descending, key.value is not None) == (0, False, True)
    (got,) = evaluate(parse(text_of(lines, "f32")), f32([-3, 2, -1, 0, 4, -5, 7, -6]))
    assert got.tolist() == [0, -1, 2, -3, 4, -5, -6, 7]


UNREAD = {
    "two operands mixed": (
        "  s = f32[] add(a0, a1)\n  t = f32[] add(b0, b1)\n" + compare("s", "t", "LT"), "f32 f32"
    ),
    "an element with another operand's": (compare("a0", "b1", "LT"), "f32 f32"),
    "an element with itself": (compare("a0", "a0", "LT"), "f32"),
    "different functions": ("  n = f32[] negate(b0)\n" + compare("a0", "n", "LT"), "f32"),
    "equality": (compare("a0", "b0", "EQ"), "f32"),
    "a constant": ("  ROOT r = pred[] constant(false)\n", "f32"),
    "negation": (compare("a0", "b0", "LT", name="l") + "  ROOT r = pred[] not(l)\n", "f32"),
    "two orders in one key": (
        compare("a0", "b0", "LT", "TOTALORDER", name="f") + compare("a0", "b0", "EQ", name="e")
        + compare("a1", "b1", "LT", name="s")
        + "  w = pred[] and(e, s)\n  ROOT r = pred[] or(f, w)\n",
        "f32 f32",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNREAD)
def test_what_is_not_read(name: str) -> None:
    lines, types = UNREAD[name]
    assert keys_of(lines, types) is None


def test_an_unread_comparator_is_called() -> None:
    lines = "  s = s32[] add(a0, a1)\n  t = s32[] add(b0, b1)\n" + compare("s", "t", "LT")
    x, y = s32([5, 1, 4, 2, 3, 0, 7, 6]), s32([0, 9, 1, 3, 1, 8, 1, 1])
    got = evaluate(parse(text_of(lines, "s32 s32")), x, y)
    assert (got[0] + got[1]).tolist() == sorted((x + y).tolist())


def test_a_huge_comparator_is_not_read() -> None:
    lines, before = "", ("a0", "b0")
    for i in range(250):
        lines += f"  p{i} = f32[] negate({before[0]})\n  q{i} = f32[] negate({before[1]})\n"
        before = f"p{i}", f"q{i}"
    assert keys_of(lines + compare(*before, "LT")) is None
