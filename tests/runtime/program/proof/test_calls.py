"""The proof of calls: a function is proved once, and each call hands over what it is told."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from hloipu_runtime.program.program import Program
from hloipu_runtime.program.proof.verify import faults_of
from hloipu_runtime.program.steps import Call, Passed, Sequence
from tests.support.program_builder import ProgramBuilder, rows
from tests.support.program_checker import violations

TILES = 4
ROWS = rows(2, 3)


class Twice:
    """y = f(f(x)) with f(a) = a + w, w handed over in place."""

    def __init__(self) -> None:
        make = self.make = ProgramBuilder()
        self.x = make.stream_in(make.variable((6,), ROWS))
        self.w = make.stream_in(make.variable((6,), ROWS))
        self.a = make.copy(self.x, make.variable((6,), ROWS))
        self.y = make.variable((6,), ROWS)
        outer_x, outer_w = make.held[self.a], make.held[self.w]
        inner_a, inner_w = make.value_like(self.a), make.value_like(self.w)
        make.held.update({self.a: inner_a, self.w: inner_w})
        with make.block() as steps:
            make.add([self.a, self.w], self.y)
        self.inner_y = make.held[self.y]
        make.functions["f"] = Sequence(tuple(steps))
        make.held.update({self.a: outer_x, self.w: outer_w})
        for _ in range(2):
            arguments = (
                Passed(self.a, make.held[self.a], inner_a),
                Passed(self.w, outer_w, inner_w),
            )
            outer_y = make.value_like(self.y)
            make.emit(Call("f", arguments, (Passed(self.y, outer_y, self.inner_y),)))
            make.held[self.y] = outer_y
            make.copy(self.y, self.a)
        make.stream_out(self.a)

    def program(self, change: Callable[[Call], Call] = lambda call: call) -> Program:
        """Return the program with its second call changed."""
        program = self.make.program()
        steps = list(program.body.steps)
        number = [n for n, x in enumerate(steps) if isinstance(x, Call)][1]
        call = steps[number]
        assert isinstance(call, Call)
        steps[number] = change(call)
        return replace(program, body=Sequence(tuple(steps)))


def rules(program: Program) -> set[str]:
    return {fault.rule for fault in faults_of(program, TILES)}


def test_a_function_may_be_called_again() -> None:
    program = Twice().program()
    assert faults_of(program, TILES) == []
    assert violations(program, TILES) == []


def _argument(call: Call, number: int, **changes: int) -> Call:
    arguments = list(call.arguments)
    arguments[number] = arguments[number]._replace(**changes)
    return replace(call, arguments=tuple(arguments))


FAULTS: dict[str, tuple[Callable[[Call], Call], str]] = {
    "an argument that is not there": (lambda call: _argument(call, 0, outer=0), "version"),
    "no argument": (lambda call: replace(call, arguments=call.arguments[1:]), "call"),
    "another value within": (
        lambda call: _argument(call, 0, inner=call.arguments[1].inner),
        "call",
    ),
    "a result that the function does not leave": (
        lambda call: replace(
            call, results=(call.results[0]._replace(inner=call.arguments[0].inner),)
        ),
        "version",
    ),
    "a result that is known already": (
        lambda call: replace(call, results=(call.results[0]._replace(outer=0),)),
        "value",
    ),
    "a result that is not taken and read": (lambda call: replace(call, results=()), "version"),
    "a function that is not there": (lambda call: replace(call, function="g"), "call"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_call_is_a_fault(name: str) -> None:
    change, rule = FAULTS[name]
    assert rule in rules(Twice().program(change))


def test_a_function_sees_nothing_of_its_callers_but_arguments() -> None:
    made = Twice()
    program = made.program()
    calls = {n: x for n, x in enumerate(program.body.steps) if isinstance(x, Call)}
    steps = list(program.body.steps)
    for number, call in calls.items():
        steps[number] = replace(call, arguments=call.arguments[:1])
    assert "version" in rules(replace(program, body=Sequence(tuple(steps))))


def test_functions_in_a_circle_are_a_fault() -> None:
    program = Twice().program()
    circle = replace(program, functions={"f": Sequence((Call("f"),))})
    assert "call" in rules(circle)
