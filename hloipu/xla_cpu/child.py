"""Runs in the child: `python -m hloipu.xla_cpu.child FOLDER COUNT` computes job 0, 1, … there.

Each job is N.hlo and N.npz (in_0, in_1, … as raw bytes of the parameters' dtypes); its outputs go
to N.out.npz the same way, an error's text to N.error. The names used of jaxlib are private.
"""

import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax._src import xla_bridge
from jax._src.lib import xla_client
from jaxlib import _hlo, _jax
from jaxlib.cpu import _lapack

jax.config.update("jax_enable_x64", True)
_lapack.initialize()  # without it the LAPACK custom calls end the process


def run(text: str, arrays: list[Any]) -> list[Any]:
    """Compile a text and run it once on flat arrays of raw bytes."""
    module = _hlo.hlo_module_from_text(text)
    proto = module.as_serialized_hlo_module_proto()
    backend = xla_bridge.get_backend("cpu")
    executable = backend.compile_and_load(
        _jax.mlir.hlo_to_stablehlo(proto),
        _jax.DeviceList(tuple(backend.local_devices()[:1])),
        xla_client.CompileOptions(),
    )
    computation = _hlo.XlaComputation(proto)  # program_shape borrows from it
    parameters = computation.program_shape().parameter_shapes()
    placed = [
        jax.device_put(raw.view(np.dtype(shape.numpy_dtype())).reshape(shape.dimensions()))
        for shape, raw in zip(parameters, arrays, strict=True)
    ]
    return [np.asarray(x) for x in executable.execute(placed)]


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
            outputs = run((folder / f"{number}.hlo").read_text(), arrays)
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
