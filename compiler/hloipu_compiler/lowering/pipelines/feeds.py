"""Reads queue elements in the first pipeline position that uses them."""

from collections.abc import Iterator

from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.io_tiles import IoTiles, taken_in
from hloipu_compiler.lowering.core.lowering import streamed_in
from hloipu_compiler.lowering.core.values import TileTensor
from hloipu_compiler.lowering.pipelines.draft import Making
from hloipu_compiler.plan.pipelining import Part, Position
from hloipu_runtime.program.program import Port


class Feeds:
    """The arrays of all feeds, as positions come to read them."""

    def __init__(self, making: Making) -> None:
        self.making = making
        self.streams = {
            number: (feed.name, f"{feed.name}.{k}")
            for feed in making.wrapping.feeds
            for k, number in enumerate(feed.places)
        }
        """Array of the parameters -> its queue and its stream."""

    def begin(self, number: int, position: Position) -> None:
        """Write how a position takes its elements, all at once, from tiles that are set apart."""
        apart = self.making.apart
        if apart is None:
            return
        by_ipu: dict[int, list[int]] = {}
        for part in position.parts:
            for fed in self._read_by(part):
                if not any(fed in taken for taken in by_ipu.values()):
                    at = self.making.module.entry.parameters[fed]
                    by_ipu.setdefault(self.making.ipu_for(part, at), []).append(fed)
        builder = self.making.builder
        for ipu, numbers in by_ipu.items():
            builder.ipu = ipu
            for fed, tensor in zip(
                numbers, self._handed_over(builder, apart, numbers), strict=True
            ):
                self._found(fed, tensor, number)

    def element(self, number: int, position: int) -> TileTensor:
        """Return an array of an element, taken in where it is not there yet."""
        making = self.making
        if number not in making.fed:
            making.builder.origin, stream = self.streams[number]
            fed = streamed_in(making.builder, stream, *making.calls.arrays[number])
            self._found(number, fed, position)
        return making.fed[number]

    def _handed_over(
        self, builder: Builder, apart: IoTiles, numbers: list[int]
    ) -> list[TileTensor]:
        builder.origin = self.streams[numbers[0]][0]
        ports = [Port(self.streams[n][1], *self.making.calls.arrays[n]) for n in numbers]
        return taken_in(builder, apart, ports, [None] * len(ports))

    def _found(self, number: int, fed: TileTensor, position: int) -> None:
        self.making.builder.scope.owned.discard(fed.variable)
        self.making.fed[number] = fed
        ipu = self.making.builder.variables[fed.variable].ipu
        self.making.maker[fed.value, ipu] = (position, fed)

    def _read_by(self, part: Part) -> Iterator[int]:
        """Yield what a call reads of feeds that no position has taken in."""
        making = self.making
        for operand in making.calls[part.call].operands:
            number = making.calls.parameter(operand)
            if number is not None and number in self.streams and number not in making.fed:
                yield number
