"""The proof of state: it begins as it was left, ends whole, in variables that are kept."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from hloipu_runtime.program.program import Program, Role, StatePort
from hloipu_runtime.program.proof.verify import faults_of
from tests.support.sessions import sums

PROGRAM = sums(2).program
A, B = PROGRAM.state


def with_state(*ports: StatePort) -> Program:
    return replace(PROGRAM, state=ports)


def with_role(role: Role) -> Program:
    variables = list(PROGRAM.variables)
    variables[A.variable] = replace(variables[A.variable], role=role)
    return replace(PROGRAM, variables=tuple(variables))


def test_what_was_compiled_is_proved() -> None:
    assert faults_of(PROGRAM, 4) == []


@pytest.mark.parametrize(
    ("broken", "rule", "said"),
    [
        (lambda: with_state(B), "version", "holds nothing"),
        (lambda: with_state(replace(A, final=A.initial), B), "version", "which holds"),
        (lambda: with_state(replace(A, final=B.final), B), "value", "other type or shape"),
        (lambda: with_state(replace(A, initial=B.initial), B), "value", "computed twice"),
        (lambda: with_state(replace(A, variable=B.variable), B), "state", "something else"),
        (lambda: with_state(replace(A, name="b"), B), "state", "one name"),
        (lambda: with_role(Role.TEMPORARY), "role", "stays from run to run"),
    ],
)
def test_what_is_not_kept_is_told(broken: Callable[[], Program], rule: str, said: str) -> None:
    found = faults_of(broken(), 4)
    assert any(fault.rule == rule and said in fault.message for fault in found), found
