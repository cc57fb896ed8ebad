"""Control predecessors and schedules."""

from dataclasses import replace

import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.verify.verifier import faults_of
from tests.support.verifier_cases import check_accepted

_TEXT = """HloModule m, is_scheduled=%s
ENTRY e {
  p = f32[] parameter(0)
  a = f32[] sine(p)
  b = f32[] negate(a), control-predecessors={p}
  ROOT c = f32[] add(a, b), control-predecessors={a}
}
"""


def _with_predecessor(name: str, *, scheduled: str = "false") -> Module:
    """Return the module with b waiting for `name`, which a text cannot say of a later one."""
    module = parse(_TEXT % scheduled)
    instructions = list(module.entry.instructions)
    changed = instructions[2].attributes.replaced(**{"control-predecessors": (name,)})
    instructions[2] = instructions[2]._replace(attributes=changed)
    entry = replace(module.entry, instructions=tuple(instructions))
    return replace(module, computations=(entry,))


@pytest.mark.parametrize("scheduled", ["true", "false"])
def test_predecessors_that_stand_earlier_are_accepted(scheduled: str) -> None:
    """In order of the text there is no cycle."""
    check_accepted(_TEXT % scheduled)


@pytest.mark.parametrize(
    ("name", "scheduled", "code"),
    [
        ("nowhere", "false", "E0311"),
        ("c", "false", "E0312"),
        ("b", "false", "E0312"),
        ("c", "true", "E0331"),
    ],
)
def test_wrong_predecessors_are_refused(name: str, scheduled: str, code: str) -> None:
    """Unknown, on a cycle, or late in a schedule."""
    (fault,) = faults_of(_with_predecessor(name, scheduled=scheduled))
    assert fault.code == code
    assert fault.span is not None
    assert (fault.span.line, fault.span.text) == (5, "control-predecessors={p}")


def test_a_later_predecessor_without_a_cycle_is_accepted_unless_scheduled() -> None:
    """Text order is only a topological order of the data edges."""
    module = parse(_TEXT % "false")
    instructions = list(module.entry.instructions)
    instructions[0] = instructions[0]._replace(name="x")
    free = instructions[0]._replace(name="p", parameter_number=1)
    waiting = instructions[2].attributes.replaced(**{"control-predecessors": ("z",)})
    body = (
        instructions[0],
        free,
        instructions[1],
        instructions[1]._replace(name="b", operands=(0,), attributes=waiting),
        instructions[1]._replace(name="z", operands=(1,)),
    )
    entry = replace(module.entry, instructions=body, root=3)
    assert not faults_of(replace(module, computations=(entry,)))
