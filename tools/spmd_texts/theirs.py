"""XLA's own program of one device for a text, by a child process that keeps compiling.

`python -m tools.spmd_texts.theirs` is that child: each line on stdin is a text and its number of
devices as JSON, each on stdout XLA's program, empty where XLA refuses the text.
"""

import json
import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

from hloipu_compiler.hlo.parse import parse
from hloipu_runtime.errors import HloipuError
from tests.support.xla_oracle import DEVICES
from tools.spmd_conformance.traffic import Traffic, traffic_of

MOST_DEVICES = 64
_ROOT = Path(__file__).parents[2]


def traffic_in_xla(text: str, devices: int) -> Traffic | None:
    """Return what one device sends in XLA's program; None where XLA makes none or dies of it."""
    if not 1 < devices <= MOST_DEVICES:
        return None
    try:
        child = _child()
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps([text, devices]) + "\n")
        child.stdin.flush()
        answer = child.stdout.readline()
    except BrokenPipeError:
        answer = ""
    if not answer:
        _child.cache_clear()
        return None
    try:
        return traffic_of(parse(json.loads(answer)), devices) if len(answer) > 4 else None
    except HloipuError:
        return None


@lru_cache(maxsize=1)
def _child() -> "subprocess.Popen[str]":
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"{DEVICES}={MOST_DEVICES} --xla_backend_optimization_level=0",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")])),
    }
    command = [sys.executable, "-m", "tools.spmd_texts.theirs"]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=environment
    )


def _compiled(text: str, devices: int) -> str:
    import numpy as np
    from jax._src import xla_bridge
    from jax._src.lib import xla_client
    from jaxlib import _hlo, _jax

    proto = _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    backend = xla_bridge.get_backend("cpu")
    options = xla_client.CompileOptions()
    options.num_partitions = devices
    build = options.executable_build_options
    build.num_replicas, build.num_partitions = 1, devices
    build.use_spmd_partitioning = True
    build.use_shardy_partitioner = "xla.sdy.meshes" in text
    order = np.arange(devices).reshape(1, devices)
    build.device_assignment = xla_client.DeviceAssignment.create(order)
    executable = backend.compile_and_load(
        _jax.mlir.hlo_to_stablehlo(proto),
        _jax.DeviceList(tuple(backend.local_devices()[:devices])),
        options,
    )
    return str(executable.hlo_modules()[0].to_string())


def main() -> None:
    """Compile texts until no more come."""
    for line in sys.stdin:
        text, devices = json.loads(line)
        try:
            made = _compiled(text, devices)
        except Exception:  # XLA's errors share no base; a text that it refuses says nothing
            made = ""
        print(json.dumps(made), flush=True)


if __name__ == "__main__":
    main()
