"""One mesh for a whole module, and shardings as axes of it; from XLA's syntaxes and back.

All tile assignments and meshes of a module are digits of a device's place in one order of devices.
Cut at every boundary that some sharding has, and into primes between them, places have digits that
none divides further: the parts of the mesh, major to minor. A sharding lists parts for each
dimension, so that an axis, a part of one and a tile assignment are compared as integers.

    {devices=[2,1,4]<=[8] last_tile_dim_replicate}    parts 2, 2, 2    dimensions ((0,), ())
    {devices=[4,2]<=[2,4]T(1,0)}                                       dimensions ((1, 2), (0,))

Sources: openxla/xla `xla/hlo/ir/tile_assignment.h`, `xla/hlo/ir/hlo_sharding.cc`;
openxla/shardy `docs/sharding_representation.md`.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from math import gcd, prod

from hloipu_compiler.hlo.attributes.mesh import AxisRef, DeviceOrder, Mesh, strides_of
from hloipu_compiler.hlo.attributes.metadata import OpMetadata
from hloipu_compiler.hlo.attributes.named_sharding import NamedSharding
from hloipu_compiler.hlo.attributes.sharding_value import Sharding, ShardingKind
from hloipu_compiler.interpret.planning.device_blocks import Digit
from hloipu_compiler.ir.factors import DimensionRule, FactorKind
from hloipu_runtime.frozen import dataclass

MOST_LISTED = 2**16
"""Devices of an order that is no iota; longer lists are refused."""


class AxisFault(ValueError):
    """Shardings that are not digits of one order of devices."""


@dataclass(frozen=True)
class DeviceAxes:
    """The parts of a module's mesh."""

    sizes: tuple[int, ...] = ()
    """Of the parts, primes, major to minor."""
    devices: tuple[int, ...] = ()
    """The device at each place; empty: place and device are one number."""
    names: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """The parts of the axes that the text names."""
    numbers: tuple[int, ...] = ()
    """By device its number in the text; empty: the text counts from 0 as well."""

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """How many places apart the devices are that follow each other along a part."""
        return tuple(strides_of(self.sizes))

    @property
    def device_count(self) -> int:
        """Number of devices."""
        return prod(self.sizes)

    @property
    def everything(self) -> int:
        """All parts, as bits."""
        return (1 << len(self.sizes)) - 1

    def extent(self, parts: Iterable[int]) -> int:
        """Return the number of blocks that parts make."""
        return prod(self.sizes[part] for part in parts)

    def even(self, parts: tuple[int, ...], size: int) -> tuple[int, ...]:
        """Return as many of the parts, from the first on, as divide a size."""
        kept = 0
        while kept < len(parts) and size % self.extent(parts[: kept + 1]) == 0:
            kept += 1
        return parts[:kept]

    def of_whole_axes(self, parts: tuple[int, ...]) -> tuple[int, ...]:
        """Return the parts before the first one of an axis of which others are missing."""
        for kept, part in enumerate(parts):
            if any(part in own and not set(own) <= set(parts) for _, own in self.names):
                return parts[:kept]
        return parts

    def parts(self, digits: Iterable[Digit]) -> tuple[int, ...]:
        """Return the parts that digits are made of; AxisFault where they cut a part."""
        parts: list[int] = []
        for stride, size in digits:
            if size == 1:
                continue
            own = [i for i, s in enumerate(self.strides) if stride <= s < stride * size]
            if self.extent(own) != size or self.strides[own[-1]] != stride:
                raise AxisFault(f"blocks of {size} at distance {stride} cut an axis of the mesh")
            parts += own
        return tuple(parts)

    def text(self, parts: tuple[int, ...]) -> str:
        """Return parts by the names of their axes, else how far apart their devices stand."""
        left, names = parts, []
        while left:
            name, own = next(((n, p) for n, p in self.names if p and left[: len(p)] == p), ("", ()))
            if not own:
                each = [f"{self.sizes[p]} at distance {self.strides[p]}" for p in parts]
                return f"{self.extent(parts)} blocks ({', '.join(each)})"
            names.append(name)
            left = left[len(own) :]
        return f"{self.extent(parts)} blocks ({', '.join(names)})"


def bits(parts: Iterable[int]) -> int:
    """Return parts as bits."""
    mask = 0
    for part in parts:
        mask |= 1 << part
    return mask


