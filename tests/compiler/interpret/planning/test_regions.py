"""Reducers: which monoid one is, and that what is no monoid is not taken for one."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.evaluator import evaluate
from hloipu_compiler.interpret.planning.regions import MONOIDS, assigned_parameter, monoid_of
from tests.support.arrays import f32


def module_text(lines: str, element_type: str = "f32", before: str = "", size: int = 4) -> str:
    t = element_type
    return f"""HloModule m
{before}c {{
  a = {t}[] parameter(0)
  b = {t}[] parameter(1)
{lines}}}
ENTRY e {{
  x = {t}[{size}] parameter(0)
  z = {t}[] parameter(1)
  ROOT r = {t}[] reduce(x, z), dimensions={{0}}, to_apply=c
}}
"""


def found(lines: str, element_type: str = "f32", before: str = "") -> str | None:
    return monoid_of(parse(module_text(lines, element_type, before)), "c")


@pytest.mark.parametrize("operands", ["a, b", "b, a"])
@pytest.mark.parametrize("opcode", sorted(MONOIDS))
def test_the_op_alone(opcode: str, operands: str) -> None:
    assert found(f"  ROOT r = s32[] {opcode}({operands})\n", "s32") == opcode


@pytest.mark.parametrize(
    "lines",
    [
        "  ROOT r = f32[] add(a, a)\n",
        "  ROOT r = f32[] subtract(a, b)\n",
        "  n = f32[] negate(b)\n  ROOT r = f32[] add(a, n)\n",
        "  s = f32[] add(a, b)\n  ROOT r = f32[] negate(s)\n",
        "  k = f32[] constant(1)\n  ROOT r = f32[] add(a, k)\n",
        "  ROOT r = f32[] copy(a)\n",
    ],
)
def test_no_monoid(lines: str) -> None:
    assert found(lines) is None


def test_seen_through_calls_and_copies() -> None:
    inner = """d {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] maximum(b, a)
}
"""
    call = "  d = f32[] copy(b)\n  ROOT r = f32[] call({}), to_apply=d\n"
    assert found(call.format("a, d"), before=inner) == "maximum"
    assert found(call.format("d, a"), before=inner) == "maximum"
    assert found(call.format("a, a"), before=inner) is None
    fusion = "  ROOT r = f32[] fusion(a, b), kind=kLoop, calls=d\n"
    assert found(fusion, before=inner) == "maximum"


WIDENED = """  aw = {wide}[] convert(a)
  bw = {wide}[] convert(b)
  s = {wide}[] {op}(aw, bw)
  ROOT r = {narrow}[] convert(s)
"""


@pytest.mark.parametrize(
    ("narrow", "wide", "seen"),
    [
        ("bf16", "f32", True), ("f16", "f32", True), ("f32", "f64", True), ("f8e5m2", "f16", True),
        ("f32", "bf16", False), ("f64", "f32", False), ("f16", "bf16", False),
        ("bf16", "f16", False), ("s32", "f32", False), ("f32", "s32", False),
    ],
)  # fmt: skip
def test_seen_through_converts_that_only_widen(narrow: str, wide: str, seen: bool) -> None:
    lines = WIDENED.format(narrow=narrow, wide=wide, op="maximum")
    assert found(lines, narrow) == ("maximum" if seen else None)


def test_a_narrower_step_inside_rounds() -> None:
    """The maximum of bf16 roundings: 1 + 2**-10 becomes 1."""
    text = module_text(WIDENED.format(narrow="f32", wide="bf16", op="maximum"))
    x = f32([0.5, 1 + 2**-10, 0.25, 0.125])
    assert evaluate(parse(text), x, np.float32(0))[0] == 1


def test_sums_of_bf16_through_f32_are_rounded_to_bf16() -> None:
    text = module_text(WIDENED.format(narrow="bf16", wide="f32", op="add"), "bf16")
    x = np.array([1, 2, 3, 4.5], ml_dtypes.bfloat16)
    (got,) = evaluate(parse(text), x, np.zeros((), ml_dtypes.bfloat16))
    assert (got.dtype, float(got)) == (np.dtype(ml_dtypes.bfloat16), 10.5)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 64, 1000])
def test_another_associative_region(size: int) -> None:
    """a + b + ab, which is (1 + a)(1 + b) - 1: products of 1 + x, exact in s32 modulo 2**32."""
    lines = """  s = s32[] add(a, b)
  p = s32[] multiply(a, b)
  ROOT r = s32[] add(s, p)
"""
    module = parse(module_text(lines, "s32", size=size))
    assert monoid_of(module, "c") is None
    x = np.random.default_rng(size).integers(-5, 5, size).astype(np.int32)
    (got,) = evaluate(module, x, np.int32(2))
    wanted: Any = 3
    for value in x.tolist():
        wanted = wanted * (1 + value) % 2**32
    assert (int(got) + 1) % 2**32 == wanted


@pytest.mark.parametrize(("lines", "number"), [
    ("  ROOT r = f32[] copy(b)\n", None),
    ("  ROOT r = f32[] add(a, b)\n", None),
])  # fmt: skip
def test_what_is_no_assignment(lines: str, number: int | None) -> None:
    assert assigned_parameter(parse(module_text(lines)), "c") is number


@pytest.mark.parametrize("number", [0, 1])
def test_assignment(number: int) -> None:
    roots = ["ROOT " if i == number else "" for i in range(2)]
    parameters = [f"  {root}p{i} = f32[] parameter({i})\n" for i, root in enumerate(roots)]
    text = f"HloModule m\nENTRY c {{\n{''.join(parameters)}}}\n"
    assert assigned_parameter(parse(text), "c") == number
