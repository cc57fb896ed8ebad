"""Pipeline channels: copies between positions, and from and to remote memory."""

from collections.abc import Iterable, Iterator, Mapping

from hloipu_runtime.program import steps as s
from hloipu_runtime.program.collective import RemoteCopy
from hloipu_runtime.program.mapping import whole_box
from hloipu_runtime.program.program import Program, Role
from hloipu_runtime.program.uses import read_first, used, written

_LATE_BYTES = 512
"""Of a tile: what takes less is not worth a step of its own. Assumed: the code of a step and the
state of the vertices that copy take a hundred or two."""


def pushed(
    program: Program, channels: Iterable[s.Channel], place: int = 0, name: str = ""
) -> s.Exchange:
    """Return the copies at the end of a slot into one of the places of each channel.

    What waits in remote memory goes to its destination, if that is on another IPU.
    """
    copies = (
        (c.source, c.destination if is_offloaded(program, c) else c.places[place], c.value)
        for c in channels
        if not is_offloaded(program, c) or crosses(program, c)
    )
    return _exchange(program, copies, name)


def stored(program: Program, channels: Iterable[s.Channel], place: int = 0) -> Iterator[RemoteCopy]:
    """Yield what goes to remote memory at the end of a slot, after the exchange."""
    for c in channels:
        if is_offloaded(program, c):
            leaving = c.destination if crosses(program, c) else c.source
            yield RemoteCopy(leaving, c.places[place], c.value)


def fetched(
    program: Program, channels: Iterable[s.Channel], place: int = 0
) -> Iterator[RemoteCopy]:
    """Yield what comes from remote memory before a consumer's body."""
    for c in channels:
        if is_offloaded(program, c):
            yield RemoteCopy(c.places[place], c.destination, c.value)


def popped(
    program: Program, channels: Iterable[s.Channel], place: int = 0, name: str = ""
) -> s.Exchange:
    """Return the copies before a consumer's body, of channels that are not read in place."""
    copies = (
        (c.places[place], c.destination, c.value)
        for c in channels
        if not is_read_in_place(c) and not is_offloaded(program, c)
    )
    return _exchange(program, copies, name)


def taken_before(
    program: Program, step: s.Pipeline, position: int
) -> Mapping[int, tuple[s.Channel, ...]]:
    """Return what a position copies from its channels, by the step of its body that comes next.

    Small values come before the body, so that one exchange does for all of them. What takes more
    comes right before the first step that touches it: until then it takes memory in its place only.
    What is read in place, or comes from remote memory, is left out.
    """
    stage = step.stages[position]
    on_tiles = [
        c
        for c in step.channels
        if c.consumer == position and not is_read_in_place(c) and not is_offloaded(program, c)
    ]
    waiting = {
        c.destination
        for c in on_tiles
        if program.variables[c.destination].bytes_per_tile >= _LATE_BYTES
    }
    first: dict[s.VariableId, int] = {}
    for number, inner in enumerate(stage.body.steps):
        if not waiting:
            break
        first_touched = waiting & used(inner, program)
        first.update(dict.fromkeys(first_touched, number))
        waiting -= first_touched
    channels_by_step: dict[int, list[s.Channel]] = {}
    for channel in on_tiles:
        channels_by_step.setdefault(first.get(channel.destination, 0), []).append(channel)
    return {number: tuple(channels) for number, channels in sorted(channels_by_step.items())}


def paged(stage: s.Stage, *, comes: bool) -> Iterator[RemoteCopy]:
    """Yield what brings the pages of a position from remote memory, or back there.

    What is copied has another value in each group; the copies say none.
    """
    for page in stage.paged:
        yield RemoteCopy(*(page if comes else page[::-1]), -1)


def is_read_in_place(channel: s.Channel) -> bool:
    """Whether a channel's only place is what the consumer reads."""
    return channel.places == (channel.destination,)


def read_where_made(program: Program, step: s.Pipeline) -> Iterator[tuple[int, s.VariableId]]:
    """Yield the positions that read what earlier ones have made, without a channel, and the values.

    A value is yielded for the first such position alone. What a position writes before it reads it,
    as the variables of functions that others call, too, waits for nothing.
    """
    writer: dict[s.VariableId, int] = {}
    handed = {v for c in step.channels for v in (*c.places, c.destination)}
    for number, stage in enumerate(step.stages):
        for variable in sorted(read_first(stage.body, program) & writer.keys() - handed):
            if writer.pop(variable) < number:
                yield number, variable
        changed = written(stage.body, program)
        writer.update((variable, number) for variable in changed)


def is_offloaded(program: Program, channel: s.Channel) -> bool:
    """Whether what is under way waits in remote memory."""
    return bool(channel.places) and program.variables[channel.places[0]].role is Role.REMOTE


def crosses(program: Program, channel: s.Channel) -> bool:
    """Whether a channel leads from one IPU to another."""
    variables = program.variables
    return variables[channel.source].ipu != variables[channel.destination].ipu


def _exchange(
    program: Program, copies: Iterable[tuple[s.VariableId, s.VariableId, s.ValueId]], name: str
) -> s.Exchange:
    transfers, definitions = [], []
    for source, destination, value in copies:
        record = program.variables[destination]
        box, zeros = whole_box(record.shape), (0,) * len(record.shape)
        tiles = record.mapping.tiles
        transfers.append(
            s.Transfer(
                source, destination, tiles, whole_box(tiles.extents), record.mapping.spans,
                box, zeros, record.shape, value,
            )
        )  # fmt: skip
        piece = s.Piece(value, record.shape, box, zeros)
        definitions.append(s.Definition(destination, value, None, (piece,)))
    return s.Exchange(tuple(transfers), tuple(definitions), name)
