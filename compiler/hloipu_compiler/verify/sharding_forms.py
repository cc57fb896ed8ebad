"""Normal form of shardings, for comparing them.

Source: openxla/xla `xla/hlo/ir/hlo_sharding.cc` (PartialTile, Subgroup, operator==), probed with
jaxlib 0.10.2.
"""

from hloipu_compiler.hlo.attributes.sharding import Sharding, ShardingKind
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


MOST_COMPARED = 4096
"""Devices up to which two assignments are compared one by one: a short text may claim any number,
in every line. Beyond it only the tiles are compared."""


def listed_devices(sharding: Sharding) -> tuple[int, ...]:
    """Return the device of each tile where devices are listed, as far as the list can reach.

    Tiles that a list leaves out are on device 0, as XLA reads it; one of them is shown for all
    when there are two or more.
    """
    listed = sharding.devices.listed
    missing = (sharding.device_count or 0) - len(listed)
    return listed + (0,) * min(missing, 2)


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
    tiles, count = sharding.data_tiles, sharding.device_count or 0
    roles = sharding.subgroups or (
        (ShardingKind.REPLICATED,) if sharding.last_tile_dim_replicate else ()
    )
    if count > MOST_COMPARED:
        return (*group, sharding.tile_dimensions, roles)
    devices = sharding.devices.devices(count)
    devices += (0,) * (count - len(devices))
    if roles == (ShardingKind.REPLICATED,):
        size = sharding.tile_dimensions[-1]
        groups = zip(*[iter(devices)] * size, strict=True)
        return (*group, tiles, roles, tuple(frozenset(members) for members in groups))
    return (*group, sharding.tile_dimensions, roles, devices)


def mean_the_same(a: Sharding, b: Sharding, shape: Shape) -> bool:
    """Whether two shardings of a value agree; a mesh and a list of devices by their tiles only."""
    first, second = leaf_shardings(a, shape), leaf_shardings(b, shape)
    if len(first) != len(second):
        return False
    for leaf_a, leaf_b in zip(first, second, strict=True):
        if (leaf_a.named is None) != (leaf_b.named is None) and effective_kind(leaf_a) not in WHOLE:
            if leaf_a.data_tiles != leaf_b.data_tiles:
                return False
        elif normal_form(leaf_a) != normal_form(leaf_b):
            return False
    return True
