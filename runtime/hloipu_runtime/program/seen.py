"""A program's inputs and outputs as users see them, pieces and blocks joined."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from hloipu_runtime.frozen import dataclass
from hloipu_runtime.program.mapping import Sizes
from hloipu_runtime.program.program import Port, Program, Queue, StatePort
from hloipu_runtime.program.stacks import PARAMETER, RESULT, STREAM, Array, Numbering, Stack
from hloipu_runtime.program.state_parts import user_shape

if TYPE_CHECKING:
    from hloipu_runtime.program.blocks import Blocks


class SeenState(NamedTuple):
    """An array that stays on the device."""

    name: str
    element_type: str
    shape: Sizes
    parameter: int
    """The user's number; -1: it stands for none."""
    result: int
    ports: tuple[StatePort, ...]
    """Of its pieces, or its own."""
    stack: Stack | None
    blocks: "Blocks | None" = None
    """Of partitions, where each has one."""

    def pieces(self, array: Array) -> list[Array]:
        """Return what its ports hold of an array."""
        return [array] if self.stack is None else self.stack.pieces(array)

    def joined(self, pieces: Sequence[Array]) -> Array:
        """Return the array that its ports hold."""
        return pieces[0] if self.stack is None else self.stack.joined(pieces)


class Split(NamedTuple):
    """The streams of a program that carry the pieces of what users see as one."""

    streams: tuple[str, ...]
    stack: Stack


