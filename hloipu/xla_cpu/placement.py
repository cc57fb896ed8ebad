"""Place arrays on the devices of a compiled program, and join results.

Runs in the child. Every device gets its block of an argument, by the sharding that XLA chose; no
sharding, or a manual one, means that it gets all.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import jax
import numpy as np
from jax._src.lib import xla_client
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Array = np.ndarray[Any, Any]
Starts = tuple[int, ...] | None
"""Where a device's block starts; None: it holds the whole array."""


def run_on_devices(
    executable: Any, arguments: Sequence[Array], results: Sequence[tuple[int, ...]], partitions: int
) -> list[Array]:
    """Run on all devices, each with its blocks of the same arguments.

    Returns the first replica's results, of sizes `results`.
    """
    devices = executable.local_devices()
    shardings = executable.get_parameter_shardings() or [None] * len(arguments)
    placed = [
        _placed(argument, sharding, devices, partitions)
        for argument, sharding in zip(arguments, shardings, strict=True)
    ]
    pieces_of_results = executable.execute_sharded(placed).disassemble_into_single_device_arrays()
    shardings = executable.get_output_shardings() or [None] * len(results)
    return [
        _joined([np.asarray(piece) for piece in pieces[:partitions]], sharding, sizes)
        for pieces, sharding, sizes in zip(pieces_of_results, shardings, results, strict=True)
    ]


def _placed(argument: Array, sharding: Any, devices: Sequence[Any], partitions: int) -> Any:
    """Return an array of the devices' blocks; the devices stand replica by replica."""
    sizes, starts = _blocks(sharding, argument.shape, partitions)
    pieces = []
    for number, device in enumerate(devices):
        block = _block(argument, starts[number % partitions], sizes)
        pieces.append(jax.device_put(block if block.ndim else block.reshape(1), device))
    # Any sharding serves: the program looks at the pieces alone.
    spread = NamedSharding(Mesh(np.array(devices), ("all",)), PartitionSpec("all"))
    global_shape = (pieces[0].shape[0] * len(devices), *pieces[0].shape[1:])
    return jax.make_array_from_single_device_arrays(global_shape, spread, pieces)


def _blocks(
    sharding: Any, global_shape: tuple[int, ...], partitions: int
) -> tuple[tuple[int, ...], list[Starts]]:
    """Return the sizes of blocks, and where each partition's starts."""
    if sharding is None or sharding.type != xla_client.OpSharding.Type.OTHER:
        return global_shape, [None] * partitions
    known = xla_client.HloSharding.from_proto(sharding)
    tiles = known.tile_assignment_dimensions()
    sizes = tuple(-(-n // tile) for n, tile in zip(global_shape, tiles, strict=False))
    starts: list[Starts] = [None] * partitions
    for place, device in enumerate(known.tile_assignment_devices()):
        numbers = np.unravel_index(place, tiles)[: len(global_shape)]
        starts[device] = tuple(int(i) * size for i, size in zip(numbers, sizes, strict=True))
    return sizes, starts


def _block(array: Array, starts: Starts, sizes: tuple[int, ...]) -> Array:
    """Cut a block out; what lies beyond the whole's end is zero, as XLA pads."""
    if starts is None:
        return array
    part = array[tuple(slice(a, a + n) for a, n in zip(starts, sizes, strict=True))]
    if part.shape == sizes:
        return part
    padded = np.zeros(sizes, array.dtype)
    padded[tuple(map(slice, part.shape))] = part
    return padded


def _joined(pieces: Sequence[Array], sharding: Any, global_shape: tuple[int, ...]) -> Array:
    sizes, starts = _blocks(sharding, global_shape, len(pieces))
    if starts[0] is None:
        return pieces[0].reshape(global_shape)
    if prod(global_shape) == 0:
        return np.zeros(global_shape, pieces[0].dtype)
    result = np.empty(global_shape, pieces[0].dtype)
    # Where several devices hold one block, the first one's counts, as for replicated results.
    for piece, start in reversed(list(zip(pieces, starts, strict=True))):
        target = result[tuple(slice(a, a + n) for a, n in zip(start or (), sizes, strict=True))]
        target[...] = piece[tuple(map(slice, target.shape))]
    return result
