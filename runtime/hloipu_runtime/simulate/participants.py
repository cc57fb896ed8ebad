"""Runs all participants of a program, a thread each."""

import os
from collections.abc import Callable, Sequence
from math import prod
from typing import TypeVar

from hloipu_runtime.errors import LimitError
from hloipu_runtime.kernels.computing import computing
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.program.program import Program
from hloipu_runtime.simulate.run.meeting import Meeting
from hloipu_runtime.simulate.run.participant import Participant
from hloipu_runtime.streams.per_host import Elsewhere

T = TypeVar("T")

MOST_PARTICIPANTS = 512
"""Each takes a thread, and values of its own."""


def check_participants(program: Program) -> None:
    """Raise LimitError E5012 for more participants than can be run."""
    if program.participants > MOST_PARTICIPANTS:
        raise LimitError(
            "E5012",
            f"the program has {program.participants} participants, {MOST_PARTICIPANTS} can be run",
            limit="participants",
            allowed=MOST_PARTICIPANTS,
            found=program.participants,
            hint="declare them identical, or estimate",
        )


def check_host_memory(program: Program, participants: int) -> None:
    """Raise LimitError E5030 where this host cannot hold what so many participants are given.

    That is their state, arguments and results: the least that a run takes. A file may claim any.
    """
    ports = [*program.parameters, *program.results]
    ports += [port for queue in program.queues for port in queue.streams]
    tensors = [(port.element_type, port.shape) for port in ports]
    tensors += [
        (program.values[port.initial].element_type, program.values[port.initial].shape)
        for port in program.state
    ]
    needed = participants * sum(
        prod(shape) * storage_dtype(kind).itemsize for kind, shape in tensors
    )
    allowed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > allowed:
        raise LimitError(
            "E5030",
            f"the arrays of {participants} participants take {needed:,} bytes, this host has "
            f"{allowed:,}",
            limit="memory",
            allowed=allowed,
            found=needed,
            hint="declare the replicas identical, or estimate",
        )


def meeting_participants(program: Program, elsewhere: Elsewhere | None = None) -> list[Participant]:
    """Return all participants of a program, with one place to meet at for one run.

    Where others are `elsewhere`, those that are here.
    """
    check_participants(program)
    numbers = range(program.participants) if elsewhere is None else elsewhere.numbers
    meeting = Meeting(len(numbers), elsewhere)
    return [Participant(number, program.partitions, meeting) for number in numbers]


def run_together(participants: Sequence[Participant], run: Callable[[Participant], T]) -> list[T]:
    """Return what `run` gives for each participant; raises what the first one that failed raised.

    All others end with it. Numpy's and the processor's settings for floats, which threads have of
    their own, are set for each.
    """
    meeting = participants[0].meeting
    if meeting is None or len(participants) == 1:
        return [run(participant) for participant in participants]

    def ran(place: int) -> T:
        with computing():
            return run(participants[place])

    return meeting.hold(ran, len(participants))