@dataclass(frozen=True, slots=True)
class AxisSharding:
    """How one array is divided, by parts of the module's mesh."""

    dimensions: tuple[tuple[int, ...], ...] = ()
    """For each dimension its parts, major to minor."""
    closed: tuple[bool, ...] = ()
    """Whether no parts may be appended, for each dimension."""
    priorities: tuple[int, ...] = ()
    """In which round a dimension's parts are seen, for each; empty: all in the first."""
    replicated: int = 0
    """Bits of the parts that must not divide it."""
    unreduced: int = 0
    """Bits of the parts along which devices hold partial results."""
    manual: int = 0
    """Bits of the parts along which the program is written for each device."""
    reduction: str = "sum"
    """How partial results combine: sum, max or min."""
    device: int = -1
    """The only device that holds it; -1: all do."""

    @property
    def used(self) -> int:
        """Bits of the parts that can divide it no further."""
        own = bits(part for parts in self.dimensions for part in parts)
        return own | self.replicated | self.unreduced | self.manual


def iota_digits(reshape: Sequence[int], transpose: Sequence[int]) -> list[Digit]:
    """Return the digits of an iota's places, most significant first."""
    strides = strides_of(tuple(reshape))
    order = transpose or range(len(reshape))
    return [Digit(strides[axis], reshape[axis]) for axis in order]


_NOT_BY_AXES = "devices are listed in an order that no mesh of axes gives"


def listed_digits(places: Sequence[int]) -> list[Digit]:
    """Return the digits by which a list of places counts; AxisFault where it does not."""
    digits: list[Digit] = []
    left = list(places)
    while len(left) > 1:
        stride, size = left[1], 1
        while size < len(left) and left[size] == size * stride:
            size += 1
        if left[0] != 0 or stride < 1 or size < 2 or len(left) % size:
            raise AxisFault(_NOT_BY_AXES)
        digits.insert(0, Digit(stride, size))
        left = left[::size]
    counted = [0]
    for stride, size in digits:
        counted = [base + stride * i for base in counted for i in range(size)]
    if counted != list(places):
        raise AxisFault(_NOT_BY_AXES)
    return digits


