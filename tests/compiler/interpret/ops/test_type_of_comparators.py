"""Comparators that read floats as integers, as XLA:CPU writes those of top-k."""

import numpy as np

import hloipu

TEXT = """HloModule m
greater {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  i = s32[] parameter(2)
  j = s32[] parameter(3)
  zero = s32[] constant(0)
  most = s32[] constant(2147483647)
  x = s32[] bitcast(a)
  y = s32[] bitcast(b)
  fx = s32[] xor(most, x)
  nx = pred[] compare(x, zero), direction=LT
  fy = s32[] xor(most, y)
  ny = pred[] compare(y, zero), direction=LT
  kx = s32[] select(nx, fx, x)
  ky = s32[] select(ny, fy, y)
  ROOT r = pred[] compare(kx, ky), direction=GT
}
ENTRY e {
  v = f32[4,33] parameter(0)
  n = s32[4,33] iota(), iota_dimension=1
  ROOT s = (f32[4,33], s32[4,33]) sort(v, n), dimensions={1}, is_stable=true, to_apply=greater
}
"""


def test_a_bitcast_of_a_scalar_changes_its_type() -> None:
    values = np.random.default_rng(2).normal(size=(4, 33)).astype(np.float32)
    order = np.argsort(-values, axis=1, kind="stable")
    wanted = np.take_along_axis(values, order, 1), order
    for found in (hloipu.evaluate(TEXT, values), hloipu.compile(TEXT).run(values).outputs):
        for ours, theirs in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(ours, theirs)
