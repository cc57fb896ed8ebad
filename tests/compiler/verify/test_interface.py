"""Parameters: numbers, and the header's entry_computation_layout."""

from dataclasses import replace

import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.verify.verifier import faults_of
from tests.support.verifier_cases import check_accepted, check_refused

_ENTRY = """ENTRY e {
  b = s32[2] parameter(1)
  a = f32[4] parameter(0)
  ROOT n = f32[4] negate(a)
}
"""


def test_parameters_out_of_order_are_accepted() -> None:
    """Only the numbers count."""
    check_accepted("HloModule m\n" + _ENTRY)


@pytest.mark.parametrize("numbers", [(0, 0), (0, 2), (-1, 0)])
def test_numbers_that_repeat_or_leave_a_gap_are_refused(numbers: tuple[int, int]) -> None:
    """A parser may refuse such a text already; here a pass has built it."""
    module = parse("HloModule m\n" + _ENTRY)
    entry = module.entry
    b, a, n = entry.instructions
    changed = replace(module, computations=(replace(entry, instructions=(
        b._replace(parameter_number=numbers[0]), a._replace(parameter_number=numbers[1]), n
    )),))  # fmt: skip
    assert {fault.code for fault in faults_of(changed)} == {"E0303"}


@pytest.mark.parametrize(
    "layout",
    [
        "{(f32[4]{0}, s32[2]{0})->f32[4]{0}}",
        "{(f32[4], s32[2])->f32[4]}",
    ],
)
def test_a_header_that_agrees_is_accepted(layout: str) -> None:
    """Layouts may be there or not."""
    check_accepted(f"HloModule m, entry_computation_layout={layout}\n" + _ENTRY)


@pytest.mark.parametrize(
    "layout",
    [
        "{(f32[4]{0}, s32[2]{0})->f32[5]{0}}",
        "{(f32[4]{0}, s32[2]{0})->f64[4]{0}}",
        "{(f32[4]{0}, s32[2]{0})->(f32[4]{0})}",
        "{(f32[4]{0})->f32[4]{0}}",
        "{(f32[4]{0}, s32[2]{0}, f32[])->f32[4]{0}}",
        "{(s32[2]{0}, f32[4]{0})->f32[4]{0}}",
        "{(f32[4]{0}, s32[2,1]{1,0})->f32[4]{0}}",
    ],
)
def test_a_header_that_disagrees_is_refused(layout: str) -> None:
    """Number, element types and sizes are compared; the place is the header's attribute."""
    more = ["E0304"] if layout.startswith("{(s32") else []
    check_refused(
        f"HloModule m, is_scheduled=false, «entry_computation_layout={layout}»\n{_ENTRY}",
        "E0304",
        *more,
    )


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
