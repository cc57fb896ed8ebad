"""The child process: `python -m hloipu.xla_cpu.child FOLDER` computes jobs on request.

Each line on stdin names a job, N.hlo, N.json (replicas, partitions) and N.npz in the folder: in_0,
in_1, … as raw bytes of the parameters' dtypes, the same for all devices. Its outputs go to
N.out.npz the same way, an error's text to N.error, and its name to stdout when that is done.
Of several devices each gets its block of an argument, by the sharding that XLA chose; all of it
without one, or with a manual one.
Programs are kept, so that a text that comes again is not compiled again. The names used of jaxlib
are private.
"""

import json
import os
import sys
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax._src import xla_bridge
from jax._src.lib import xla_client
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxlib import _hlo, _jax
from jaxlib.cpu import _lapack

Array = np.ndarray[Any, Any]
Starts = tuple[int, ...] | None
"""Where a device's block starts; None: it holds the whole array."""


jax.config.update("jax_enable_x64", True)
_lapack.initialize()  # without it the LAPACK custom calls end the process

_KEPT_PROGRAMS = 8
"""More than the texts that a reference goes back and forth between."""


@lru_cache(_KEPT_PROGRAMS)
def compiled(text: str, replicas: int, partitions: int) -> tuple[Any, Any]:
    """Return the executable of a text and its computation, from which its shapes are read."""
    module = _hlo.hlo_module_from_text(text)
    proto = module.as_serialized_hlo_module_proto()
    backend = xla_bridge.get_backend("cpu")
    options = xla_client.CompileOptions()
    count = replicas * partitions
    if count > 1:
        options.num_replicas, options.num_partitions = replicas, partitions
        build = options.executable_build_options
        build.num_replicas, build.num_partitions = replicas, partitions
        build.use_spmd_partitioning = partitions > 1
        build.use_shardy_partitioner = "xla.sdy." in text
        build.device_assignment = xla_client.DeviceAssignment.create(
            np.arange(count).reshape(replicas, partitions)
        )
    executable = backend.compile_and_load(
        _jax.mlir.hlo_to_stablehlo(proto),
        _jax.DeviceList(tuple(backend.local_devices()[:count])),
        options,
    )
    return executable, _hlo.XlaComputation(proto)


def run(text: str, arrays: list[Any], replicas: int = 1, partitions: int = 1) -> list[Any]:
    """Run a text once on flat arrays of raw bytes."""
    executable, computation = compiled(text, replicas, partitions)
    shape = computation.program_shape()  # borrows from the computation
    device_arrays = [
        raw.view(np.dtype(leaf.numpy_dtype())).reshape(leaf.dimensions())
        for leaf, raw in zip(shape.parameter_shapes(), arrays, strict=True)
    ]
    if replicas * partitions > 1:
        sizes = [leaf.dimensions() for leaf in _leaves(shape.result_shape())]
        return run_on_devices(executable, device_arrays, sizes, partitions)
    return [
        np.asarray(array)
        for array in executable.execute([jax.device_put(array) for array in device_arrays])
    ]


def _leaves(shape: Any) -> list[Any]:
    if not shape.is_tuple():
        return [shape]
    return [leaf for element in shape.tuple_shapes() for leaf in _leaves(element)]


def do(folder: Path, name: str) -> None:
    """Run one job."""
    with np.load(folder / f"{name}.npz") as stored:
        arrays = [stored[f"in_{i}"] for i in range(len(stored.files))]
    try:
        counts = json.loads((folder / f"{name}.json").read_text())
        outputs = run((folder / f"{name}.hlo").read_text(), arrays, **counts)
    except Exception as error:  # XLA's own errors share no other base
        (folder / f"{name}.error").write_text(str(error) or type(error).__name__)
        return
    raw = {
        f"out_{i}": np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        for i, array in enumerate(outputs)
    }
    np.savez(folder / f"{name}.out.npz", **raw)  # type: ignore[arg-type]


def main() -> None:
    """Run jobs until no more are named."""
    with os.fdopen(os.dup(1), "w", encoding="ascii") as answers:
        os.dup2(2, 1)  # what libraries print is no answer
        for line in sys.stdin:
            do(Path(sys.argv[1]), line.strip())
            print(line.strip(), file=answers, flush=True)


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


if __name__ == "__main__":
    main()
