"""What a run leaves of the state, told from the arrays that are there."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hloipu_runtime.program.mapping import Mapping, Tiles, whole
from hloipu_runtime.program.program import RANDOM_STATE, Array
from hloipu_runtime.program.steps import Repeat
from hloipu_runtime.simulate.run.kept_state import (
    kept_state,
    moments_of,
    seeded,
    streams_before_work,
)
from tests.support.program_builder import ProgramBuilder
from tests.support.sessions import SUMS, SWAP, compiled, sums

PROGRAM = sums(2).program
(LOOP,) = [step for step in PROGRAM.body.steps if isinstance(step, Repeat)]
MOMENTS = moments_of(PROGRAM)
CARRIED = {item.variable: item for item in LOOP.carried}


def values(**held: int) -> list[Array | None]:
    """Return arrays of all values: those of the ports at the moments that are named, filled."""
    found: list[Array | None] = [None] * len(PROGRAM.values)
    for moment, number in held.items():
        for port in PROGRAM.state:
            at = {"begin": port.initial, "end": port.final}.get(moment)
            at = getattr(CARRIED[port.variable], moment) if at is None else at
            found[at] = np.full(2, number)
    return found


@pytest.mark.parametrize("moment", ["begin", "turn", "following", "end"])
def test_the_moment_that_is_whole(moment: str) -> None:
    found = kept_state(MOMENTS, values(**{moment: 7}))
    assert found.moment == moment
    assert [array[0] for array in found.arrays.values()] == [7, 7]


def test_the_end_counts_before_the_rest() -> None:
    assert kept_state(MOMENTS, values(begin=1, end=2)).arrays["a"][0] == 2


def test_half_a_state_is_none() -> None:
    held = values(turn=1)
    held[CARRIED[PROGRAM.state[0].variable].turn] = None
    assert kept_state(MOMENTS, held) == ("lost", {})


def test_streams_that_come_before_all_work() -> None:
    assert streams_before_work(PROGRAM) == {"data.0"}
    called: dict[str, Any] = {
        "feeds": {"data": (2,)},
        "roles": {"3": "call"},
        "outfeeds": ("seen",),
        "loop": 2,
    }
    for apart in (0, 1):
        program = compiled(SUMS, io_tiles=apart, **called).program
        assert streams_before_work(program) == {"parameter.3", "data.0"}
    assert streams_before_work(compiled(SWAP, loop=2, roles={"s": "carry"}).program) == frozenset()


def test_only_states_of_random_ops_begin_with_the_seed() -> None:
    make = ProgramBuilder()
    state, other, longer = (make.constant((n,), Mapping(Tiles(), (whole(n),))) for n in (3, 3, 4))
    for variable in (state, longer):
        make.variables[variable] = replace(make.variables[variable], origin=RANDOM_STATE)
    program = make.program()
    assert seeded(program, 0) is program
    found = seeded(program, 7)
    value, array = found.constants[state]
    assert value == program.constants[state][0]
    assert (array.dtype, array.tolist()) == (np.uint64, [7, 0, 0])
    assert found.constants[other] is program.constants[other]
    assert found.constants[longer] is program.constants[longer]
    plain = ProgramBuilder().program()
    assert seeded(plain, 7) is plain
