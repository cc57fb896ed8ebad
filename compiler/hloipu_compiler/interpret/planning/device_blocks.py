"""Blocks of a sharded value: the device of each block.

A dimension is split by digits: a device's place in the order of devices, written in the mixed radix
of the sharding's tiles or of the mesh's axes, says by some of its digits which block it holds.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from hloipu_compiler.hlo.attributes.mesh import AxisRef, Mesh, strides_of
from hloipu_compiler.hlo.attributes.named_sharding import NamedSharding
from hloipu_compiler.hlo.attributes.sharding_value import Sharding, ShardingKind
from hloipu_runtime.frozen import dataclass

Array = np.ndarray[Any, Any]


class Digit(NamedTuple):
    """One digit of a place: `(place // stride) % size`."""

    stride: int
    size: int


class BlockFault(ValueError):
    """A sharding that cannot make blocks of the sizes that a program states."""


@dataclass(frozen=True, slots=True)
class DeviceBlocks:
    """The blocks of one value as one device sees them."""

    mine: tuple[int, ...]
    """The device's own block, by its number along each dimension."""
    owners: Array
    """Device that holds each block, among those that share all other digits with this one."""


def device_order(sharding: Sharding | NamedSharding) -> tuple[int, ...]:
    """Return the devices in order of their places."""
    if isinstance(sharding, NamedSharding):
        return sharding.mesh.devices.devices(sharding.mesh.device_count)
    if sharding.named is not None:
        return device_order(sharding.named)
    return sharding.devices.devices(prod(sharding.tile_dimensions))


def device_limit(sharding: Sharding | NamedSharding) -> int:
    """Return a number above every device that a sharding names; 0 where it names none."""
    if isinstance(sharding, Sharding) and sharding.named is not None:
        sharding = sharding.named
    if isinstance(sharding, NamedSharding):
        listed, count = sharding.mesh.devices.listed, sharding.mesh.device_count
    else:
        listed, count = sharding.devices.listed, sharding.device_count or 0
    return max(listed) + 1 if listed else count


def digits_of(sharding: Sharding | NamedSharding, rank: int) -> list[list[Digit]]:
    """Return the digits that split each dimension, most significant first."""
    if isinstance(sharding, Sharding) and sharding.named is not None:
        sharding = sharding.named
    if isinstance(sharding, NamedSharding):
        split = [[_axis_digit(a, sharding.mesh) for a in d.axes] for d in sharding.dimensions]
    elif sharding.kind is ShardingKind.TILED:
        tiles = sharding.tile_dimensions
        strides = strides_of(tiles)
        split = [[Digit(strides[i], tiles[i])] for i in range(len(sharding.data_tiles))]
    else:
        split = []
    return split + [[] for _ in range(rank - len(split))]


def _axis_digit(axis: AxisRef, mesh: Mesh) -> Digit:
    axis_size, stride = mesh.axis_sizes[axis.axis], strides_of(mesh.axis_sizes)[axis.axis]
    if not axis.size:
        return Digit(stride, axis_size)
    return Digit(stride * (axis_size // (axis.pre_size * axis.size)), axis.size)


def leading_digits(digits: Sequence[Digit], count: int) -> list[Digit]:
    """Return the most significant digits, the last perhaps in part, that tell `count` blocks apart.

    Axes that are manual stand before those left to the partitioner, which split no further here.
    """
    leading: list[Digit] = []
    wanted = count
    for stride, size in digits:
        if wanted == 1:
            break
        part = size if wanted % size == 0 else wanted
        if size % part:
            break
        leading.append(Digit(stride * (size // part), part))
        wanted //= part
    if wanted != 1:
        raise BlockFault(f"{prod(d.size for d in digits)} shards where there are {count} blocks")
    return leading


def device_blocks(
    sharding: Sharding | NamedSharding,
    device: int,
    sizes: Sequence[int],
    block_sizes: Sequence[int],
) -> DeviceBlocks:
    """Return the blocks of a value of sizes `sizes` that is held in blocks of sizes `block_sizes`.

    Raises BlockFault where the sharding does not split it so, or does not know the device.
    """
    if len(sizes) != len(block_sizes) or any(
        n % max(b, 1) or (n > 0) != (b > 0) for n, b in zip(sizes, block_sizes, strict=True)
    ):
        raise BlockFault(f"{list(sizes)} has no blocks {list(block_sizes)}")
    counts = [n // b if b else 1 for n, b in zip(sizes, block_sizes, strict=True)]
    if prod(counts) == 1:
        return DeviceBlocks((0,) * len(counts), np.full(counts, device))
    order = device_order(sharding)
    if device not in order:
        raise BlockFault(f"the sharding does not name device {device}")
    place = base = order.index(device)
    mine: list[int] = []
    steps = np.zeros((1,) * len(counts), np.int64)
    for i, digits in enumerate(digits_of(sharding, len(counts))):
        offsets, number = np.zeros(1, np.int64), 0
        for stride, size in leading_digits(digits, counts[i]):
            offsets = (offsets[:, None] + np.arange(size) * stride).reshape(-1)
            digit = place // stride % size
            number, base = number * size + digit, base - digit * stride
        mine.append(number)
        steps = steps + offsets.reshape([-1 if j == i else 1 for j in range(len(counts))])
    return DeviceBlocks(tuple(mine), np.asarray(order)[base + steps])
