"""Group norms in the sizes of activations, so that none is converted or reshaped as a whole."""

import numpy as np
import pytest

import hloipu
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.passes import run_passes
from hloipu_compiler.verify.verifier import verify

STEP = """HloModule m
sum { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }
half { a = f16[] parameter(0)
  b = f16[] parameter(1)
  ROOT c = f16[] add(a, b) }
ENTRY main {
  x = f16[2,6,6,16] parameter(0)
  z = f32[] constant(0)
  g = f16[2,6,6,4,4] reshape(x)
  w = f32[2,6,6,4,4] convert(g)
  s = f32[2,4] reduce(w, z), dimensions={1,2,4}, to_apply=sum
  q = f16[2,6,6,4,4] multiply(g, g)
  v = f32[2,6,6,4,4] convert(q)
  t = f32[2,4] reduce(v, z), dimensions={1,2,4}, to_apply=sum
  m = f16[2,4] convert(s)
  b = f16[2,6,6,4,4] broadcast(m), dimensions={0,3}
  d = f16[2,6,6,4,4] subtract(g, b)
  o = f16[2,6,6,16] reshape(d)
  n = f16[] constant(0)
  h = f16[2,4] reduce(d, n), dimensions={1,2,4}, to_apply=half
  ROOT r = (f32[2,4], f32[2,4], f16[2,6,6,16], f16[2,4]) tuple(s, t, o, h)
}
"""


def test_no_whole_activation_is_converted_or_reshaped() -> None:
    after, _ = run_passes(hloipu.parse(STEP), None, "default")
    wide = {
        x.opcode
        for x in after.entry.instructions
        if isinstance(x.shape, ArrayShape) and x.shape.dimensions.count(6)
    }
    assert wide <= {"parameter", "fusion", "get-tuple-element"}
    ranks = {
        x.shape.rank
        for computation in after.computations
        for x in computation.instructions
        if isinstance(x.shape, ArrayShape) and x.shape.dimensions.count(6)
    }
    assert ranks == {4}


@pytest.mark.parametrize("batch", [1, 2])
def test_sums_of_groups_are_right(batch: int) -> None:
    text = STEP.replace("[2,6", f"[{batch},6").replace("[2,4]", f"[{batch},4]")
    verify(run_passes(hloipu.parse(text), None, "simplify")[0])
    step = hloipu.compile(text, target="tiny")
    x = np.random.default_rng(0).standard_normal((batch, 6, 6, 16)).astype(np.float16)
    wide = x.reshape(batch, 6, 6, 4, 4)
    *sums, o, h = step.run(x, mode="exact").outputs
    for found, terms in zip(sums, (wide, wide * wide), strict=True):
        np.testing.assert_allclose(found, terms.astype(np.float64).sum((1, 2, 4)), rtol=1e-5)
    d = wide - sums[0].astype(np.float16)[:, None, None, :, None]
    np.testing.assert_array_equal(o, d.reshape(o.shape).astype(o.dtype))
    exact = d.astype(np.float64).sum((1, 2, 4))
    np.testing.assert_allclose(h, exact, rtol=2**-10, atol=1e-3)
