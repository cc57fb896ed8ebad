"""Pipelines in exact mode, slot by slot."""

from collections.abc import Callable, Sequence

from hloipu_runtime.program.channels import fetched, paged, popped, pushed, stored, taken_before
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import Channel, Pipeline, Stage, Step

Action = Callable[[], object]
Prepare = Callable[[Step], list[Action]]
Copies = list[list[list[Action]]]
"""Of each channel, and of each of its places: what fills or empties it."""


def pipelined(
    program: Program,
    step: Pipeline,
    firsts: Sequence[Sequence[Action]],
    fresh: Sequence[Sequence[Action]],
    bodies: Sequence[Sequence[Sequence[Action]]],
    prepare: Prepare,
) -> Action:
    """Return a pipeline as one call.

    Prepared are, of each position, `firsts`: what it does before a group of micro-batches; `fresh`:
    before each of them; `bodies`: each of its steps. `prepare`: what prepares copies.
    """
    table = step.timetable
    positions = range(len(step.stages))
    fetches = [
        _copies(program, [c for c in step.channels if c.consumer == position], _fetched, prepare)
        for position in positions
    ]
    pops = [
        {
            place: _copies(program, channels, _popped, prepare)
            for place, channels in taken_before(program, step, position).items()
        }
        for position in positions
    ]
    pushes = [
        _copies(program, [c for c in step.channels if c.producer == position], _handed, prepare)
        for position in positions
    ]

    pages_in = [_paged(stage, prepare, comes=True) for stage in step.stages]
    pages_out = [_paged(stage, prepare, comes=False) for stage in step.stages]

    def run() -> None:
        for slot in range(table.slots):
            active = [(n, table.micro_batch(n, slot) or 0) for n in table.active(slot)]
            for position, turn in reversed(active):
                if table.begins_group(turn):
                    for action in (*firsts[position], *pages_in[position]):
                        action()
                for action in fresh[position]:
                    action()
                _run(fetches[position], turn)
                for place, actions in enumerate(bodies[position]):
                    if place in pops[position]:
                        _run(pops[position][place], turn)
                    for action in actions:
                        action()
                if table.ends_group(turn):
                    for action in pages_out[position]:
                        action()
            for position, turn in active:
                _run(pushes[position], turn)

    return run


def _paged(stage: Stage, prepare: Prepare, *, comes: bool) -> list[Action]:
    return [action for copy in paged(stage, comes=comes) for action in prepare(copy)]


def _popped(program: Program, channel: Channel, place: int) -> tuple[Step, ...]:
    return (popped(program, (channel,), place),)


def _fetched(program: Program, channel: Channel, place: int) -> tuple[Step, ...]:
    return tuple(fetched(program, (channel,), place))


def _handed(program: Program, channel: Channel, place: int) -> tuple[Step, ...]:
    return (pushed(program, (channel,), place), *stored(program, (channel,), place))


def _copies(
    program: Program,
    channels: Sequence[Channel],
    copied: Callable[[Program, Channel, int], tuple[Step, ...]],
    prepare: Prepare,
) -> Copies:
    return [
        [
            [action for each in copied(program, channel, place) for action in prepare(each)]
            for place in range(len(channel.places))
        ]
        for channel in channels
    ]


def _run(copies: Copies, turn: int) -> None:
    for places in copies:
        for action in places[turn % len(places)]:
            action()
