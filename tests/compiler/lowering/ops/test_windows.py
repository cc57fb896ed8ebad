"""Reduce-window and select-and-scatter on tiles: what the evaluator computes."""

import numpy as np
import pytest

from hloipu_runtime.machine.load import load_machine
from tests.support.on_tiles import groups_of
from tests.support.tile_runs import same_on_tiles

RNG = np.random.default_rng(22)
MACHINES = {
    "tiny": load_machine("tiny"),
    "seven tiles": load_machine("tiny", {"tiles_per_ipu": "7"}),
    "gc200": load_machine("gc200"),
}
REGIONS = """
  add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
  max { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] maximum(a, b) }
  ge { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = pred[] compare(a, b), direction=GE }
  both {
    a = f32[] parameter(0) b = f32[] parameter(1) c = f32[] parameter(2) d = f32[] parameter(3)
    s = f32[] add(a, c) m = f32[] maximum(b, d) ROOT t = (f32[], f32[]) tuple(s, m)
  }
"""

BODIES = {
    "max pool": "ROOT r = f32[4,14,14,8] reduce-window(x, i), to_apply=max, "
                "window={size=1x3x3x1 stride=1x2x2x1 pad=0_0x0_1x0_1x0_0}",
    "sum pool, dilated": "ROOT r = f32[4,24,55,8] reduce-window(x, i), to_apply=add, "
                         "window={size=1x3x1x1 pad=0_0x0_0x0_0x0_0 rhs_dilate=1x2x1x1 "
                         "lhs_dilate=1x1x2x1}",
    "running sums": "ROOT r = f32[4,28,28,8] reduce-window(x, i), to_apply=add, "
                    "window={size=1x1x28x1 pad=0_0x0_0x27_0x0_0}",
    "two operands": "ROOT r = (f32[4,14,28,8], f32[4,14,28,8]) reduce-window(x, x, i, i), "
                    "to_apply=both, window={size=1x2x1x1 stride=1x2x1x1}",
    "max pool backwards": "s = f32[4,14,14,8] slice(x), slice={[0:4],[3:17],[5:19],[0:8]} "
                          "ROOT r = f32[4,28,28,8] select-and-scatter(x, s, i), "
                          "select=ge, scatter=add, "
                          "window={size=1x3x3x1 stride=1x2x2x1 pad=0_0x0_1x0_1x0_0}",
}  # fmt: skip


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", BODIES)
def test_windows_on_tiles(name: str, machine: str) -> None:
    text = f"""HloModule windows
    {REGIONS}
    ENTRY e {{
      x = f32[4,28,28,8] parameter(0)
      i = f32[] parameter(1)
      {BODIES[name]}
    }}"""
    x = RNG.integers(-9, 9, (4, 28, 28, 8)).astype(np.float32)
    run = same_on_tiles(text, MACHINES[machine], [x, np.float32(-2)])
    if machine == "gc200":
        assert max(group.tiles.count for group in groups_of(run.program)) > 100
