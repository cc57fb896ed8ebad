"""Training steps cut over IPUs, micro-batches and replicas, with data of their own."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np

from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.errors import HloipuError
from hloipu_runtime.program.seen import seen_by_users
from hloipu_runtime.session.state import begun_states
from hloipu_runtime.simulate.run.ports import given_arrays
from tests.support import concurrent_trials, pipeline_trials
from tests.support.pipeline_reference import EVERY_STEP, UPDATES
from tools.prove_exchanges.inputs import Given, Streams
from tools.prove_exchanges.places import Subject

_EVERY_TOWERS = 4
"""One in so many has stages whose branches run at once."""


def cut_steps(count: int, seed: int) -> Iterator[Subject]:
    """Yield about `count` steps for the smallest machine, the same ones for a seed.

    They are cut in ways of which every two come together somewhere: schedules, groups, replicas,
    parts of the optimizer's state, and what lies in remote memory.
    """
    towers = iter(concurrent_trials.sample(count, seed))
    for number, cut in enumerate(pipeline_trials.sample(count, seed)):
        compiling: Callable[[], CompiledProgram]
        if number % _EVERY_TOWERS == _EVERY_TOWERS - 1:
            beside = next(towers)
            step, name, batches = beside.step, f"towers {beside}", beside.micro_batches
            compiling = partial(concurrent_trials.compiled, beside)
        else:
            step, name, batches = EVERY_STEP[cut.step], str(cut), cut.micro_batches
            compiling = partial(pipeline_trials.compiled, cut)
        try:
            program = compiling()
        except HloipuError:  # such as a step that has fewer places to cut it at
            continue
        yield subject_of(name, program, step, batches)


def subject_of(name: str, compiled: CompiledProgram, step: Any, micro_batches: int) -> Subject:
    """Return a compiled step of `training_steps`, with its own state and batches."""
    program = compiled.program
    state = [np.asarray(x) for x in jax.tree.leaves(step.state())]
    states = begun_states(program, state, 0, range(program.participants))
    streams = tuple(
        _streams(compiled, step, UPDATES * micro_batches, replica)
        for replica in range(program.participants)
    )
    tiles = compiled.machine.chip.tiles_per_ipu
    return Subject(name, program, tiles, (Given(streams, tuple(states)),))


def _streams(compiled: CompiledProgram, step: Any, count: int, replica: int) -> Streams:
    """Return what the feeds of a replica carry."""
    program = compiled.program
    seen = seen_by_users(program)
    arrays_by_stream: dict[str, list[Any]] = {}
    for queue in seen.queues:
        for number in range(count) if queue.to_device else ():
            batch = step.batch(number * program.participants + replica)
            for stream, array in seen.into_pieces(given_arrays(queue.streams, batch)).items():
                arrays_by_stream.setdefault(stream, []).append(array)
    return {stream: tuple(arrays) for stream, arrays in arrays_by_stream.items()}
