"""What a sharding says, as a value: kind, tiles, devices, subgroups; tuples hold one per leaf.

Source of the printed form: openxla/xla `xla/hlo/ir/hlo_sharding.cc`.
"""

from enum import Enum
from math import prod

from hloipu_compiler.hlo.attributes.mesh import PLAIN_ORDER, DeviceOrder
from hloipu_compiler.hlo.attributes.metadata import OpMetadata, metadata_list_text
from hloipu_compiler.hlo.attributes.named_sharding import NamedSharding
from hloipu_runtime.frozen import dataclass


class ShardingKind(Enum):
    """Kinds of shardings."""

    REPLICATED = "replicated"
    MAXIMAL = "maximal"
    """Whole on one device."""
    MANUAL = "manual"
    """The program is written per device; the value is already a shard."""
    UNKNOWN = "unknown"
    UNREDUCED = "unreduced"
    """Each device has a partial sum."""
    TILED = "tiled"
    NAMED = "named"
    """Tiled by the axes of a mesh (V3)."""
    TUPLE = "tuple"


@dataclass(frozen=True, slots=True)
class Sharding:
    """A sharding; fields beyond `kind` have their defaults where they do not apply.

    Two texts that say the same in other words (iota and list) give different values.
    """

    kind: ShardingKind
    tile_dimensions: tuple[int, ...] = ()
    """Tiles along each dimension of the value, then the subgroup dimensions."""
    devices: DeviceOrder = PLAIN_ORDER
    subgroups: tuple[ShardingKind, ...] = ()
    """What the last `len(subgroups)` tile dimensions are: replicated, manual…"""
    last_tile_dim_replicate: bool = False
    """The last tile dimension is a replication; the older way to write one subgroup."""
    shard_group: str = ""
    """`shard_as 1`, `shard_like 2`, or empty."""
    metadata: tuple[OpMetadata, ...] = ()
    named: NamedSharding | None = None
    elements: tuple["Sharding", ...] = ()
    """Of a tuple: one for each leaf, in order."""

    @property
    def device(self) -> int | None:
        """The one device of a maximal sharding."""
        if self.kind is ShardingKind.MAXIMAL:
            return self.devices.listed[0]
        return None

    @property
    def device_count(self) -> int | None:
        """Number of devices that it says, the largest of a tuple's; None where it says none."""
        if self.kind is ShardingKind.TILED:
            return prod(self.tile_dimensions)
        if self.named is not None:
            return self.named.mesh.device_count
        if self.kind is ShardingKind.MAXIMAL:
            return 1
        return max((e.device_count or 0 for e in self.elements), default=0) or None

    @property
    def data_tiles(self) -> tuple[int, ...]:
        """The tiles along the value's own dimensions; empty where it is not tiled."""
        if self.named is not None:
            return self.named.data_tiles
        extra = len(self.subgroups) + int(self.last_tile_dim_replicate)
        return self.tile_dimensions[: len(self.tile_dimensions) - extra]

    def __str__(self) -> str:
        if self.kind is ShardingKind.TUPLE:
            return f"{{{_joined(self.elements)}}}"
        if self.named is not None:
            return str(self.named)
        return f"{{{' '.join(filter(None, self._parts()))}}}"

    def _parts(self) -> list[str]:
        kind = self.kind.value
        if self.kind is ShardingKind.MAXIMAL:
            kind = f"maximal device={self.device}"
        elif self.kind is ShardingKind.TILED:
            tiles = ",".join(map(str, self.tile_dimensions))
            order = self.devices.order_text()
            kind = f"devices=[{tiles}]{'' if self.devices.listed else '<='}{order}"
        types = ", ".join(s.value for s in self.subgroups)
        return [
            kind,
            "last_tile_dim_replicate" if self.last_tile_dim_replicate else "",
            f"last_tile_dims={{{types}}}" if types else "",
            self.shard_group,
            metadata_list_text(self.metadata),
        ]


def _joined(elements: tuple[Sharding, ...]) -> str:
    parts = [
        f"/*index={i}*/{element}" if i and i % 5 == 0 else str(element)
        for i, element in enumerate(elements)
    ]
    return ", ".join(parts)
