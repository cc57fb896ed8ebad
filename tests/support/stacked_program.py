"""A step that was written in pieces by hand, and the arrays that users see of it.

    w += x * k, n += 1; gives w * c by rows, and y

`w`, `k` and the second result are in two pieces by rows, `x` in two by columns, `c` in two.
"""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.program.stacks import PARAMETER, RESULT, Stack
from tests.support.sessions import compiled

TEXT = """
HloModule pieces

ENTRY e {
  w0 = f32[2,3] parameter(0)
  w1 = f32[1,3] parameter(1)
  n = s32[] parameter(2)
  x0 = f32[3,2] parameter(3)
  x1 = f32[3,1] parameter(4)
  y = f32[] parameter(5)
  k0 = f32[2,3] parameter(6)
  k1 = f32[1,3] parameter(7)
  c0 = f32[2] parameter(8)
  c1 = f32[1] parameter(9)
  x = f32[3,3] concatenate(x0, x1), dimensions={1}
  a0 = f32[2,3] slice(x), slice={[0:2],[0:3]}
  a1 = f32[1,3] slice(x), slice={[2:3],[0:3]}
  d0 = f32[2,3] multiply(a0, k0)
  d1 = f32[1,3] multiply(a1, k1)
  v0 = f32[2,3] add(w0, d0)
  v1 = f32[1,3] add(w1, d1)
  one = s32[] constant(1)
  m = s32[] add(n, one)
  b0 = f32[2,3] broadcast(c0), dimensions={0}
  b1 = f32[1,3] broadcast(c1), dimensions={0}
  o0 = f32[2,3] multiply(v0, b0)
  o1 = f32[1,3] multiply(v1, b1)
  ROOT r = (f32[2,3], f32[1,3], s32[], f32[2,3], f32[1,3], /*index=5*/f32[])
    tuple(v0, v1, m, o0, o1, y)
}
"""

BY_ROWS = ((2, 1), (3, 3))
STACKS = (
    Stack("w", PARAMETER, 0, 0, *BY_ROWS),
    Stack("x", PARAMETER, 3, 1, *BY_ROWS),
    Stack("k", PARAMETER, 6, 0, *BY_ROWS),
    Stack("c", PARAMETER, 8, 0, (2, 1), (3,)),
    Stack("new w", RESULT, 0, 0, *BY_ROWS),
    Stack("o", RESULT, 3, 0, *BY_ROWS),
)
W, K = np.arange(9, dtype=np.float32).reshape(3, 3), np.full((3, 3), 2, np.float32)
C = np.array([1, 10, 100], np.float32)
STATE = {"w": W, "n": np.int32(5)}
CONSTANTS = {4: K}
CALLED = {5: C}
"""By the users' numbers: w 0, n 1, x 2, y 3, k 4, c 5."""


@cache
def stacked(loop: int | None = 2) -> CompiledProgram:
    """Return the step compiled, in a loop or with results at the end of a run."""
    roles = {"0": "weight", "1": "weight", "2": "weight", "8": "call", "9": "call"}
    queues: dict[str, Any] = {"outfeeds": ("o=3,4", "y=5")} if loop else {}
    made = compiled(TEXT, loop=loop, roles=roles, feeds={"data": (3, 4, 5)}, **queues)
    return replace(made, program=replace(made.program, stacks=STACKS))


def fed(count: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return x and y of so many elements, small whole numbers."""
    x = np.arange(count * 9, dtype=np.float32).reshape(count, 3, 3) % 7
    return x, np.arange(count, dtype=np.float32)


def weights(steps: int) -> np.ndarray[Any, Any]:
    """Return w after so many steps, from `STATE`."""
    found: np.ndarray[Any, Any] = W + (fed(max(steps, 1))[0][:steps] * K).sum(0)
    return found
