"""Batch normalisation on tiles: what the evaluator computes, features alone or spread."""

import numpy as np
import pytest

from hloipu_runtime.codelets.dense.batch_norm import BatchNorm
from hloipu_runtime.kernels.core.storage import user_dtype
from hloipu_runtime.machine.load import load_machine
from tests.support.on_tiles import groups_of
from tests.support.tile_runs import run_on_tiles

RNG = np.random.default_rng(23)
SEVEN = load_machine("tiny", {"tiles_per_ipu": "7"})
GC200 = load_machine("gc200")


def _text(kind: str, features: int) -> str:
    x, small = f"{kind}[8,6,6,{features}]", f"{kind}[{features}]"
    given = "epsilon=0.01, feature_index=3"
    return f"""HloModule norms
    ENTRY e {{
      x = {x} parameter(0)
      scale = {small} parameter(1)
      offset = {small} parameter(2)
      raw = {small} parameter(3)
      spread = {small} abs(raw)
      g = {x} parameter(4)
      t = ({x}, {small}, {small}) batch-norm-training(x, scale, offset), {given}
      d = ({x}, {small}, {small}) batch-norm-grad(x, scale, offset, spread, g), {given}
      y = {x} batch-norm-inference(x, scale, offset, raw, spread), {given}
      ROOT r = (({x}, {small}, {small}), ({x}, {small}, {small}), {x}) tuple(t, d, y)
    }}"""


@pytest.mark.parametrize(
    ("kind", "features", "machine", "alone"),
    [
        ("f32", 5, GC200, False),
        ("f32", 400, GC200, True),
        ("f32", 6, SEVEN, True),
        ("f32", 1, SEVEN, False),
        ("bf16", 5, GC200, False),
        ("f16", 6, SEVEN, True),
        ("f64", 5, GC200, False),
    ],
)
def test_batch_norm_on_tiles(kind: str, features: int, machine: object, alone: bool) -> None:
    shapes = [(8, 6, 6, features), *[(features,)] * 3, (8, 6, 6, features)]
    dtype = user_dtype(kind)
    # Multiples of 1/8 below 4 are values of every float type used.
    inputs = [(RNG.integers(-31, 32, shape) / 8).astype(dtype) for shape in shapes]
    run = run_on_tiles(_text(kind, features), machine, inputs)  # type: ignore[arg-type]
    step = {"f64": 1e-12, "f32": 2e-6, "f16": 2**-10, "bf16": 2**-7}[kind]
    for made in (run.functional, run.exact):
        for array, wanted in zip(made, run.evaluated, strict=True):
            scale = np.abs(wanted).max()
            np.testing.assert_allclose(array, wanted, rtol=2 * step, atol=2 * step * scale)
    found = [group.codelet for group in groups_of(run.program)]
    assert any(isinstance(codelet, BatchNorm) for codelet in found) == alone
