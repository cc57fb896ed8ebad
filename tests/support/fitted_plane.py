"""A plane fitted to 24 points by gradient descent: the step as text, a trainer of it, numpy's."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from hloipu.training.trainer import Trainer

_FIT = """
  w = f32[2]{0} parameter(0)
  x = f32[4,2]{1,0} parameter(1)
  guess = f32[4]{0} dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
"""
_LOSS = """
  y = f32[4]{0} parameter(2)
  off = f32[4]{0} subtract(guess, y)
  square = f32[4]{0} multiply(off, off)
  zero = f32[] constant(0)
  loss = f32[] reduce(square, zero), dimensions={0}, to_apply=sum
"""
_SUM = """
sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
"""
STEP = f"""HloModule step, input_output_alias={{ {{0}}: (0, {{}}, may-alias) }}
{_SUM}
ENTRY main {{
{_FIT}{_LOSS}
  slope = f32[2]{{0}} dot(x, off), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
  rate = f32[] constant(0.0625)
  rates = f32[2]{{0}} broadcast(rate), dimensions={{}}
  change = f32[2]{{0}} multiply(slope, rates)
  new = f32[2]{{0}} subtract(w, change)
  ROOT all = (f32[2]{{0}}, f32[]) tuple(new, loss)
}}
"""
LOSS = f"HloModule loss\n{_SUM}\nENTRY main {{\n{_FIT}{_LOSS}\n  ROOT r = (f32[]) tuple(loss)\n}}\n"
GUESS = f"HloModule guess\nENTRY main {{\n{_FIT}\n  ROOT r = (f32[4]{{0}}) tuple(guess)\n}}\n"

ROWS = 24
X = np.random.default_rng(0).normal(size=(ROWS, 2)).astype(np.float32)
Y = (X @ np.array([2, -1], np.float32)).astype(np.float32)
START = np.zeros(2, np.float32)
STEPS = ROWS // 4


def trainer(**more: Any) -> Trainer:
    """Return a trainer of the step for the smallest machine."""
    given: dict[str, Any] = {"state": [START], "target": "tiny", "cache": False, **more}
    return Trainer(STEP, **given)


def by_numpy(steps: int) -> tuple[list[float], Any]:
    """Return losses and weights after so many steps."""
    w, losses = np.zeros(2), []
    for n in range(steps):
        at = 4 * (n % STEPS)
        x, off = X[at : at + 4], X[at : at + 4] @ w - Y[at : at + 4]
        losses.append(float(off @ off))
        w = w - 0.0625 * (x.T @ off)
    return losses, w


def weights(made: Trainer) -> Any:
    """Return what a trainer holds."""
    assert isinstance(made.state, Mapping)
    (array,) = made.state.values()
    return array
