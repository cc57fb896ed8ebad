"""The seed of a run is what the state of random ops begins with, and nothing else changes."""

from dataclasses import replace

import numpy as np

from hloipu_runtime.program.mapping import Mapping, Tiles, whole
from hloipu_runtime.program.program import RANDOM_STATE
from hloipu_runtime.simulate.run.seeding import seeded
from tests.support.program_builder import ProgramBuilder


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