@dataclass(frozen=True)
class Seen:
    """Parameters, results, state and queues by the users' numbers."""

    parameters: tuple[Port, ...]
    loaded: int
    """So many of the parameters, the first ones, lie on the device as constants do."""
    results: tuple[Port, ...]
    state: tuple[SeenState, ...]
    queues: tuple[Queue, ...]
    split: Mapping[str, Split]
    """By the stream that users see; others are the program's own."""
    moved: Mapping[str, str]
    """The program's stream by the users', where pieces before it shift its number."""
    blocks: "Mapping[str, Blocks]"
    """By the stream that users see, those of arrays of which each partition has one."""

    @cached_property
    def blocks_of_streams(self) -> "dict[str, Blocks]":
        """Blocks by the program's streams: those of pieces, too, which are cut first."""
        blocks_by_stream: dict[str, Blocks] = {}
        for stream, blocks in self.blocks.items():
            split = self.split.get(stream)
            if split is None:
                blocks_by_stream[self.moved.get(stream, stream)] = blocks
                continue
            stack = split.stack
            for piece_stream, size in zip(split.streams, stack.sizes, strict=True):
                blocks_by_stream[piece_stream] = blocks.of_piece(stack.axis, size)
        return blocks_by_stream

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each parameter by its stream, see `number_of`."""
        return {port.stream: number_of(port) for port in self.parameters}

    def streams(self, stream: str) -> tuple[str, ...]:
        """Return the program's streams of what users see as one."""
        split = self.split.get(stream)
        return split.streams if split is not None else (self.moved.get(stream, stream),)

    def into_pieces(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return arrays by the program's streams, from arrays by those that users see."""
        pieces: dict[str, Array] = {}
        for stream, array in arrays.items():
            if stream in self.split:
                split = self.split[stream]
                pieces |= zip(split.streams, split.stack.pieces(array), strict=True)
            else:
                pieces[self.moved.get(stream, stream)] = array
        return pieces

    def block_of(self, arrays: Mapping[str, Array], participant: int) -> dict[str, Array]:
        """Return a participant's blocks of arrays by the streams that users see.

        All of what has no blocks.
        """
        block_by_stream = dict(arrays)
        for stream in self.blocks.keys() & block_by_stream.keys():
            blocks = self.blocks[stream]
            block_by_stream[stream] = blocks.block(
                block_by_stream[stream], participant % blocks.partitions
            )
        return block_by_stream

    def whole(self, outputs: Sequence[Mapping[str, Array]]) -> Sequence[Mapping[str, Array]]:
        """Return whole arrays of each replica from those of each participant.

        By the streams that users see.
        """
        counts = {blocks.partitions for blocks in self.blocks.values()}
        if not counts:
            return outputs
        (count,) = counts
        return [
            {
                stream: self.blocks[stream].joined([x[stream] for x in mine], stream)
                if stream in self.blocks
                else array
                for stream, array in mine[0].items()
            }
            for mine in (outputs[n : n + count] for n in range(0, len(outputs), count))
        ]

    def joined(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return the results by the streams that users see, from those of the program."""
        array_by_stream = {}
        for port in self.results:
            split = self.split.get(port.stream)
            if split is None:
                array_by_stream[port.stream] = arrays[self.moved.get(port.stream, port.stream)]
            else:
                array_by_stream[port.stream] = split.stack.joined(arrays[x] for x in split.streams)
        return array_by_stream


def seen_by_users(program: Program) -> Seen:
    """Return what users see of a program whose stacks fit (`verify_stacks`), found once."""
    cached: Seen | None = program.__dict__.get("_seen")
    if cached is None:
        cached = program.__dict__["_seen"] = _seen(program)
    return cached


def _seen(program: Program) -> Seen:
    parameter_numbering = Numbering(program.stacks, PARAMETER)
    result_numbering = Numbering(program.stacks, RESULT)
    split: dict[str, Split] = {}
    moved: dict[str, str] = {}
    parameter_blocks: Mapping[int, Blocks] = {}
    result_blocks: Mapping[int, Blocks] = {}
    stream_blocks: Mapping[int, Blocks] = {}
    if program.partitioning is not None:
        from hloipu_runtime.program.blocks import blocks_by_number

        parameter_blocks = blocks_by_number(program.partitioning, PARAMETER)
        result_blocks = blocks_by_number(program.partitioning, RESULT)
        stream_blocks = blocks_by_number(program.partitioning, STREAM)
    blocks: dict[str, Blocks] = {}
    parameters = _whole(
        _ports(program, program.parameters, parameter_numbering, split, moved),
        parameter_blocks,
        blocks,
    )
    firsts = accumulate((len(x.streams) for x in program.queues), initial=0)
    loaded = len(
        _ports(program, program.parameters[: len(program.loaded)], parameter_numbering, {}, {})
    )
    return Seen(
        parameters,
        loaded,
        _whole(
            _ports(program, program.results, result_numbering, split, moved), result_blocks, blocks
        ),
        tuple(_states(program, parameter_numbering, result_numbering, parameter_blocks)),
        tuple(
            _whole_queue(
                _queue(x, parameter_numbering if x.to_device else result_numbering, split),
                parameter_blocks if x.to_device else result_blocks,
                first,
                stream_blocks,
                blocks,
            )
            for x, first in zip(program.queues, firsts, strict=False)
        ),
        split,
        moved,
        blocks,
    )


def number_of(port: Port) -> int:
    """Return the number in the stream of a parameter or a result; -1 where it has none."""
    number = port.stream.rpartition(".")[2]
    return int(number) if number.isdecimal() else -1


def _ports(
    program: Program,
    ports: Sequence[Port],
    numbering: Numbering,
    split: dict[str, Split],
    moved: dict[str, str],
) -> tuple[Port, ...]:
    """Return parameters or results as users number them."""
    if not numbering.stacks:
        return tuple(ports)
    user_ports = []
    for array in numbering.wholes([number_of(x) for x in ports]):
        first = ports[array.places[0]]
        kind = first.stream.rpartition(".")[0]
        port = replace(first, stream=f"{kind}.{array.number}")
        if array.stack is not None:
            port = replace(port, shape=array.stack.shape)
            streams = tuple(ports[place].stream for place in array.places)
            split[port.stream] = Split(streams, array.stack)
        elif port.stream != first.stream:
            moved[port.stream] = first.stream
        user_ports.append(port)
    return tuple(user_ports)


def _whole(
    ports: Sequence[Port], by_number: "Mapping[int, Blocks]", blocks_by_stream: "dict[str, Blocks]"
) -> tuple[Port, ...]:
    """Return ports of whole arrays; `blocks_by_stream` takes the blocks of each stream."""
    if not by_number:
        return tuple(ports)
    return tuple(
        _whole_port(port, by_number.get(number_of(port)), blocks_by_stream) for port in ports
    )


def _whole_port(port: Port, blocks: "Blocks | None", blocks_by_stream: "dict[str, Blocks]") -> Port:
    if blocks is None:
        return port
    blocks_by_stream[port.stream] = blocks
    return replace(port, shape=blocks.shape)


def _whole_queue(
    queue: Queue,
    by_place: "Mapping[int, Blocks]",
    first: int,
    by_stream: "Mapping[int, Blocks]",
    blocks_by_stream: "dict[str, Blocks]",
) -> Queue:
    """Return a queue of whole arrays; `first`: the number of its first stream."""
    numbers = queue.places or range(first, first + len(queue.streams))
    by_number = by_place if queue.places else by_stream
    pairs = zip(queue.streams, numbers, strict=True)
    ports = tuple(
        _whole_port(port, by_number.get(number), blocks_by_stream) for port, number in pairs
    )
    return replace(queue, streams=ports)


def _states(
    program: Program,
    parameter_numbering: Numbering,
    result_numbering: Numbering,
    by_number: "Mapping[int, Blocks]",
) -> Iterator[SeenState]:
    for array in parameter_numbering.wholes([port.parameter for port in program.state]):
        ports = tuple(program.state[place] for place in array.places)
        kind = program.variables[ports[0].variable].element_type
        result = result_numbering.users(ports[0].result)
        stack = array.stack
        if stack is None:
            name, shape = ports[0].name, user_shape(program, ports[0])
        else:
            name, shape = stack.name, stack.shape
        blocks = by_number.get(array.number)
        shape = shape if blocks is None else blocks.shape
        yield SeenState(name, kind, shape, array.number, result, ports, stack, blocks)


def _queue(queue: Queue, numbering: Numbering, split: dict[str, Split]) -> Queue:
    """Return a queue whose elements are whole; a leaf has the name of its first piece's stream."""
    if not queue.places or not numbering.stacks:
        return queue
    streams, places, names = [], [], []
    for array in numbering.wholes(queue.places):
        ports = [queue.streams[place] for place in array.places]
        port = ports[0]
        if array.stack is not None:
            port = replace(port, shape=array.stack.shape)
            split[port.stream] = Split(tuple(x.stream for x in ports), array.stack)
        streams.append(port)
        places.append(array.number)
        if queue.names:
            stack = array.stack if queue.to_device else None
            names.append(stack.name if stack else queue.names[array.places[0]])
    return replace(queue, streams=tuple(streams), places=tuple(places), names=tuple(names))
