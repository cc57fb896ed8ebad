"""Transposes lie as their readers want the result, where it would arrive in single elements."""

import numpy as np

import hloipu

SIZES = (8, 2048, 256)
TEXT = """HloModule m
ENTRY e {
  x = f32[8,2048,256] parameter(0)
  w = f32[2048,512] parameter(1)
  e = f32[8,2048,256] exponential(x)
  t = f32[2048,256,8] transpose(e), dimensions={1,2,0}
  r = f32[2048,2048] reshape(t)
  ROOT d = f32[2048,512] dot(r, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


def test_what_readers_take_in_runs_is_not_sent_element_by_element() -> None:
    """Rows of the product interleave the leading dimension, of which each tile should have all.

    The grid that transposes fastest cuts it, and what tiles take then comes in fragments of four
    bytes, 13 cycles each where 4 bytes take one. The bound is four times what all of the matrix,
    once for each of 16 blocks of columns, takes to arrive.
    """
    program = hloipu.compile(TEXT, target="gc200")
    rows = [row for row in program.profile().steps if row.name == "r"]
    elements = np.prod(SIZES)
    assert sum(row.cycles or 0 for row in rows) < 4 * 16 * elements / 1472
    random = np.random.default_rng(5)
    x = random.normal(size=SIZES).astype(np.float32)
    w = random.normal(size=(2048, 512)).astype(np.float32)
    (found,) = program.run(x, w).outputs
    wanted = np.exp(x).transpose(1, 2, 0).reshape(2048, 2048) @ w
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-2)
