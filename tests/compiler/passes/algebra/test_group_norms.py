"""Sums of a group norm: channel by channel first, so that no activation is converted as a whole."""

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
ENTRY main {
  x = f16[2,6,6,16] parameter(0)
  z = f32[] constant(0)
  g = f16[2,6,6,4,4] reshape(x)
  w = f32[2,6,6,4,4] convert(g)
  s = f32[2,4] reduce(w, z), dimensions={1,2,4}, to_apply=sum
  q = f16[2,6,6,4,4] multiply(g, g)
  v = f32[2,6,6,4,4] convert(q)
  t = f32[2,4] reduce(v, z), dimensions={1,2,4}, to_apply=sum
  ROOT r = (f32[2,4], f32[2,4]) tuple(s, t)
}
"""


def test_no_whole_activation_is_converted() -> None:
    after, _ = run_passes(hloipu.parse(STEP), None, "default")
    wide = [
        x.name
        for x in after.entry.instructions
        if isinstance(x.shape, ArrayShape) and x.shape.dimensions.count(6) and x.name != "x"
    ]
    assert not wide


@pytest.mark.parametrize("batch", [1, 2])
def test_sums_of_groups_are_right(batch: int) -> None:
    text = STEP.replace("[2,6", f"[{batch},6").replace("f32[2,4]", f"f32[{batch},4]")
    verify(run_passes(hloipu.parse(text), None, "simplify")[0])
    step = hloipu.compile(text, target="tiny")
    x = np.random.default_rng(0).standard_normal((batch, 6, 6, 16)).astype(np.float16)
    wide = x.reshape(batch, 6, 6, 4, 4)
    for found, terms in zip(step.run(x, mode="exact").outputs, (wide, wide * wide), strict=True):
        np.testing.assert_allclose(found, terms.astype(np.float64).sum((1, 2, 4)), rtol=1e-5)
