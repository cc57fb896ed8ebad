"""`eliminate-common-subexpressions`: pure values are computed once."""

import pytest

from hloipu_compiler.passes import run_passes
from tests.support.passes import SUM, entry, opcodes, parsed, passed

CSE = "eliminate-common-subexpressions"


def binary(kind: str, op: str) -> list[str]:
    text = entry(
        f"  p = {kind}[4] parameter(0)\n  q = {kind}[4] parameter(1)\n"
        f"  a = {kind}[4] {op}(p, q)\n  b = {kind}[4] {op}(q, p)\n"
        f"  ROOT r = ({kind}[4], {kind}[4]) tuple(a, b)"
    )
    return opcodes(passed(text, CSE))


@pytest.mark.parametrize(
    ("kind", "op", "merges"),
    [
        ("f32", "add", True),
        ("f32", "multiply", True),
        ("f32", "maximum", False),
        ("s32", "maximum", True),
        ("u8", "and", True),
        ("f32", "subtract", False),
        ("c64", "multiply", False),
    ],
)
def test_operands_change_places_where_no_bit_changes(kind: str, op: str, merges: bool) -> None:
    assert binary(kind, op).count(op) == (1 if merges else 2)


def test_chains_merge_whatever_their_metadata() -> None:
    text = entry(
        '  p = f32[4] parameter(0)\n  a = f32[4] sine(p), metadata={op_name="a"}\n'
        '  b = f32[4] sine(p), metadata={op_name="b"}\n  c = f32[4] negate(a)\n'
        "  d = f32[4] negate(b)\n  ROOT r = f32[4] add(c, d)"
    )
    assert opcodes(passed(text, CSE)) == ["sine", "negate", "add"]


def test_constants_merge_by_value() -> None:
    text = entry(
        "  a = f32[2] constant({1, 2})\n  b = f32[2] constant({ 1.0, 2e0 })\n"
        "  c = f32[2] constant({1, 3})\n  d = f32[] constant(0)\n  e = f32[] constant(-0.0)\n"
        "  ROOT r = (f32[2], f32[2], f32[2], f32[], f32[]) tuple(a, b, c, d, e)"
    )
    assert opcodes(passed(text, CSE)) == ["constant"] * 4 + ["tuple"]


def test_elided_constants_are_never_equal() -> None:
    text = entry(
        "  a = f32[200] constant({...})\n  b = f32[200] constant({...})\n"
        "  ROOT r = f32[200] add(a, b)"
    )
    module = parsed(text)
    assert run_passes(module, None, CSE)[0] is module


def test_regions_that_say_the_same_are_one() -> None:
    other = SUM.replace("sum", "plus").replace("a =", "x =").replace("(a, b)", "(x, b)")
    reduce = "reduce(p, z), dimensions={1}, to_apply"
    text = entry(
        f"  p = f32[4,8] parameter(0)\n  z = f32[] constant(0)\n  a = f32[4] {reduce}=sum\n"
        f"  b = f32[4] {reduce}=plus\n  ROOT r = f32[4] add(a, b)",
        SUM + "\n" + other,
    )
    after = passed(text, CSE)
    assert opcodes(after) == ["constant", "reduce", "add"]
    assert [c.name for c in after.computations] == ["sum", "e"]


@pytest.mark.parametrize(
    "op",
    [
        "f32[2] rng(z, o), distribution=rng_uniform",
        'f32[2] custom-call(), custom_call_target="x", custom_call_has_side_effect=true',
        "u64[2] rng-get-and-update-state(), delta=1",
    ],
)
def test_effects_and_draws_stay_apart(op: str) -> None:
    shape = op.split()[0]
    text = entry(
        f"  z = f32[] constant(0)\n  o = f32[] constant(1)\n  a = {op}\n  b = {op}\n"
        f"  ROOT r = ({shape}, {shape}) tuple(a, b)"
    )
    module = parsed(text)
    assert run_passes(module, None, CSE)[0] is module
