"""`absorb-views`: reshapes meet and go, transposes are other names of dimensions; values stay."""

import numpy as np
import pytest

from hloipu_compiler.interpret.participants import evaluate_everywhere
from hloipu_compiler.interpret.random_inputs import random_arguments
from hloipu_compiler.ir.graph import Module
from tests.support.passes import SUM, entry, opcodes, parsed, passed

PIPELINE = "inline-calls,(absorb-views,eliminate-dead-code)*3"


def absorbed(text: str, *, to_the_bit: bool = True) -> Module:
    """Run the pass; sums may be taken in another order, so that they agree nearly."""
    after = passed(text, PIPELINE, evaluated=to_the_bit, settled=False)
    if not to_the_bit:
        before = parsed(text)
        arguments = random_arguments(before, 0)
        expected = evaluate_everywhere(before, *arguments)
        found = evaluate_everywhere(after, *arguments)
        for want, got in zip(expected, found, strict=True):
            np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-5, atol=1e-5)
    return after


def test_a_kept_dimension_goes_on_its_way_to_a_broadcast() -> None:
    text = entry(
        "  x = f32[8,64] parameter(0)\n  z = f32[] constant(0)\n"
        "  s = f32[8] reduce(x, z), dimensions={1}, to_apply=sum\n"
        "  k = f32[8,1] reshape(s)\n  n = f32[] constant(64)\n"
        "  m = f32[8,1] broadcast(n), dimensions={}\n  d = f32[8,1] divide(k, m)\n"
        "  e = f32[8,1] exponential(d)\n  f = f32[8] reshape(e)\n"
        "  ROOT b = f32[8,64] broadcast(f), dimensions={0}",
        SUM,
    )
    assert "reshape" not in opcodes(absorbed(text))


def test_operands_reshaped_alike_are_used_before() -> None:
    text = entry(
        "  a = f32[6,4] parameter(0)\n  b = f32[6,4] parameter(1)\n  c = f32[4] parameter(2)\n"
        "  p = f32[2,3,4] reshape(a)\n  q = f32[2,3,4] reshape(b)\n  s = f32[2,3,4] add(p, q)\n"
        "  d = f32[2,3,4] broadcast(c), dimensions={2}\n  m = f32[2,3,4] multiply(s, d)\n"
        "  ROOT r = f32[6,4] reshape(m)"
    )
    assert sorted(opcodes(absorbed(text))) == ["add", "broadcast", "multiply"]


def test_a_broadcast_along_a_merged_dimension_holds_the_reshape() -> None:
    """`c` repeats along part of what is merged: there is no dimension for it before."""
    text = entry(
        "  a = f32[6,4] parameter(0)\n  c = f32[3] parameter(1)\n  p = f32[2,3,4] reshape(a)\n"
        "  d = f32[2,3,4] broadcast(c), dimensions={1}\n  ROOT m = f32[2,3,4] multiply(p, d)"
    )
    assert opcodes(absorbed(text)).count("reshape") == 1


def test_whole_dimensions_are_reduced_before_they_are_merged() -> None:
    text = entry(
        "  a = f32[2,3,4] parameter(0)\n  z = f32[] constant(0)\n  p = f32[6,4] reshape(a)\n"
        "  ROOT s = f32[4] reduce(p, z), dimensions={0}, to_apply=sum",
        SUM,
    )
    after = absorbed(text, to_the_bit=False)
    assert opcodes(after) == ["constant", "reduce"]
    (reduction,) = (x for x in after.entry.instructions if x.opcode == "reduce")
    assert reduction.attributes.integers("dimensions") == (0, 1)


def test_part_of_a_merged_dimension_is_reduced_after() -> None:
    text = entry(
        "  a = f32[6,4] parameter(0)\n  z = f32[] constant(0)\n  p = f32[2,3,4] reshape(a)\n"
        "  ROOT s = f32[2,4] reduce(p, z), dimensions={1}, to_apply=sum",
        SUM,
    )
    assert "reshape" in opcodes(absorbed(text))


