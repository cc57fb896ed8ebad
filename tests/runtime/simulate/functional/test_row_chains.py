import numpy as np
import pytest

from hloipu import compile as compile_hlo
from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.program.program import Program
from hloipu_runtime.simulate.functional import logical_form
from hloipu_runtime.simulate.functional.logical_form import collapse

ROWS, COLUMNS = 200, 300

NORM = f"""HloModule norm
add {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }}
ENTRY e {{
  x = f32[{ROWS},{COLUMNS}] parameter(0)
  scale = f32[{COLUMNS}] parameter(1)
  zero = f32[] constant(0)
  total = f32[{ROWS}] reduce(x, zero), dimensions={{1}}, to_apply=add
  count = f32[] constant({COLUMNS})
  counts = f32[{ROWS}] broadcast(count), dimensions={{}}
  mean = f32[{ROWS}] divide(total, counts)
  means = f32[{ROWS},{COLUMNS}] broadcast(mean), dimensions={{0}}
  off = f32[{ROWS},{COLUMNS}] subtract(x, means)
  square = f32[{ROWS},{COLUMNS}] multiply(off, off)
  squares = f32[{ROWS}] reduce(square, zero), dimensions={{1}}, to_apply=add
  root = f32[{ROWS}] rsqrt(squares)
  roots = f32[{ROWS},{COLUMNS}] broadcast(root), dimensions={{0}}
  scales = f32[{ROWS},{COLUMNS}] broadcast(scale), dimensions={{1}}
  normed = f32[{ROWS},{COLUMNS}] multiply(off, roots)
  scaled = f32[{ROWS},{COLUMNS}] multiply(normed, scales)
  LEFT
}}
"""

WHOLE = f"ROOT r = (f32[{ROWS},{COLUMNS}]) tuple(scaled)"
WITH_MEAN = f"ROOT r = (f32[{ROWS},{COLUMNS}], f32[{ROWS}]) tuple(scaled, mean)"
TURNED_BETWEEN = f"""turned = f32[{COLUMNS},{ROWS}] transpose(off), dimensions={{1,0}}
  back = f32[{ROWS},{COLUMNS}] reshape(turned)
  ROOT r = (f32[{ROWS},{COLUMNS}], f32[{ROWS},{COLUMNS}]) tuple(scaled, back)"""


def names(program: Program) -> list[str]:
    """Return the codelets of the logical form."""
    nodes = collapse(program).nodes
    return [node.what.name for node in nodes if isinstance(node.what, Codelet)]


@pytest.mark.parametrize("left", [WHOLE, WITH_MEAN, TURNED_BETWEEN])
def test_ops_on_rows_come_together_and_compute_the_same(
    left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = NORM.replace("LEFT", left)
    rng = np.random.default_rng(3)
    x, scale = rng.standard_normal((ROWS, COLUMNS), np.float32), rng.random(COLUMNS, np.float32)
    together = compile_hlo(text, target="gc200")
    joined = names(together.program)
    assert joined.count("row_region") == 1
    assert "reduce" not in joined
    got = [np.asarray(v) for v in together.run(x, scale, fast=False).outputs]
    wide = x.astype(np.float64)
    off = wide - wide.mean(1, keepdims=True)
    np.testing.assert_allclose(
        got[0], off / np.sqrt((off**2).sum(1, keepdims=True)) * scale, rtol=1e-4, atol=1e-7
    )
    monkeypatch.setattr(logical_form, "with_row_chains", lambda nodes, *rest: nodes)
    apart = compile_hlo(text, target="gc200")
    assert len(names(apart.program)) > len(joined)
    for one, other in zip(got, apart.run(x, scale, fast=False).outputs, strict=True):
        np.testing.assert_array_equal(one, np.asarray(other))


LOOP = f"""HloModule loop
add {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }}
body {{
  s = (s32[], f32[{ROWS},{COLUMNS}], f32[{ROWS}], f32[5,5]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  one = s32[] constant(1)
  next = s32[] add(i, one)
  x = f32[{ROWS},{COLUMNS}] get-tuple-element(s), index=1
  zero = f32[] constant(0)
  total = f32[{ROWS}] reduce(x, zero), dimensions={{1}}, to_apply=add
  count = f32[] constant({COLUMNS // 2})
  counts = f32[{ROWS}] broadcast(count), dimensions={{}}
  mean = f32[{ROWS}] divide(total, counts)
  means = f32[{ROWS},{COLUMNS}] broadcast(mean), dimensions={{0}}
  off = f32[{ROWS},{COLUMNS}] subtract(x, means)
  part = f32[5,5] slice(off), slice={{[0:5],[0:5]}}
  ROOT r = (s32[], f32[{ROWS},{COLUMNS}], f32[{ROWS}], f32[5,5]) tuple(next, off, mean, part)
}}
condition {{
  s = (s32[], f32[{ROWS},{COLUMNS}], f32[{ROWS}], f32[5,5]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  three = s32[] constant(3)
  ROOT p = pred[] compare(i, three), direction=LT
}}
ENTRY e {{
  x = f32[{ROWS},{COLUMNS}] parameter(0)
  zero = s32[] constant(0)
  nothing = f32[] constant(0)
  none = f32[{ROWS}] broadcast(nothing), dimensions={{}}
  corner = f32[5,5] broadcast(nothing), dimensions={{}}
  s = (s32[], f32[{ROWS},{COLUMNS}], f32[{ROWS}], f32[5,5]) tuple(zero, x, none, corner)
  w = (s32[], f32[{ROWS},{COLUMNS}], f32[{ROWS}], f32[5,5]) while(s), condition=condition, body=body
  y = f32[{ROWS},{COLUMNS}] get-tuple-element(w), index=1
  few = f32[{ROWS}] get-tuple-element(w), index=2
  last = f32[5,5] get-tuple-element(w), index=3
  ROOT r = (f32[{ROWS},{COLUMNS}], f32[{ROWS}], f32[5,5]) tuple(y, few, last)
}}
"""


def test_a_loop_hands_on_what_rows_leave() -> None:
    x = np.random.default_rng(4).standard_normal((ROWS, COLUMNS), np.float32) + np.float32(1)
    got, few, _ = compile_hlo(LOOP, target="gc200").run(x).outputs
    # Twice the mean taken away turns its sign.
    mean = x.astype(np.float64).mean(1, keepdims=True)
    wanted = x - 2 * mean
    np.testing.assert_allclose(np.asarray(got), wanted, atol=1e-5)
    np.testing.assert_allclose(np.asarray(few), 2 * mean[:, 0], atol=1e-5)
