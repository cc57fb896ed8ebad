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
