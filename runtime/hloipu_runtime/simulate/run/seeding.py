"""The seed of a run: the first state of ops that draw random numbers."""

from dataclasses import replace

import numpy as np

from hloipu_runtime.program.program import RANDOM_STATE, Program


def seeded(program: Program, seed: int) -> Program:
    """Return a program whose stateful random ops draw from the beginning of a seed's stream."""
    if not seed:
        return program
    state = np.array([seed, 0, 0], np.uint64)
    changed = {
        variable: (value, state)
        for variable, (value, array) in program.constants.items()
        if program.variables[variable].origin == RANDOM_STATE and array.shape == state.shape
    }
    return replace(program, constants={**program.constants, **changed}) if changed else program
