"""State kept between runs, also after a failed run."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np

from hloipu_runtime.program import steps as s
from hloipu_runtime.program.program import RANDOM_STATE, Array, Program

Moment = Literal["end", "begin", "turn", "following", "lost"]
"""Of a run: its end, its begin, the begin or the end of an iteration of the loop around it."""


Held = tuple[Moment, Sequence[tuple[str, s.ValueId]]]
"""A moment, and the value of each array of the state then."""


class KeptState(NamedTuple):
    """The arrays of the state by name, in storage form, and of which moment of the run they are."""

    moment: Moment
    arrays: dict[str, Array]


def kept_state(moments: Sequence[Held], values: Sequence[Array | None]) -> KeptState:
    """Return the state from the arrays of all values after a run, ended or broken off.

    `moments` are those of the program. Of a run that was broken off it is what the last whole step
    left: the first set of values that is complete. Arrays that were about to be overwritten are no
    values any more.
    """
    for moment, holds in moments:
        state = {name: values[value] for name, value in holds}
        whole = {name: array for name, array in state.items() if array is not None}
        if len(whole) == len(state):
            return KeptState(moment, whole)
    return KeptState("lost", {})


def moments_of(program: Program) -> list[Held]:
    """Return what the state's variables hold at the end, and before and after each iteration."""
    ports = program.state
    if not ports:
        return []
    carried: list[tuple[Moment, dict[s.VariableId, s.ValueId]]] = []
    fixed = {port.variable: port.initial for port in ports}
    for step in program.body.steps:
        if isinstance(step, s.Repeat):
            mine = [item for item in step.carried if item.variable in fixed]
            carried.append(("turn", fixed | {item.variable: item.turn for item in mine}))
            carried.append(("following", fixed | {item.variable: item.following for item in mine}))
    return [
        ("end", [(port.name, port.final) for port in ports]),
        ("begin", [(port.name, port.initial) for port in ports]),
        *((moment, [(port.name, of[port.variable]) for port in ports]) for moment, of in carried),
    ]


def streams_before_work(program: Program) -> frozenset[str]:
    """Return the streams that a step takes from before it computes: at these it may stop unharmed.

    Where the program is a loop around the step, those at the start of each iteration.
    """
    streams: set[str] = set()
    kept = {port.variable for port in program.state}
    steps: Sequence[s.Step] = program.body.steps
    while steps:
        rest: Sequence[s.Step] = ()
        is_around = any(isinstance(step, s.Repeat) for step in steps)
        for step in steps:
            if isinstance(step, s.StreamIn):
                streams.add(step.stream)
            elif isinstance(step, s.Repeat):
                rest = step.body.steps
                break
            elif isinstance(step, s.Exchange) and not kept & {
                definition.variable for definition in step.definitions
            }:
                continue
            elif is_around and isinstance(step, s.ComputeSet) and not kept & _outputs(step):
                continue  # what is made before a loop, such as the zeros that last results begin as
            elif not isinstance(step, s.Sync):
                break
        steps = rest
    return frozenset(streams)


def _outputs(step: s.ComputeSet) -> set[s.VariableId]:
    return {part.variable for group in step.groups for part in group.outputs}


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
