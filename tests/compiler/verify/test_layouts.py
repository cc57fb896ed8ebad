"""Layouts of the entry's interface."""

import pytest

from tests.support.verifier_cases import check_accepted, check_refused


def _module(shape: str, header: str = "") -> str:
    return (
        f"HloModule m{header}\nENTRY e {{\n  p = {shape} parameter(0)\n"
        "  ROOT c = s32[] constant(1)\n}\n"
    )


@pytest.mark.parametrize(
    "layout",
    ["{1,1}", "{1,2}", "{1,0:#(u32)*(u32)}", "{1,0:T(0,8)}", "{1,0:E(-4)}", "{1,0:SC(2:1)}",
     "{1,0:SC(0:2)}", "{1,0:SC(1:2,2)}", "{1,0:SC(0:1)(0:1)}", "{0,1:SC(0:3)}"],
)  # fmt: skip
def test_layouts_of_the_interface_are_orders(layout: str) -> None:
    """Each dimension once, positive tiles, splits within their dimension; dense."""
    check_refused(_module(f"«f32[2,3]{layout}»"), "E0338")


@pytest.mark.parametrize(
    "layout",
    ["{1,0:T(8,128)(2,1)S(5)}", "{0,1:T(*,8)}", "{1,0:L(4)E(4)}", "{1,0:SC(0:1)(1:1,2)}",
     "{0,1:SC(0:1,2)}"],
)  # fmt: skip
def test_extended_layouts_are_accepted(layout: str) -> None:
    """Splits count physical dimensions, slowest first."""
    check_accepted(_module(f"f32[2,3]{layout}"))


def test_the_header_is_looked_at_instead_where_it_speaks() -> None:
    """XLA takes the interface from the header."""
    right = "entry_computation_layout={(f32[2,3]{1,0})->s32[]}"
    check_accepted(_module("f32[2,3]{1,1}", f", {right}"))
    wrong = "entry_computation_layout={(f32[2,3]{0,2})->s32[]}"
    check_refused(_module("f32[2,3]{1,0}", f", «{wrong}»"), "E0338")


def test_other_layouts_are_not_looked_at() -> None:
    """Only the interface counts."""
    check_accepted(
        "HloModule m\nENTRY e {\n  p = f32[2,3]{1,0} parameter(0)\n"
        "  n = f32[2,3]{1,1} negate(p)\n  ROOT c = f32[2,3]{1,0} negate(n)\n}\n"
    )
