"""What is named after a parameter's number has the number that users count."""

from dataclasses import replace

from hloipu_compiler.partition.scans.pieces_numbers import with_stacks
from hloipu_runtime.program.program import Program, Value, Variable
from hloipu_runtime.program.stacks import PARAMETER, Stack
from tests.support.program_builder import rows

STACKS = (Stack("w", PARAMETER, 1, 1, (2, 1), (4, 3)), Stack("b", PARAMETER, 4, 0, (1, 1), (2,)))
ORIGINS = ["parameter.0", "parameter.1", "parameter.2.v7", "parameter.3", "parameter.5", "dot.1"]
SHOWN = [
    "parameter.0", "parameter.1[:,0:2]", "parameter.1[:,2:3].v7", "parameter.2",
    "parameter.3[1:2]", "dot.1",
]  # fmt: skip


def test_rows_of_the_users_array_are_named() -> None:
    variables = tuple(Variable(x, "f32", (6,), rows(2, 3), origin=x) for x in ORIGINS)
    values = tuple(Value("f32", (6,), x) for x in ORIGINS)
    program = Program("p", "tiny", 1, variables, values)
    made = with_stacks(program, STACKS)
    assert [x.origin for x in made.variables] == SHOWN
    assert [x.name for x in made.variables] == SHOWN
    assert [x.origin for x in made.values] == SHOWN
    assert made.stacks == STACKS
    assert with_stacks(program, ()) is program
    assert replace(made, stacks=(), variables=variables, values=values) == program
