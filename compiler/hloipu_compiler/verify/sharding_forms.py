"""Shardings in a normal form, so that two ways of writing one sharding compare as equal.

Source: openxla/xla `xla/hlo/ir/hlo_sharding.cc` (PartialTile, Subgroup, operator==), probed with
jaxlib 0.10.2.
"""

from hloipu_compiler.hlo.device_order import MOST_EXPANDED
from hloipu_compiler.hlo.sharding import Sharding, ShardingKind
from hloipu_compiler.ir.shapes import Shape, TupleShape, leaves

WHOLE = frozenset(
    {
        ShardingKind.REPLICATED, ShardingKind.MANUAL, ShardingKind.UNKNOWN, ShardingKind.UNREDUCED
    }
)  # fmt: skip
"""Kinds that say one thing of the whole value, so that they fit every shape."""


def leaf_shardings(sharding: Sharding, shape: Shape) -> tuple[Sharding, ...]:
    """Return the sharding of each leaf; one sharding for a whole tuple counts for every leaf."""
    if sharding.kind is ShardingKind.TUPLE:
        return sharding.elements
    count = sum(1 for _ in leaves(shape)) if isinstance(shape, TupleShape) else 1
    return (sharding,) * count


def effective_kind(sharding: Sharding) -> ShardingKind:
    """Return the kind after XLA's simplification: a tiling that splits nothing is no tiling."""
    kind = sharding.kind
    if kind is ShardingKind.TILED and max(sharding.data_tiles, default=1) == 1:
        roles = set(sharding.subgroups)
        if sharding.last_tile_dim_replicate:
            roles.add(ShardingKind.REPLICATED)
        if len(roles) == 1 and (sharding.device_count or 0) > 1:
            return roles.pop()
    named = sharding.named
    if kind is ShardingKind.NAMED and named is not None:
        if named.mesh.is_maximal:
            return ShardingKind.MAXIMAL
        if max(named.data_tiles, default=1) == 1:
            axes = len(named.mesh.axis_sizes)
            if not named.manual and not named.unreduced:
                return ShardingKind.REPLICATED
            if len(named.manual) == axes:
                return ShardingKind.MANUAL
            if len(named.unreduced) == axes:
                return ShardingKind.UNREDUCED
    return kind


def assigned_devices(sharding: Sharding) -> tuple[int, ...] | None:
    """Return the device of each tile in order; None for more than 2**20 of them.

    Tiles that a list leaves out are on device 0, as XLA reads it.
    """
    count = sharding.device_count or 0
    if count > MOST_EXPANDED:
        return None
    devices = sharding.devices.devices(count)
    return devices + (0,) * (count - len(devices))


def normal_form(sharding: Sharding) -> tuple[object, ...]:
    """Return a value that is equal for shardings of a leaf that mean the same.

    Metadata, axis names, and the order within a replicated group do not count.
    """
    kind = effective_kind(sharding)
    group = (kind, sharding.shard_group)
    named = sharding.named
    if kind is ShardingKind.MAXIMAL:
        return (*group, *(named.mesh.devices.listed if named else sharding.devices.listed))
    if kind in WHOLE:
        return (*group, named.reduction if named else "sum")
    if named is not None:
        dimensions = named.dimensions
        return (
            *group, named.mesh.axis_sizes, named.mesh.devices, dimensions, named.manual,
            named.unreduced, named.reduction,
        )  # fmt: skip
    tiles, devices = sharding.data_tiles, assigned_devices(sharding)
    roles = sharding.subgroups or (
        (ShardingKind.REPLICATED,) if sharding.last_tile_dim_replicate else ()
    )
    if devices is None:
        return (*group, sharding.tile_dimensions, sharding.devices, roles)
    if roles == (ShardingKind.REPLICATED,):
        size = sharding.tile_dimensions[-1]
        groups = zip(*[iter(devices)] * size, strict=True)
        return (*group, tiles, roles, tuple(frozenset(x) for x in groups))
    return (*group, sharding.tile_dimensions, roles, devices)


def mean_the_same(a: Sharding, b: Sharding, shape: Shape) -> bool:
    """Whether two shardings of a value agree; a mesh and a list of devices by their tiles only."""
    first, second = leaf_shardings(a, shape), leaf_shardings(b, shape)
    if len(first) != len(second):
        return False
    for x, y in zip(first, second, strict=True):
        if (x.named is None) != (y.named is None) and effective_kind(x) not in WHOLE:
            if x.data_tiles != y.data_tiles:
                return False
        elif normal_form(x) != normal_form(y):
            return False
    return True
