"""Forged state and queues: refused before anything is done with them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hloipu_runtime.errors import ArtefactError
from hloipu_runtime.program.program import Port, Program, Queue
from hloipu_runtime.program_io.file.program_codec import decode_program, encode_program
from tests.support.sessions import sums

PROGRAM = sums(2).program
A, B = PROGRAM.state
DATA, SEEN = PROGRAM.queues


def decoded(program: Program) -> Program:
    data = encode_program(program)
    return decode_program(data.meta, data.arrays)


def state(**fields: Any) -> Program:
    return replace(PROGRAM, state=(replace(A, **fields), B))


def queues(*changed: Queue) -> Program:
    return replace(PROGRAM, queues=changed)


def test_what_was_written_is_read() -> None:
    found = decoded(PROGRAM)
    assert (found.state, found.queues, found.steps_per_run) == ((A, B), (DATA, SEEN), 2)


@pytest.mark.parametrize(
    ("forged", "said"),
    [
        (lambda: state(variable=10**6), "no variable"),
        (lambda: state(variable=-1), "no variable"),
        (lambda: state(initial=10**6), "no such value"),
        (lambda: state(final=-1), "no such value"),
        (lambda: state(parameter=-2), "cannot be"),
        (lambda: state(name=""), "no name"),
        (lambda: state(name="x" * 5000), "a long one"),
        (lambda: state(name="b"), "two variables have one name"),
        (lambda: replace(PROGRAM, steps_per_run=0), "0 steps in a run"),
        (lambda: replace(PROGRAM, steps_per_run=2**62 + 1), "steps in a run"),
        (lambda: replace(PROGRAM, loaded=(*PROGRAM.loaded, 0)), "not those"),
        (lambda: replace(PROGRAM, loaded=(A.initial,)), "no constant holds"),
        (lambda: replace(PROGRAM, parameters=(Port("p", "f32", (7,)),)), "differs from its value"),
        (lambda: replace(PROGRAM, state=(), queues=()), "not those"),
        (lambda: queues(DATA, replace(SEEN, mode="some")), "in no way that there is"),
        (lambda: queues(DATA, replace(SEEN, name="data")), "two have one name"),
        (lambda: queues(DATA, replace(SEEN, streams=DATA.streams)), "two have one stream"),
        (lambda: queues(replace(DATA, streams=(), places=())), "not what it feeds"),
        (lambda: queues(replace(DATA, places=(1, 2))), "not what it feeds"),
        (lambda: queues(replace(DATA, streams=(Port("s", "f99", (6,)),))), "no element type"),
        (lambda: queues(replace(DATA, streams=(Port("s", "f32", (2**60,)),))), "more than"),
    ],
)
def test_forged_ones_are_refused(forged: Callable[[], Program], said: str) -> None:
    with pytest.raises(ArtefactError, match=said):
        decoded(forged())
