"""The child process: `python -m hloipu.xla_cpu.child FOLDER` computes jobs on request.

Each line on stdin names a job, N.hlo, N.json (replicas, partitions) and N.npz in the folder: in_0,
in_1, … as raw bytes of the parameters' dtypes, the same for all devices. Its outputs go to
N.out.npz the same way, an error's text to N.error, and its name to stdout when that is done.
Programs are kept, so that a text that comes again is not compiled again. The names used of jaxlib
are private.
"""

import json
import os
import sys
from functools import lru_cache
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


if __name__ == "__main__":
    main()
