"""What a pipeline copies between its positions, as exchanges."""

from collections.abc import Iterable

from hloipu_runtime.program.mapping import whole_box
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import (
    Channel,
    Definition,
    Exchange,
    Piece,
    Transfer,
    ValueId,
    VariableId,
)


def pushed(
    program: Program, channels: Iterable[Channel], place: int = 0, name: str = ""
) -> Exchange:
    """Return the copies at the end of a slot into one of the places of each channel."""
    copies = ((c.source, c.places[place], c.value) for c in channels)
    return _exchange(program, copies, name)


def popped(
    program: Program, channels: Iterable[Channel], place: int = 0, name: str = ""
) -> Exchange:
    """Return the copies before a consumer's body, of channels that are not read in place."""
    copies = (
        (c.places[place], c.destination, c.value) for c in channels if not is_read_in_place(c)
    )
    return _exchange(program, copies, name)


def is_read_in_place(channel: Channel) -> bool:
    """Whether a channel's only place is what the consumer reads."""
    return channel.places == (channel.destination,)


def _exchange(
    program: Program, copies: Iterable[tuple[VariableId, VariableId, ValueId]], name: str
) -> Exchange:
    transfers, definitions = [], []
    for source, destination, value in copies:
        record = program.variables[destination]
        box, zeros = whole_box(record.shape), (0,) * len(record.shape)
        tiles = record.mapping.tiles
        transfers.append(
            Transfer(
                source, destination, tiles, whole_box(tiles.extents), record.mapping.spans,
                box, zeros, record.shape, value,
            )
        )  # fmt: skip
        piece = Piece(value, record.shape, box, zeros)
        definitions.append(Definition(destination, value, None, (piece,)))
    return Exchange(tuple(transfers), tuple(definitions), name)
