"""A pipeline in the exact mode: slot by slot, micro-batches side by side, as the tiles would."""

from collections.abc import Callable, Sequence

from hloipu_runtime.program.channels import popped, pushed
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import Channel, Exchange, Pipeline

Action = Callable[[], None]
Prepare = Callable[[Exchange], list[Action]]
Copies = list[list[list[Action]]]
"""Of each channel, and of each of its places: what fills or empties it."""


def pipelined(
    program: Program, step: Pipeline, bodies: Sequence[Sequence[Action]], prepare: Prepare
) -> Action:
    """Return a pipeline as one call.

    `bodies`: what each position does with a micro-batch, prepared; `prepare`: what prepares copies.
    """
    table = step.timetable
    positions = range(len(step.stages))
    pops = [
        _copies(program, [c for c in step.channels if c.consumer == position], popped, prepare)
        for position in positions
    ]
    pushes = [
        _copies(program, [c for c in step.channels if c.producer == position], pushed, prepare)
        for position in positions
    ]

    def run() -> None:
        for slot in range(table.slots):
            active = table.active(slot)
            for position in reversed(active):
                turn = (slot - position) // step.interval
                _run(pops[position], turn)
                for action in bodies[position]:
                    action()
            for position in active:
                _run(pushes[position], (slot - position) // step.interval)

    return run


def _copies(
    program: Program,
    channels: Sequence[Channel],
    copied: Callable[[Program, Sequence[Channel], int], Exchange],
    prepare: Prepare,
) -> Copies:
    return [
        [prepare(copied(program, (channel,), place)) for place in range(len(channel.places))]
        for channel in channels
    ]


def _run(copies: Copies, turn: int) -> None:
    for places in copies:
        for action in places[turn % len(places)]:
            action()
