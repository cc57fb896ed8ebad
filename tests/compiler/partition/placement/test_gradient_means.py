"""Means of gradients over replicas, against numpy: what the update reads, and nothing else."""

import numpy as np
import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.participants import evaluate_participants
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.partition.placement.gradient_means import with_gradient_means
from hloipu_compiler.partition.training.step_phases import (
    BACKWARD,
    FORWARD,
    FREE,
    UPDATE,
    Gradient,
    Phases,
)

STEP = """HloModule step

ENTRY step {
  given = (f32[4], f32[4], f16[4], f32[4]) parameter(0)
  w = f32[4] get-tuple-element(given), index=0
  v = f32[4] get-tuple-element(given), index=1
  u = f16[4] get-tuple-element(given), index=2
  x = f32[4] get-tuple-element(given), index=3
  rate = f32[4] constant({0.5, 0.25, 2, 1})
  y = f32[4] multiply(w, x)
  gw = f32[4] multiply(y, x)
  new_w = f32[4] subtract(w, gw)
  gv = f32[4] add(y, x)
  half = f16[4] convert(y)
  gu = f16[4] add(half, u)
  loss = f32[4] add(y, gv)
  scaled = f32[4] multiply(gv, rate)
  new_v = f32[4] subtract(v, scaled)
  new_u = f16[4] subtract(u, gu)
  ROOT r = (f32[4], f32[4], f16[4], f32[4]) tuple(new_w, new_v, new_u, loss)
}
"""
PHASE = {
    "rate": FREE, "y": FORWARD, "loss": FORWARD, "gw": BACKWARD, "gv": BACKWARD, "half": BACKWARD,
    "gu": BACKWARD, "new_w": UPDATE, "scaled": UPDATE, "new_v": UPDATE, "new_u": UPDATE,
}  # fmt: skip


def phases_of(module: Module) -> Phases:
    names = [x.name for x in module.entry.instructions]
    gradients = tuple(Gradient(names.index(name), ()) for name in ("gw", "gv", "gu"))
    return Phases(tuple(PHASE.get(n, "") for n in names), gradients, (), (), (), 3, (), (3,))


@pytest.mark.parametrize("ipus", [{}, {"gv": 1}])
@pytest.mark.parametrize("replicas", [2, 3])
def test_updates_read_means_and_all_else_what_is_a_replicas_own(
    replicas: int, ipus: dict[str, int]
) -> None:
    plain = parse(STEP)
    places = {(plain.entry.name, name): ipu for name, ipu in ipus.items()}
    module = with_gradient_means(plain, phases_of(plain), places, replicas)
    draw = np.random.default_rng(replicas)
    w, v = draw.integers(-8, 8, (2, 4)).astype(np.float32)
    u = draw.integers(-8, 8, 4).astype(np.float32)
    inputs = draw.integers(-4, 4, (replicas, 4)).astype(np.float32)
    arguments = [[(w, v, u.astype(np.float16), x)] for x in inputs]
    results = evaluate_participants(module, arguments, replicas=replicas)

    def mean(gradients: np.ndarray) -> np.ndarray:
        averaged: np.ndarray = gradients.sum(0) * np.float32(1 / replicas)
        return averaged

    wanted = (
        w - mean(w * inputs * inputs),
        v - mean(w * inputs + inputs) * np.array([0.5, 0.25, 2, 1], np.float32),
        u - mean(w * inputs + u),
    )
    for x, (new_w, new_v, new_u, loss) in zip(inputs, results, strict=True):
        np.testing.assert_allclose(new_w, wanted[0], rtol=1e-6)
        np.testing.assert_allclose(new_v, wanted[1], rtol=1e-6)
        np.testing.assert_allclose(np.asarray(new_u, np.float32), wanted[2], rtol=4e-3, atol=4e-2)
        np.testing.assert_array_equal(loss, 2 * (w * x) + x)
    reductions = [x for x in module.entry.instructions if x.opcode == "all-reduce"]
    # one for each element type on each IPU
    assert len(reductions) == (3 if ipus else 2)
