"""A mapped function becomes one expression; operands may be broadcasts."""

import numpy as np

from tests.support.on_tiles import check_on_tiles

MAPPED = """
HloModule mapped
f {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  z = f32[] parameter(2)
  s = f32[] add(x, y)
  ROOT m = f32[] multiply(s, z)
}
ENTRY e {
  x = f32[9,4] parameter(0)
  y = f32[4] parameter(1)
  b = f32[9,4] broadcast(y), dimensions={1}
  two = f32[] constant(2)
  c = f32[9,4] broadcast(two), dimensions={}
  ROOT m = f32[9,4] map(x, b, c), dimensions={0,1}, to_apply=f
}
"""


def test_map() -> None:
    x = np.arange(36, dtype=np.float32).reshape(9, 4)
    y = np.array([1, -1, 10, 0], np.float32)
    check_on_tiles(MAPPED, [x, y], [(x + y) * 2])
