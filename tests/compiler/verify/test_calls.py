"""Calls: recursion, callees' signatures, execution threads, composite calls."""

from dataclasses import replace

import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.verify.verifier import faults_of
from tests.support.verifier_cases import check_accepted, check_refused, faults_in

_CALLEE = """HloModule m
f {
  p = f32[4] parameter(0)
  ROOT r = f32[4] negate(p)
}
"""


def _entry(statement: str, before: str = "") -> str:
    return f"{_CALLEE}ENTRY e {{\n  p = f32[4] parameter(0)\n{before}  {statement}\n}}\n"


def test_a_call_that_fits_is_accepted() -> None:
    """One operand for one parameter."""
    check_accepted(_entry("ROOT c = f32[4] call(p), to_apply=f"))


def test_a_call_cycle_is_refused() -> None:
    """A text cannot say it (callees come first), a graph can."""
    module = parse(_entry("ROOT c = f32[4] call(p), to_apply=f"))
    f, e = module.computations
    recursive = replace(f, instructions=(
        f.instructions[0], e.instructions[1]._replace(name="r", operands=(0,))
    ))  # fmt: skip
    changed = replace(module, computations=(recursive, e))
    assert [fault.code for fault in faults_of(changed)] == ["E0305"]


def test_an_unknown_callee_is_refused() -> None:
    """A pass removed the computation and left the call."""
    module = parse(_entry("ROOT c = f32[4] call(p), to_apply=f"))
    changed = replace(module, computations=module.computations[1:], entry_position=0)
    assert [fault.code for fault in faults_of(changed)] == ["E0306"]


def test_a_callee_on_another_thread_is_refused() -> None:
    """A fusion, a while and a conditional are held to it; calls are not."""

    def on_another_thread(statement: str) -> str:
        end = "  ROOT r = f32[4] negate(p)\n}"
        return _entry(statement).replace(end, end + ', execution_thread="side"', 1)

    check_refused(on_another_thread("ROOT c = f32[4] fusion(p), kind=kLoop, «calls=f»"), "E0307")
    check_accepted(on_another_thread("ROOT c = f32[4] call(p), to_apply=f"))


@pytest.mark.parametrize(
    "statement",
    [
        'frontend_attributes={composite.name="a.b",composite.attributes={},composite.version="1"}',
        'frontend_attributes={composite.name="a.b"}',
    ],
)
def test_a_complete_composite_is_accepted(statement: str) -> None:
    """Attributes and version may be left out."""
    check_accepted(_entry(f"ROOT c = f32[4] call(p), to_apply=f, is_composite=true, {statement}"))


@pytest.mark.parametrize(
    "statement",
    [
        "«call»(p), to_apply=f, is_composite=true",
        'call(p), to_apply=f, is_composite=true, «frontend_attributes={x="1"}»',
        'call(p), to_apply=f, is_composite=true, «frontend_attributes={composite.name=""}»',
        "call(p), to_apply=f, is_composite=true, "
        '«frontend_attributes={composite.name="a",composite.version="-1"}»',
        "call(p), to_apply=f, is_composite=true, "
        '«frontend_attributes={composite.name="a",composite.attributes=""}»',
    ],
)
def test_an_incomplete_composite_is_refused(statement: str) -> None:
    """A composite has a name, and a version that is a number."""
    check_refused(_entry(f"ROOT c = f32[4] {statement}"), "E0310")


@pytest.mark.parametrize(
    "statement",
    [
        "ROOT c = f32[4] call(p, p), to_apply=f",
        "ROOT c = f32[4] call(), to_apply=f",
        "ROOT c = f32[4] call(s), to_apply=f",
        "ROOT c = f32[5] call(p), to_apply=f",
        "ROOT c = f32[] reduce(p, s), dimensions={0}, to_apply=f",
        "ROOT c = f32[4] map(p), dimensions={0}, to_apply=f",
        "ROOT c = f32[4] sort(p), dimensions={0}, to_apply=f",
        "ROOT c = f32[4] while(p), condition=f, body=f",
    ],
)
def test_callees_that_do_not_fit_are_refused(statement: str) -> None:
    """Signatures are shape rules; this only checks that somebody refuses."""
    found = faults_in(_entry(statement, "  s = f32[] parameter(1)\n"))
    assert found
    assert all(fault.span and fault.span.line == 9 for fault in found)


_TWO = """HloModule m
f {
  p = f32[] parameter(0)
  ROOT r = f32[] negate(p)
}
ENTRY e {
  p = f32[] parameter(0)
  ROOT r = f32[] call(p), to_apply=f
}
"""


def test_one_name_in_two_computations_is_accepted() -> None:
    """XLA renames the later ones while it reads."""
    check_accepted(_TWO)


def test_a_repeated_instruction_name_is_refused() -> None:
    """A pass may build what a text cannot; the fault stands under the second name."""
    module = parse(_TWO)
    entry = module.entry
    twice = (entry.instructions[0], entry.instructions[1]._replace(name="p"))
    changed = replace(module, computations=(
        module.computations[0], replace(entry, instructions=twice)
    ))  # fmt: skip
    (fault,) = faults_of(changed)
    assert fault.code == "E0302"
    assert fault.span is not None
    assert (fault.span.line, fault.span.text) == (8, "r")
    assert fault.notes[0].span.line == 7


def test_a_repeated_computation_name_is_refused() -> None:
    """The second computation of that name is the fault."""
    module = parse(_TWO)
    changed = replace(module, computations=(replace(module.computations[0]), *module.computations),
                      entry_position=2)  # fmt: skip
    assert [fault.code for fault in faults_of(changed)] == ["E0302"]


def test_operands_out_of_order_are_refused() -> None:
    """Nothing else is looked at in a graph whose operands do not stand before their users."""
    module = parse(_TWO)
    entry = module.entry
    for wrong in (1, 7, -1):
        instructions = (entry.instructions[0], entry.instructions[1]._replace(operands=(wrong,)))
        changed = replace(module, computations=(
            module.computations[0], replace(entry, instructions=instructions)
        ))  # fmt: skip
        assert [fault.code for fault in faults_of(changed)] == ["E0337"]
