"""Roles: a program passes as it stands, and is refused where a variable is for something else."""

import pytest

from hloipu_runtime.program.proof.roles import role_faults
from hloipu_runtime.program.proof.verify import faults_of
from tests.support.program_reader.parser import parse_program
from tests.support.program_texts import DOUBLE
from tests.support.program_texts_outside import MEET, RESIDENT, TWICE

BUFFERS = f"""\
program "buffers" for "tiny" ipus 1 steps 2
parameters {{
}}
results {{
}}
variables {{
  v0 "taken": f32[4] buffer @2[2 x 1] (a0*2:2)
  v1 "x": f32[4] @0[2 x 1] (a0*2:2)
  v2 "y": f32[4] @0[2 x 1] (a0*2:2)
  v3 "given": f32[4] buffer @2[2 x 1] (a0*2:2)
}}
values {{
  %0: f32[4]
  %1: f32[4]
}}
constants {{
}}
queues {{
  in "batch" ("batch.0": f32[4]) for 1
  out "seen" ("seen.0": f32[4])
}}
body {{
  repeat 2 "steps" () {{
    sync 1
    in "batch.0" -> v0 = %0
    sync 1
    exchange {{
      copy v0 = %0 -> v1
      define v1 = %0 of (%0)
    }}
    compute {{
      (v2 = %1 (a0*2:2)) <- {TWICE} @0[2 x 1] <- (v1 = %0 (a0*2:2))
    }}
    sync 1
    exchange {{
      copy v2 = %1 -> v3
      define v3 = %1 of (%1)
    }}
    sync 1
    out "seen.0" <- v3 = %1
  }}
}}
"""
"""Two tiles compute, and two others exchange with the host."""

Change = tuple[str, str]

REFUSED: dict[str, tuple[str, Change]] = {
    "is loaded, and is a temporary": (RESIDENT, ("constant @", "@")),
    "stays from run to run, and is a temporary": (RESIDENT, ("state @", "@")),
    "is filled from the host, and is a temporary": (RESIDENT, ("parameter @", "@")),
    "is not loaded, and is a constant": (BUFFERS, ('"x": f32[4] @', '"x": f32[4] constant @')),
    "does not stay from run to run": (BUFFERS, ('"x": f32[4] @', '"x": f32[4] state @')),
    "is not filled from the host": (BUFFERS, ('"x": f32[4] @', '"x": f32[4] parameter @')),
    "is neither filled from the host nor drained": (
        BUFFERS,
        ('"x": f32[4] @', '"x": f32[4] buffer @'),
    ),
    "is not copied from or to": (MEET, ('"part": f32[2] @', '"part": f32[2] remote @')),
    "lies on tiles that are set apart": (BUFFERS, ('"x": f32[4] @0', '"x": f32[4] @1')),
    "a step computes on it": (BUFFERS, ('"y": f32[4] @0[2', '"y": f32[4] buffer @2[2')),
    "parameter.0 is not a stream of a queue": (DOUBLE, ("parameter @0[2", "buffer @2[2")),
}


@pytest.mark.parametrize("message", REFUSED)
def test_another_role_is_refused(message: str) -> None:
    text, (before, after) = REFUSED[message]
    assert before in text
    assert faults_of(parse_program(text, name="right"), 4) == []
    changed = parse_program(text.replace(before, after), name="wrong")
    assert message in str([*role_faults(changed)])


def test_the_proof_asks_for_roles() -> None:
    changed = parse_program(RESIDENT.replace("parameter @", "@"), name="wrong")
    assert [x.rule for x in faults_of(changed, 4)] == ["role"]


def test_a_parameter_on_tiles_that_nothing_else_has_is_no_buffer() -> None:
    """Its tiles do nothing else, but no turn of a loop has one more element for it."""
    moved = BUFFERS.replace('  in "batch" ("batch.0": f32[4]) for 1\n', "").replace(
        "parameters {\n", 'parameters {\n  "batch.0": f32[4]\n'
    )
    assert {x.rule for x in faults_of(parse_program(moved, name="wrong"), 4)} == {"role"}


@pytest.mark.parametrize("later", ["taken", "given"])
def test_tiles_are_set_apart_from_the_first_buffer_on(later: str) -> None:
    moved = BUFFERS.replace(f'"{later}": f32[4] buffer @2', f'"{later}": f32[4] buffer @4')
    assert moved != BUFFERS
    before = parse_program(moved, name="before")
    assert [*role_faults(before)] == []
    among = parse_program(moved.replace('"x": f32[4] @0', '"x": f32[4] @2'), name="among")
    ((name, message),) = role_faults(among)
    assert name == "x"
    assert "set apart for streams" in message
