"""A machine: its sections of numbers, and where each number comes from."""

from collections.abc import Iterator
from typing import NamedTuple

from hloipu_runtime.frozen import dataclass
from hloipu_runtime.machine.schema import SCHEMA, full_key
from hloipu_runtime.machine.sections import (
    Amp,
    Chip,
    Emulation,
    Exchange,
    Host,
    Links,
    Memory,
    Pointers,
    Remote,
    Sync,
    Tile,
)


class MachineNumber(NamedTuple):
    """One number of a machine, as reports show it."""

    key: str
    value: int
    unit: str
    source: str
    assumed: bool


@dataclass(frozen=True, slots=True)
class Machine:
    """One kind of IPU and the systems built of it; equal machines give equal costs."""

    name: str
    description: str
    chip: Chip
    tile: Tile
    memory: Memory
    pointers: Pointers
    amp: Amp
    exchange: Exchange
    sync: Sync
    links: Links
    host: Host
    remote: Remote
    emulation: Emulation
    sources: tuple[tuple[str, str], ...]
    """Dotted key and source of every number, in the order of the sections."""
    assumed: frozenset[str]
    """Dotted keys of the numbers that rest on no source."""

    def __hash__(self) -> int:
        """Return what equal machines share; prices of all kinds are looked up by it."""
        return hash(self.name)

    @property
    def interleaved_bytes(self) -> int:
        """Bytes of a tile's memory that code cannot lie in, and that load at twice the width."""
        return self.memory.bytes_per_tile - self.memory.executable_bytes

    @property
    def usable_bytes(self) -> int:
        """Bytes of a tile's memory that a program can be loaded into."""
        return self.memory.bytes_per_tile - self.memory.reserved_bytes

    def value_of(self, name: str) -> int:
        """Return a number by its key; MachineError E3203 where there is none of this name."""
        section, field = full_key(name).split(".")
        value: int = getattr(getattr(self, section), field)
        return value

    def source_of(self, name: str) -> str:
        """Return where a number comes from; MachineError E3203 where there is none of this name."""
        return dict(self.sources)[full_key(name)]

    def rests_on_assumption(self, *keys: str) -> bool:
        """Whether any of these numbers, by their dotted keys, rests on no source."""
        return not self.assumed.isdisjoint(keys)

    def numbers(self) -> Iterator[MachineNumber]:
        """Yield every number with its key, unit and source, in the order of the sections."""
        for key, source in self.sources:
            yield MachineNumber(
                key, self.value_of(key), SCHEMA[key].unit, source, key in self.assumed
            )
