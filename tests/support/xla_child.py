"""The child process in which XLA parses, verifies, compiles and runs: `xla_oracle` talks to it.

XLA ends the process on some inputs, so it never runs in the tester's own.
The jaxlib names used here are private and move between releases, hence the pinned version.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jaxlib import _hlo, _jax

from tests.support import xla_verifier
from tests.support.wire import Array, Json, Reply, read_message, write_message


class Child:
    """The operations, each from a JSON object and arrays to a JSON object and arrays."""

    def __init__(self) -> None:
        self._verifier: xla_verifier.XlaVerifier | None = None
        self._backend: Any = None
        self._programs: dict[int, tuple[Any, Any, list[Any]]] = {}

    # ---- text -------------------------------------------------------------------------------
    def parse(self, message: Json) -> Json:
        """Parse only."""
        module = _hlo.hlo_module_from_text(message["text"])
        return {"instructions": sum(len(c.instructions()) for c in module.computations())}

    def verify(self, message: Json) -> Json:
        """Parse and run XLA's HLO verifier."""
        module = _hlo.hlo_module_from_text(message["text"])
        if self._verifier is None:
            library = Path(_hlo.__file__).with_name("libjax_common.so")
            self._verifier = xla_verifier.load(library)
        fault = self._verifier.fault(module)
        return {"verified": fault is None, "message": fault or ""}

    def reprint(self, message: Json) -> Json:
        """Parse and print in full; source metadata and large constants are left out if so asked."""
        module = _hlo.hlo_module_from_text(message["text"])
        options = _hlo.HloPrintOptions()
        options.print_large_constants = message["constants"]
        options.print_metadata = message["metadata"]
        return {"text": module.to_string(options)}

    def time_parse(self, message: Json) -> Json:
        """Time each of `repeats` parses, in seconds of processor time."""
        text, parse, seconds = message["text"], _hlo.hlo_module_from_text, []
        for _ in range(message["repeats"]):
            start = time.process_time()
            parse(text)
            seconds.append(time.process_time() - start)
        return {"seconds": seconds}

    # ---- programs ---------------------------------------------------------------------------
    def _cpu(self) -> Any:
        if self._backend is None:
            import jax  # half a second that the text operations do not need
            from jax._src import xla_bridge
            from jaxlib.cpu import _lapack

            jax.config.update("jax_enable_x64", True)
            _lapack.initialize()  # without it the LAPACK custom calls end the process
            self._backend = xla_bridge.get_backend("cpu")
        return self._backend

    def load(self, message: Json) -> Json:
        """Compile a text under a number; replicas x partitions devices take part."""
        backend = self._cpu()
        from jax._src.lib import xla_client

        start = time.perf_counter()
        module = _hlo.hlo_module_from_text(message["text"])
        proto = module.as_serialized_hlo_module_proto()
        stablehlo = _jax.mlir.hlo_to_stablehlo(proto)
        replicas, partitions = message["replicas"], message["partitions"]
        devices = backend.local_devices()[: replicas * partitions]
        options = xla_client.CompileOptions()
        options.num_replicas, options.num_partitions = replicas, partitions
        build = options.executable_build_options
        build.num_replicas, build.num_partitions = replicas, partitions
        # XLA refuses several partitions without it; what has no sharding stays as written.
        build.use_spmd_partitioning = partitions > 1
        build.device_assignment = xla_client.DeviceAssignment.create(
            np.arange(replicas * partitions).reshape(replicas, partitions)
        )
        executable = backend.compile_and_load(stablehlo, _jax.DeviceList(tuple(devices)), options)
        computation = _hlo.XlaComputation(proto)  # program_shape borrows from it
        shapes = computation.program_shape().parameter_shapes()
        dtypes = [np.dtype(shape.numpy_dtype()) for shape in shapes]
        self._programs[message["program"]] = (executable, computation, dtypes)
        seconds = time.perf_counter() - start
        printed = executable.hlo_modules()[0].to_string() if message["optimised"] else ""
        return {"seconds": seconds, "optimised": printed}

    def unload(self, message: Json) -> Json:
        """Forget a program."""
        self._programs.pop(message["program"], None)
        return {}

    def execute(self, message: Json, arrays: Sequence[Array]) -> Reply:
        """Run a loaded program on the arrays of each device in turn; outputs in the same order."""
        executable, _, dtypes = self._programs[message["program"]]
        devices = executable.local_devices()
        import jax

        per_device = []
        for number, device in enumerate(devices):
            mine = arrays[number * len(dtypes) : (number + 1) * len(dtypes)]
            per_device.append(
                [
                    jax.device_put(a if a.dtype == d else a.view(d), device)
                    for a, d in zip(mine, dtypes, strict=True)
                ]
            )
        start = time.perf_counter()
        if len(devices) == 1:
            made = [executable.execute(per_device[0])]
        else:
            made = execute_sharded(executable, per_device)
        outputs = [np.asarray(x) for outs in made for x in outs]
        reply = {"seconds": time.perf_counter() - start, "devices": len(devices)}
        return reply, outputs


def execute_sharded(executable: Any, per_device: list[list[Any]]) -> list[list[Any]]:
    """Run on several devices; one list of outputs for each device."""
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    devices = executable.local_devices()
    sharding = NamedSharding(Mesh(np.array(devices), ("all",)), PartitionSpec("all"))
    arguments = []
    for pieces in zip(*per_device, strict=True):
        parts = [piece if piece.ndim else piece.reshape(1) for piece in pieces]
        whole = (parts[0].shape[0] * len(devices), *parts[0].shape[1:])
        arguments.append(jax.make_array_from_single_device_arrays(whole, sharding, parts))
    results = executable.execute_sharded(arguments)
    by_output = results.disassemble_into_single_device_arrays()
    return [list(outputs) for outputs in zip(*by_output, strict=True)]


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer messages until the source ends."""
    child = Child()
    operations: dict[str, Callable[[Json], Json]] = {
        "parse": child.parse, "verify": child.verify, "reprint": child.reprint,
        "time_parse": child.time_parse, "load": child.load, "unload": child.unload,
    }  # fmt: skip
    while (request := read_message(source)) is not None:
        message, arrays = request
        outputs: Sequence[Array] = ()
        try:
            if message["op"] == "execute":
                reply, outputs = child.execute(message, arrays)
            else:
                reply = operations[message["op"]](message)
        except xla_verifier.VerifierUnavailable as error:
            reply = {"unavailable": str(error)}
        except Exception as error:  # the boundary: whatever XLA raises travels as text
            reply = {"refused": f"{type(error).__name__}: {error}"}
        write_message(sink, reply, outputs)


def main() -> None:
    """Serve on the standard streams; whatever else prints goes to the standard error."""
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    serve(source, sink)


if __name__ == "__main__":
    main()