@pytest.mark.parametrize(
    ("side", "order"), [("lhs", "{1,0,2}"), ("lhs", "{0,2,1}"), ("rhs", "{0,2,1}")]
)
def test_operands_of_products_are_not_transposed(side: str, order: str) -> None:
    shapes = {"{1,0,2}": "f32[3,2,4]", "{0,2,1}": "f32[2,4,3]"}
    other = "b" if side == "lhs" else "a"
    given = f"{shapes[order]} parameter(0)\n  t = f32[2,3,4] transpose(x), dimensions={order}"
    left, right = ("t", "b") if side == "lhs" else ("a", "t")
    text = entry(
        f"  x = {given}\n  {other} = f32[2,3,4] parameter(1)\n"
        f"  ROOT d = f32[2,3,3] dot({left}, {right}), lhs_batch_dims={{0}}, rhs_batch_dims={{0}}, "
        "lhs_contracting_dims={2}, rhs_contracting_dims={2}"
    )
    assert opcodes(absorbed(text, to_the_bit=False)) == ["dot"]


def test_free_dimensions_in_another_order_stay_transposed() -> None:
    text = entry(
        "  x = f32[3,2,4] parameter(0)\n  y = f32[4,5] parameter(1)\n"
        "  t = f32[2,3,4] transpose(x), dimensions={1,0,2}\n"
        "  ROOT d = f32[2,3,5] dot(t, y), lhs_contracting_dims={2}, rhs_contracting_dims={0}"
    )
    assert "transpose" in opcodes(absorbed(text))


def test_a_transposed_product_is_the_other_product() -> None:
    text = entry(
        "  x = f32[7,3] parameter(0)\n  y = f32[3,5] parameter(1)\n"
        "  d = f32[7,5] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
        "  ROOT t = f32[5,7] transpose(d), dimensions={1,0}"
    )
    assert opcodes(absorbed(text, to_the_bit=False)) == ["dot"]


def test_a_product_that_others_read_is_not_computed_twice() -> None:
    text = entry(
        "  x = f32[7,3] parameter(0)\n  y = f32[3,5] parameter(1)\n"
        "  d = f32[7,5] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
        "  t = f32[5,7] transpose(d), dimensions={1,0}\n"
        "  ROOT r = (f32[7,5], f32[5,7]) tuple(d, t)"
    )
    assert opcodes(absorbed(text)).count("dot") == 1


def test_convolutions_name_dimensions_as_they_are() -> None:
    text = entry(
        "  x = f32[2,3,8,8] parameter(0)\n  k = f32[3,3,5,3] parameter(1)\n"
        "  t = f32[2,8,8,3] transpose(x), dimensions={0,2,3,1}\n"
        "  u = f32[3,3,3,5] transpose(k), dimensions={0,1,3,2}\n"
        "  c = f32[2,6,6,5] convolution(t, u), window={size=3x3}, dim_labels=b01f_01io->b01f\n"
        "  ROOT r = f32[2,5,6,6] transpose(c), dimensions={0,3,1,2}"
    )
    after = absorbed(text, to_the_bit=False)
    assert opcodes(after) == ["convolution"]


def test_ops_on_what_is_transposed_alike_are_done_before() -> None:
    text = entry(
        "  x = f32[3,4] parameter(0)\n  y = f32[3,4] parameter(1)\n  v = f32[3] parameter(2)\n"
        "  t = f32[4,3] transpose(x), dimensions={1,0}\n"
        "  u = f32[4,3] transpose(y), dimensions={1,0}\n"
        "  w = f32[4,3] broadcast(v), dimensions={1}\n  a = f32[4,3] add(t, u)\n"
        "  m = f32[4,3] multiply(a, w)\n  ROOT r = f32[3,4] transpose(m), dimensions={1,0}"
    )
    assert sorted(opcodes(absorbed(text))) == ["add", "broadcast", "multiply"]


def test_a_transposed_value_is_reduced_before() -> None:
    text = entry(
        "  x = f32[3,4,5] parameter(0)\n  z = f32[] constant(0)\n"
        "  t = f32[5,3,4] transpose(x), dimensions={2,0,1}\n"
        "  ROOT s = f32[3,4] reduce(t, z), dimensions={0}, to_apply=sum",
        SUM,
    )
    assert "transpose" not in opcodes(absorbed(text, to_the_bit=False))


def test_nothing_to_do_is_the_same_module() -> None:
    text = entry("  x = f32[3,4] parameter(0)\n  ROOT r = f32[3,4] negate(x)")
    passed(text, "absorb-views")
