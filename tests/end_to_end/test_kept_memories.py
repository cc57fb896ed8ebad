"""Tile memories that are shared and kept from run to run: values of memories that are not.

With poison each variable has memory of its own, poisoned before use; without, buffers lie in their
sources, and what was prepared in the first run serves the second. All bits are the same.
"""

from pathlib import Path

import numpy as np
import pytest

from hloipu.api import compile_verified
from hloipu.inputs import flat
from hloipu.options.resolve import resolve
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.random_inputs import random_arguments
from hloipu_runtime.kernels.computing import computing
from hloipu_runtime.simulate.exact import moving
from hloipu_runtime.simulate.exact.exact import ExactEngine
from hloipu_runtime.simulate.functional.functional import FunctionalEngine
from hloipu_runtime.simulate.run.host import Arrays
from hloipu_runtime.simulate.run.ports import given_arrays

SAMPLES = Path(__file__).parents[2] / "hlo_samples"
WINDOWS = """HloModule windows
ENTRY e {
  data = f32[12,9,1001] parameter(0)
  window = f32[1,9,1001] parameter(1)
  at = s32[] parameter(2)
  zero = s32[] constant(0)
  data2 = f32[12,9,1001] dynamic-update-slice(data, window, at, zero, zero)
  taken = f32[1,9,1001] dynamic-slice(data2, at, zero, zero), dynamic_slice_sizes={1,9,1001}
  some = f32[3,4,1001] dynamic-slice(data2, at, at, zero), dynamic_slice_sizes={3,4,1001}
  ROOT r = tuple(data2, taken, some)
}
"""
TEXTS = {"windows": WINDOWS} | {
    path.stem: path.read_text()
    for path in sorted(SAMPLES.glob("*.hlo"))
    if path.stem not in ("sharded_mlp", "convnet_train_step")  # several participants; 3 seconds
}


@pytest.mark.parametrize("name", TEXTS)
def test_values_are_those_of_memories_that_are_not_shared(name: str) -> None:
    module = parse(TEXTS[name])
    options = resolve("compile", {"target": "gc200", "over_memory": "allow"}).options
    program = compile_verified(module, options).program
    kept = ExactEngine(program)
    shared = sum(map(kept.memories.lies_in_another, range(len(program.variables))))
    assert shared or name in ("windows", "newton_while")
    for seed in range(2):
        given = given_arrays(program.parameters, flat(random_arguments(module, seed)))
        results = []
        engines: list[ExactEngine | FunctionalEngine] = [kept, ExactEngine(program, poison=True)]
        if name == "windows":  # nothing is rounded
            engines.append(FunctionalEngine(program))
        for engine in engines:
            host = Arrays(dict(given))
            with computing():
                engine.run(host)
            results.append([host.outputs[port.stream] for port in program.results])
        for others in results[1:]:
            for ours, wanted in zip(results[0], others, strict=True):
                np.testing.assert_array_equal(ours, wanted)


def test_starts_of_windows_are_read_where_they_are_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is prepared in the first run reads no number where it was then."""
    monkeypatch.setattr(moving, "LEAST_BYTES", 0)
    module = parse(WINDOWS)
    program = compile_verified(module, resolve("compile", {"target": "gc200"}).options).program
    data, window, _ = flat(random_arguments(module, 0))
    exact, functional = ExactEngine(program), FunctionalEngine(program)
    for at in (3, 7, 0):
        given = given_arrays(program.parameters, [data, window, np.int32(at)])
        results = []
        for engine in (exact, functional):
            host = Arrays(dict(given))
            with computing():
                engine.run(host)
            results.append([x.tobytes() for x in host.outputs.values()])
        assert results[0] == results[1]
