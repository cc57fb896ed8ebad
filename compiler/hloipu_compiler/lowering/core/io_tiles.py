"""IO tiles: tiles with the buffers of host streams, apart from the rest of the program.

What these tiles exchange with the host goes on beside computing (`costs/overlapping.py` of the
runtime says how that is charged). Graphcore's stack does so in its `io_tiles` options.
"""

from collections.abc import Sequence
from dataclasses import replace

from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.values import TileTensor
from hloipu_compiler.planners.placing import mapping_of
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.errors import UsageError
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.mapping import Mapping
from hloipu_runtime.program.program import Port, Role


@dataclass(frozen=True, slots=True)
class IoTiles:
    """The tiles that are set apart: the last ones."""

    first: int
    count: int

    def mapping(self, port: Port) -> Mapping:
        """Return where a stream's buffer lies."""
        bits = ELEMENT_TYPES[port.element_type].bits
        mapping = mapping_of(port.shape, bits, self.count)
        return Mapping(
            replace(mapping.tiles, first=mapping.tiles.first + self.first), mapping.spans
        )


def io_tiles_of(machine: Machine, count: int) -> IoTiles:
    """Return the tiles to set apart; UsageError E2044 where none are left to compute."""
    tiles = machine.chip.tiles_per_ipu
    if count >= tiles:
        raise UsageError(
            "E2044",
            f"{count} tiles are set apart for streams, {machine.name} has {tiles}",
            hint="leave tiles to compute on",
        )
    return IoTiles(tiles - count, count)


def computing_machine(machine: Machine, count: int) -> Machine:
    """Return a machine that lacks so many tiles, to place a program on; UsageError E2044."""
    return without_them(machine, io_tiles_of(machine, count)) if count else machine


def without_them(machine: Machine, tiles: IoTiles) -> Machine:
    """Return a machine that has the other tiles alone, to place a program on."""
    return replace(machine, chip=replace(machine.chip, tiles_per_ipu=tiles.first))


def taken_in(
    builder: Builder, tiles: IoTiles, ports: Sequence[Port], born: Sequence[Mapping | None]
) -> list[TileTensor]:
    """Write the steps that take an element into buffers, and from there to all other tiles.

    `born`: where each array is to lie there; None: where any of its shape does.
    """
    buffers = []
    for port in ports:
        variable = builder.variable(port.element_type, port.shape, tiles.mapping(port), Role.BUFFER)
        buffer = TileTensor(
            builder.value(port.element_type, port.shape), variable, port.element_type, port.shape
        )
        builder.emit(s.Sync())
        builder.emit(s.StreamIn(port.stream, variable, buffer.value))
        buffers.append(buffer)
    transfers, definitions, values = [], [], []
    for buffer, mapping in zip(buffers, born, strict=True):
        mapping = mapping or builder.default_mapping(buffer.element_type, buffer.shape)
        own = builder.variable(buffer.element_type, buffer.shape, mapping)
        transfer, definition = builder.plain_copy(buffer, own)
        transfers.append(transfer)
        definitions.append(definition)
        values.append(TileTensor(buffer.value, own, buffer.element_type, buffer.shape))
    builder.exchange(transfers, definitions)
    return values


def brought_out(builder: Builder, tiles: IoTiles, port: Port, leaf: TileTensor) -> TileTensor:
    """Write the copy of a result to its buffer; return it there."""
    variable = builder.variable(leaf.element_type, leaf.shape, tiles.mapping(port), Role.BUFFER)
    transfer, definition = builder.plain_copy(leaf, variable)
    builder.exchange([transfer], [definition])
    return TileTensor(leaf.value, variable, leaf.element_type, leaf.shape)
