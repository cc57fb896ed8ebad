"""Arrays cut into the blocks of devices, by a sharding's axes and nothing of the compiler's."""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from hloipu_compiler.interpret.participants import evaluate_participants
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.partition.spmd.axes import DeviceAxes
from hloipu_compiler.partition.spmd.deciding import shardings_of
from hloipu_compiler.partition.spmd.localizing import entry_splits, for_one_device
from hloipu_compiler.verify.verifier import verify
from tests.support.arrays import Array


def block_of(
    axes: DeviceAxes, device: int, dimensions: Sequence[Sequence[int]], array: Array
) -> Array:
    """Return a device's block of an array."""
    place = axes.devices.index(device) if axes.devices else device
    digits = np.unravel_index(place, axes.sizes) if axes.sizes else ()
    cut = []
    for parts, size in zip(dimensions, array.shape, strict=True):
        number, count = 0, 1
        for part in parts:
            number = number * axes.sizes[part] + int(digits[part])
            count *= axes.sizes[part]
        block = -(-size // count)
        cut.append(slice(number * block, (number + 1) * block))
    return array[tuple(cut)]


def padded_block(
    axes: DeviceAxes, device: int, dimensions: Sequence[Sequence[int]], array: Array
) -> Array:
    """Return a device's block with what no value is to depend on behind the end of the array."""
    block = block_of(axes, device, dimensions, array)
    counts = [axes.extent(parts) for parts in dimensions]
    sizes = [-(-n // count) for n, count in zip(array.shape, counts, strict=True)]
    rows = [(0, n - m) for m, n in zip(block.shape, sizes, strict=True)]
    fill = np.nan if array.dtype.kind == "f" else 1
    return np.pad(block, rows, constant_values=fill) if rows else block


def check_on_devices(
    module: Module, arguments: Sequence[Array], expected: Sequence[Array], tolerance: float = 1e-4
) -> Module:
    """Run a module on blocks on all devices, and check each device's blocks of the results."""
    known = shardings_of(module)
    local = for_one_device(module, known)
    verify(local)
    devices = range(known.axes.device_count)
    given, results = entry_splits(module, known)
    pairs = list(zip(given, arguments, strict=True))
    blocks = [[padded_block(known.axes, d, split, a) for split, a in pairs] for d in devices]
    found = evaluate_participants(local, blocks, partitions=len(devices))
    for device in devices:
        for ours, whole, split in zip(found[device], expected, results, strict=True):
            theirs = block_of(known.axes, device, split, whole)
            ours = ours[tuple(map(slice, theirs.shape))]
            most = max(tolerance, few_roundings(ours.dtype))
            np.testing.assert_allclose(ours, theirs, rtol=most, atol=most)
    return local


def few_roundings(kind: "np.dtype[Any]") -> float:
    """Return what sums in another order may differ by, relatively: 4 roundings of the type."""
    is_float = "float" in kind.name
    return 4 * float(ml_dtypes.finfo(kind).eps) if is_float else 0.0  # type: ignore[no-untyped-call]
