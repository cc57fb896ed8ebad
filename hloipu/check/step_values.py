"""Values of a looped, cut or replicated step: from its program, and from a reference."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hloipu.initial_arrays import constant_numbers
from hloipu_compiler.interpret.planning.plan import Array
from hloipu_runtime.compiled import CompiledProgram, Mode
from hloipu_runtime.errors import UnsupportedError
from hloipu_runtime.kernels.replica_keys import folded
from hloipu_runtime.plain_text import printable
from hloipu_runtime.program.seen import number_of, seen_by_users
from hloipu_runtime.session.session import Session

Elements = Mapping[str, Sequence[tuple[Array, ...]]]
"""Of each feed, arrays in the order of its parameters."""
Numbered = dict[int, Array]
"""Arrays by the number of a parameter or a result."""


@dataclass(frozen=True)
class StepValues:
    """Values of a run of steps; those of several replicas have one more axis, the first.

    Arrays are in user dtypes, those of a reference in f64 perhaps in f64.
    """

    state: Numbered
    """At the end, by parameter."""
    results: Numbered
    """Of the first replica's last step, those that no queue takes."""
    outfed: dict[tuple[str, int], Array]
    """By queue and place in its elements: all elements, one after the other."""


@dataclass(frozen=True)
class Begun:
    """Initial state and constants of a run of steps."""

    states: list[Numbered]
    """Of each replica, by parameter."""
    constants: list[Numbered]
    """Likewise: what is loaded once, each replica's keys with its number folded in."""


@dataclass(frozen=True)
class Running:
    """Options of running a program."""

    mode: Mode
    poison: bool
    timeout: float


def values_of_program(
    program: CompiledProgram,
    arrays: Mapping[int, Array],
    elements: Elements,
    steps: int,
    running: Running,
) -> tuple[Begun, StepValues]:
    """Run a resident program for `steps` steps; return its initial state and its results.

    `arrays`: state and constants by parameter. Raises what sessions raise, UnsupportedError E0466
    for state of random ops, which no reference has.
    """
    user_view = seen_by_users(program.program)
    for port in user_view.state:
        if port.parameter < 0:
            raise UnsupportedError(
                "E0466",
                f"there is no reference for {printable(program.program.name)!r}: it draws random "
                "numbers by a generator of hloipu's own",
                hint="have the step take a key among its parameters, as jax.random does",
            )
    constants = {n: arrays[n] for n in constant_numbers(program.program)}
    with program.session(
        state={port.name: arrays[port.parameter] for port in user_view.state} or None,
        constants=constants,
        infeeds={name: iter(rows) for name, rows in elements.items()},
        mode=running.mode,
        poison=running.poison,
        timeout=running.timeout,
    ) as session:
        keys = set(program.program.keys)
        constants_by_replica = [
            {
                n: folded(np.asarray(array), r) if n in keys else array
                for n, array in constants.items()
            }
            for r in range(program.program.replicas)
        ]
        begun = Begun(_states(session), constants_by_replica)
        outputs = session.run(steps).outputs
        return begun, _values(session, outputs)


def _states(session: Session) -> list[Numbered]:
    ports = seen_by_users(session.program).state
    states = []
    for replica in range(session.program.replicas):
        state = session.state(replica)
        states.append({port.parameter: state[port.name] for port in ports})
    return states


def _values(session: Session, outputs: Sequence[Any]) -> StepValues:
    user_view = seen_by_users(session.program)
    outfed: dict[tuple[str, int], Array] = {}
    for queue in user_view.queues:
        if queue.to_device:
            continue
        rows = [arrived.element for arrived in session.arrived(queue.name)]
        columns = zip(*(row if isinstance(row, tuple) else (row,) for row in rows), strict=True)
        outfed |= {(queue.name, k): np.stack(column) for k, column in enumerate(columns)}
    results = {
        number_of(port): array for port, array in zip(user_view.results, outputs, strict=True)
    }
    return StepValues(joined(_states(session)), results, outfed)


def joined(replicas: Sequence[Numbered]) -> Numbered:
    """Return arrays with the replicas as their first axis, where there are several."""
    if len(replicas) == 1:
        return replicas[0]
    return {n: np.stack([replica[n] for replica in replicas]) for n in replicas[0]}
