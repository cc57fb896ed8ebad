"""The records of a memory report, and their JSON."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from hloipu_runtime.frozen import dataclass
from hloipu_runtime.memory.categories import Category
from hloipu_runtime.memory.remote_parts import RemoteCategory
from hloipu_runtime.program.mapping import Sizes

Parts = Mapping[Category, int]
SCHEMA = "hloipu.memory"
VERSION = 1


class Culprit(NamedTuple):
    """A variable that takes memory on the fullest tile at the moment of its peak."""

    name: str
    origin: str
    """The instruction that it holds the result of."""
    source: str
    """Where the program that was compiled says so, or nothing."""
    element_type: str
    shape: Sizes
    role: str
    size_bytes: int
    """On the tile, rounded up to the grain of addresses."""
    always_live: bool
    first_step: str
    last_step: str


class CodeCulprit(NamedTuple):
    """An instruction whose exchanges need code on the fullest tile."""

    origin: str
    source: str
    size_bytes: int


class Bin(NamedTuple):
    """Tiles that need at least `low_bytes` and fewer than `high_bytes`."""

    low_bytes: int
    high_bytes: int
    """-1: no bound."""
    tiles: int


class TilePeak(NamedTuple):
    """One tile's memory: what it needs in all, and the moment at which most of it is live."""

    ipu: int
    tile: int
    total_bytes: int
    step: str
    """Path of the step in the tree of steps."""
    step_name: str
    """Instructions that the step comes from."""
    always_live_bytes: int
    """Code, state of vertices, stacks, and variables that are live all the time."""
    not_always_live_bytes: int
    parts: Parts
    """By what they are for; their sum is `total_bytes`."""
    assumed: Parts = MappingProxyType({})
    """Of these parts, bytes that rest on sizes that no source tells."""


class IpuUse(NamedTuple):
    """One IPU's memory."""

    ipu: int
    peak_tile: int
    peak_bytes: int
    total_bytes: int
    """Of all its tiles."""
    tiles_used: int
    """Tiles that hold a variable."""
    gap_bytes: int
    """Of the fullest tile, what variables take beyond what is live at once (fragmentation)."""
    remote: Mapping[RemoteCategory, int] = MappingProxyType({})
    """Bytes of each kind in the memory beside it."""

    @property
    def remote_bytes(self) -> int:
        """Bytes in the memory beside it."""
        return sum(self.remote.values())

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        parts = {category.value: size for category, size in self.remote.items()}
        return {**self._asdict(), "remote_bytes": self.remote_bytes, "remote": parts}


@dataclass(frozen=True)
class MemoryReport:
    """The memory of a compiled program."""

    fits: bool
    code_memory: bool
    available_bytes: int
    """Of each tile."""
    executable_bytes: int
    remote_available_bytes: int
    """Beside each IPU."""
    peak: TilePeak
    """The fullest tile."""
    code_peak: TilePeak
    """The tile with most code."""
    code_bytes: int
    """Of that tile: what has to lie in the executable part."""
    culprits: tuple[Culprit, ...]
    culprits_left_out: int
    exchange_culprits: tuple[CodeCulprit, ...]
    """Whose exchanges need most code there."""
    total_bytes: int
    """Of all tiles."""
    parts: Parts
    """Of all tiles, each at its own peak; their sum is `total_bytes`."""
    ipus: tuple[IpuUse, ...]
    histogram: tuple[Bin, ...]

    @property
    def fullest_beside(self) -> IpuUse:
        """The IPU with most in its remote memory."""
        return max(self.ipus, key=lambda use: (use.remote_bytes, -use.ipu))

    @property
    def peak_bytes_per_tile(self) -> int:
        """Bytes that the fullest tile needs."""
        return self.peak.total_bytes

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object, keys in a fixed order."""
        return {
            "schema": SCHEMA,
            "version": VERSION,
            "fits": self.fits,
            "code_memory": self.code_memory,
            "available_bytes_per_tile": self.available_bytes,
            "executable_bytes_per_tile": self.executable_bytes,
            "remote_available_bytes_per_ipu": self.remote_available_bytes,
            "peak": _peak_json(self.peak),
            "code_peak": {**_peak_json(self.code_peak), "code_bytes": self.code_bytes},
            "culprits": [{**c._asdict(), "shape": list(c.shape)} for c in self.culprits],
            "culprits_left_out": self.culprits_left_out,
            "exchange_culprits": [c._asdict() for c in self.exchange_culprits],
            "total_bytes": self.total_bytes,
            "parts": _parts_json(self.parts),
            "ipus": [use.to_json() for use in self.ipus],
            "histogram": [one._asdict() for one in self.histogram],
        }


def _parts_json(parts: Parts) -> dict[str, int]:
    return {category.value: size for category, size in parts.items()}


def _peak_json(peak: TilePeak) -> dict[str, Any]:
    return {
        **peak._asdict(),
        "parts": _parts_json(peak.parts),
        "assumed": _parts_json(peak.assumed),
    }
