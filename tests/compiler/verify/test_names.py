"""Names: repeated ones are refused; the same name in two computations is fine."""

from dataclasses import replace

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.verify.verifier import faults_of
from tests.support.verifier_cases import check_accepted

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
