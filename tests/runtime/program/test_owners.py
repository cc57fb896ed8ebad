"""Which sequence owns a variable."""

from hloipu_runtime.program.owners import owners
from hloipu_runtime.program.steps import Call, Repeat, Sequence
from tests.support.program_builder import ProgramBuilder, rows


def test_a_variable_belongs_to_the_innermost_sequence_around_its_steps() -> None:
    make = ProgramBuilder()
    here = rows(2, 2)
    a = make.stream_in(make.variable((4,), here))
    constant = make.constant((4,), here)
    outer, inner = make.variable((4,), here), make.variable((4,), here)
    with make.block() as steps:
        make.add([a, constant], inner)
        make.add([inner, inner], outer)
    body = Sequence(tuple(steps))
    make.emit(Repeat(2, body, ()))
    make.stream_out(a)
    program = make.program()
    found = owners(program)
    (loop,) = (x for x in program.body.steps if isinstance(x, Repeat))
    assert found[id(loop.body)] == {inner, outer}
    assert found[id(program.body)] == {a}


def test_what_two_functions_touch_belongs_to_nobody() -> None:
    make = ProgramBuilder()
    here = rows(2, 2)
    a = make.stream_in(make.variable((4,), here))
    with make.block() as steps:
        make.add([a, a], make.variable((4,), here))
    make.functions["f"] = Sequence(tuple(steps))
    make.emit(Call("f"))
    program = make.program()
    found = owners(program)
    (own,) = found[id(program.functions["f"])]
    assert own != a
    assert all(a not in variables for variables in found.values())