def split_digits(digits: Sequence[Digit], tiles: Sequence[int]) -> list[list[Digit]]:
    """Return the digits of each tile dimension; AxisFault where a dimension cuts one unevenly."""
    left = [digit for digit in digits if digit.size > 1]
    groups: list[list[Digit]] = []
    for count in reversed(tiles):
        group: list[Digit] = []
        while count > 1 and left:
            stride, size = left.pop()
            shared = gcd(size, count)
            if shared not in (size, count):
                raise AxisFault(f"tiles {list(tiles)} do not follow the order of devices")
            if shared < size:
                left.append(Digit(stride * shared, size // shared))
            group.insert(0, Digit(stride, shared))
            count //= shared
        if count > 1:
            raise AxisFault(f"tiles {list(tiles)} count more devices than there are")
        groups.insert(0, group)
    return groups


def order_digits(order: DeviceOrder, count: int, devices: Sequence[int]) -> list[Digit]:
    """Return the digits of an order of `count` devices in an order `devices` of all of them."""
    if not devices and not order.listed:
        return iota_digits(order.reshape or (count,), order.transpose)
    if count > MOST_LISTED:
        raise AxisFault(f"{count} devices in an order of their own are too many")
    listed = order.devices(count)
    if not devices:
        return listed_digits(listed)
    place = {device: i for i, device in enumerate(devices)}
    return listed_digits([place.get(device, -1) for device in listed])


@dataclass(frozen=True, slots=True)
class Digits:
    """A sharding as digits of places, before the module's mesh is known."""

    dimensions: list[list[Digit]]
    subgroups: list[tuple[ShardingKind, list[Digit]]]

    def all(self) -> Iterable[Digit]:
        """Yield every digit."""
        for group in (*self.dimensions, *(digits for _, digits in self.subgroups)):
            yield from group


def tile_digits(sharding: Sharding, devices: Sequence[int]) -> Digits:
    """Return a tile assignment's digits.

    Devices of one replicated group are in no order.
    """
    tiles, rank = sharding.tile_dimensions, len(sharding.data_tiles)
    kinds = sharding.subgroups or (ShardingKind.REPLICATED,) * (len(tiles) - rank)
    order = sharding.devices
    if order.listed and set(kinds) == {ShardingKind.REPLICATED}:
        size = prod(tiles[rank:])
        groups = zip(*[iter(order.listed)] * size, strict=True)
        order = DeviceOrder(listed=tuple(device for group in groups for device in sorted(group)))
    groups_of = split_digits(order_digits(order, prod(tiles), devices), tiles)
    return Digits(groups_of[:rank], list(zip(kinds, groups_of[rank:], strict=True)))


def axis_digits(mesh: Mesh, devices: Sequence[int]) -> list[list[Digit]]:
    """Return the digits of each axis of a mesh."""
    order = order_digits(mesh.devices, mesh.device_count, devices)
    return split_digits(order, mesh.axis_sizes)


def ref_digits(ref: AxisRef, mesh: Mesh, axes: Sequence[list[Digit]]) -> list[Digit]:
    """Return the digits of an axis, or of a part of one."""
    whole = mesh.axis_sizes[ref.axis]
    if not ref.size:
        return axes[ref.axis]
    after = whole // (ref.pre_size * ref.size)
    return split_digits(axes[ref.axis], (ref.pre_size, ref.size, after))[1]


def device_axes(digits: Iterable[Digit], count: int, devices: Sequence[int]) -> DeviceAxes:
    """Return the mesh of `count` devices that has all these digits.

    Raises AxisFault where one of them starts inside of another, as 2 of 6 and 3 of 6 do.
    """
    cuts = {1, count}
    for stride, size in digits:
        cuts |= {stride, stride * size}
    ordered = sorted(cuts)
    sizes: list[int] = []
    for low, high in pairwise(ordered):
        if high % low or high > count:
            raise AxisFault(f"axes end after {low} and after {high} of {count} devices")
        sizes = [*_primes(high // low), *sizes]
    return DeviceAxes(tuple(sizes), tuple(devices))


def _primes(n: int) -> list[int]:
    primes, divisor = [], 2
    while n > 1:
        if divisor * divisor > n:
            divisor = n
        while n % divisor == 0:
            primes.append(divisor)
            n //= divisor
        divisor += 1
    return primes


def from_tiles(sharding: Sharding, rank: int, axes: DeviceAxes) -> AxisSharding:
    """Return a sharding of tiles, or one that says one thing of the whole value, by axes."""
    kind, none = sharding.kind, ((),) * rank
    closed = (True,) * rank
    if kind is ShardingKind.MAXIMAL:
        return AxisSharding(none, closed, device=sharding.device or 0)
    if kind is ShardingKind.UNKNOWN:
        return AxisSharding(none, (False,) * rank)
    reduction = _reduction_of(sharding)
    masks = dict.fromkeys((ShardingKind.MANUAL, ShardingKind.UNREDUCED), 0)
    dimensions: tuple[tuple[int, ...], ...] = none
    if kind in masks:
        masks[kind] = axes.everything
    elif kind is ShardingKind.TILED:
        digits = tile_digits(sharding, axes.devices)
        dimensions = tuple(map(axes.parts, digits.dimensions))
        for role, group in digits.subgroups:
            if role in masks:
                masks[role] |= bits(axes.parts(group))
    return AxisSharding(
        dimensions,
        closed,
        manual=masks[ShardingKind.MANUAL],
        unreduced=masks[ShardingKind.UNREDUCED],
        reduction=reduction,
    )


def _reduction_of(sharding: Sharding) -> str:
    said = [m.op_name.lower() for m in sharding.metadata if m.op_type == "sdy::reduction_op"]
    return said[0] if said and said[0] in ("max", "min") else "sum"


def from_named(sharding: NamedSharding, rank: int, axes: DeviceAxes) -> AxisSharding:
    """Return a sharding by named axes, by the axes of the module."""
    mesh = sharding.mesh
    if mesh.is_maximal:
        return AxisSharding(((),) * rank, (True,) * rank, device=mesh.devices.listed[0])
    own = axis_digits(mesh, axes.devices) if sharding.axes else []

    def parts(refs: Iterable[AxisRef]) -> tuple[int, ...]:
        return tuple(p for ref in refs for p in axes.parts(ref_digits(ref, mesh, own)))

    stated = sharding.dimensions
    split = tuple(parts(d.axes) for d in stated) or ((),) * rank
    others = [parts(refs) for refs in (sharding.replicated, sharding.unreduced, sharding.manual)]
    every = [p for group in (*split, *others) for p in group]
    if len(set(every)) != len(every):
        raise AxisFault("an axis is used twice")
    replicated, unreduced, manual = map(bits, others)
    return AxisSharding(
        split,
        tuple(d.is_closed for d in stated) or (True,) * rank,
        tuple(d.priority for d in stated) if any(d.priority for d in stated) else (),
        replicated,
        unreduced,
        manual,
        sharding.reduction,
    )


def to_tiles(sharding: AxisSharding, axes: DeviceAxes) -> Sharding:
    """Return a sharding as XLA's tile assignment, in the form that XLA prints."""
    if sharding.device >= 0:
        order = DeviceOrder(listed=(sharding.device,))
        return Sharding(ShardingKind.MAXIMAL, devices=order)
    metadata: tuple[OpMetadata, ...] = ()
    if sharding.reduction != "sum" and sharding.unreduced:
        name = sharding.reduction.upper()
        metadata = (OpMetadata(op_type="sdy::reduction_op", op_name=name),)
    everything = range(len(axes.sizes))
    data = [part for parts in sharding.dimensions for part in parts]
    taken = bits(data) | sharding.manual | sharding.unreduced
    groups = [
        (kind, [part for part in everything if mask >> part & 1])
        for kind, mask in (
            (ShardingKind.MANUAL, sharding.manual),
            (ShardingKind.UNREDUCED, sharding.unreduced),
            (ShardingKind.REPLICATED, axes.everything & ~taken),
        )
    ]
    groups = [(kind, parts) for kind, parts in groups if parts]
    if not data and len(groups) < 2:
        kind = groups[0][0] if groups else ShardingKind.REPLICATED
        return Sharding(kind, metadata=metadata)
    kinds = tuple(kind for kind, _ in groups)
    places = data + [part for _, parts in groups for part in parts]
    only_replicated = kinds == (ShardingKind.REPLICATED,)
    return Sharding(
        ShardingKind.TILED,
        tuple(map(axes.extent, [*sharding.dimensions, *(parts for _, parts in groups)])),
        _device_order(places, axes),
        () if only_replicated else kinds,
        only_replicated,
        metadata=metadata,
    )


def _device_order(parts: Sequence[int], axes: DeviceAxes) -> DeviceOrder:
    """Return the order of devices along parts; parts that stand together are one dimension."""
    if axes.devices or axes.numbers:
        order = [0]
        for part in parts:
            stride = axes.strides[part]
            order = [base + stride * i for base in order for i in range(axes.sizes[part])]
        for names in (axes.devices, axes.numbers):
            order = [names[i] for i in order] if names else order
        return DeviceOrder(listed=tuple(order))
    runs: list[list[int]] = []
    for part in parts:
        if runs and runs[-1][-1] + 1 == part:
            runs[-1].append(part)
        else:
            runs.append([part])
    ordered = sorted(runs)
    if len(runs) < 2:
        return DeviceOrder(reshape=(axes.device_count,))
    transpose = tuple(ordered.index(run) for run in runs)
    return DeviceOrder(reshape=tuple(map(axes.extent, ordered)), transpose=transpose)


Axes = tuple[int, ...]


def factor_places(rule: DimensionRule) -> list[list[tuple[int, int, int]]]:
    """Return for each factor the arrays, dimensions and places in them that have it."""
    places: list[list[tuple[int, int, int]]] = [[] for _ in rule.factors]
    for array, dimensions in enumerate((*rule.operands, *rule.results)):
        for d, numbers in enumerate(dimensions):
            for k, factor in enumerate(numbers):
                places[factor].append((array, d, k))
    return places


def parts_along(
    axes: DeviceAxes, rule: DimensionRule, arrays: Sequence[Sequence[Axes]]
) -> dict[tuple[int, int], Axes]:
    """Return the parts that each array has along each factor of a rule, where it has any.

    `arrays`: the parts of each dimension of operands and results. The keys are the number of the
    array and of the factor.
    """
    parts_by_factor: dict[tuple[int, int], Axes] = {}
    for array, dimensions in enumerate((*rule.operands, *rule.results)):
        for d, parts in enumerate(arrays[array]):
            if not parts:
                continue
            numbers = dimensions[d]
            if len(numbers) == 1:
                parts_by_factor[array, numbers[0]] = parts
                continue
            for number, along in _split(axes, rule, numbers, parts):
                parts_by_factor[array, number] = along
    return parts_by_factor


def _split(
    axes: DeviceAxes, rule: DimensionRule, numbers: Sequence[int], parts: Axes
) -> Iterable[tuple[int, Axes]]:
    """Yield the parts along each factor of a dimension; what cuts a factor unevenly ends it."""
    at = 0
    if rule.kind(numbers[0]) is FactorKind.PERMUTATION:
        yield numbers[0], parts
        return
    for k, number in enumerate(numbers):
        left, start = rule.factors[number].size, at
        while at < len(parts) and left > 1:
            size = axes.sizes[parts[at]]
            if left % size and k + 1 < len(numbers):
                break
            left //= size
            at += 1
        if at > start:
            yield number, parts[start:at]
        if left > 1 or at == len(parts):
            return
