"""Runs in the child: `python -m hloipu.xla_cpu.child FOLDER COUNT` computes job 0, 1, … there.

Each job is N.hlo, N.json (replicas, partitions) and N.npz: in_0, in_1, … as raw bytes of the
parameters' dtypes, the same for all devices. Its outputs go to N.out.npz the same way, an error's
text to N.error. The names used of jaxlib are private.
"""

import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax._src import xla_bridge
from jax._src.lib import xla_client
from jaxlib import _hlo, _jax
from jaxlib.cpu import _lapack

from hloipu.xla_cpu.placement import run_on_devices

jax.config.update("jax_enable_x64", True)
_lapack.initialize()  # without it the LAPACK custom calls end the process


def run(text: str, arrays: list[Any], replicas: int = 1, partitions: int = 1) -> list[Any]:
    """Compile a text and run it once on flat arrays of raw bytes."""
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
    computation = _hlo.XlaComputation(proto)  # program_shape borrows from it
    shape = computation.program_shape()
    given = [
        raw.view(np.dtype(leaf.numpy_dtype())).reshape(leaf.dimensions())
        for leaf, raw in zip(shape.parameter_shapes(), arrays, strict=True)
    ]
    if count > 1:
        sizes = [leaf.dimensions() for leaf in _leaves(shape.result_shape())]
        return run_on_devices(executable, given, sizes, partitions)
    return [np.asarray(x) for x in executable.execute([jax.device_put(x) for x in given])]


def _leaves(shape: Any) -> list[Any]:
    if not shape.is_tuple():
        return [shape]
    return [leaf for element in shape.tuple_shapes() for leaf in _leaves(element)]


def main() -> None:
    """Do the jobs that have no result yet, in order."""
    folder = Path(sys.argv[1])
    for number in range(int(sys.argv[2])):
        done = folder / f"{number}.out.npz"
        failed = folder / f"{number}.error"
        if done.exists() or failed.exists():
            continue
        failed.write_text("the process ended while it worked on this module")
        with np.load(folder / f"{number}.npz") as given:
            arrays = [given[f"in_{i}"] for i in range(len(given.files))]
        try:
            counts = json.loads((folder / f"{number}.json").read_text())
            outputs = run((folder / f"{number}.hlo").read_text(), arrays, **counts)
        except Exception as error:  # XLA's own errors share no other base
            failed.write_text(str(error))
            continue
        raw = {
            f"out_{i}": np.ascontiguousarray(x).reshape(-1).view(np.uint8)
            for i, x in enumerate(outputs)
        }
        np.savez(done, **raw)  # type: ignore[arg-type]
        failed.unlink()


if __name__ == "__main__":
    main()
