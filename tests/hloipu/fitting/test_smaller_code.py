"""What is done for programs that lack memory: smaller code of exchanges, steps not levelled."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloipu
from hloipu_compiler import step_merging
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import Sequence

SOLVES = "triangular-solve(a, b), left_side=false, lower=true, unit_diagonal=false, transpose_a="
LOOP = f"""HloModule m
body {{
  s = (s32[], f32[140,140], f32[30,140]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  a = f32[140,140] get-tuple-element(s), index=1
  b = f32[30,140] get-tuple-element(s), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  r = f32[30,140] {SOLVES}NO_TRANSPOSE
  ROOT t = (s32[], f32[140,140], f32[30,140]) tuple(next, a, r)
}}
cond {{
  s = (s32[], f32[140,140], f32[30,140]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  three = s32[] constant(3)
  ROOT l = pred[] compare(i, three), direction=LT
}}
ENTRY e {{
  a = f32[140,140] parameter(0)
  b = f32[30,140] parameter(1)
  zero = s32[] constant(0)
  s = (s32[], f32[140,140], f32[30,140]) tuple(zero, a, b)
  w = (s32[], f32[140,140], f32[30,140]) while(s), condition=cond, body=body
  ROOT r = f32[30,140] get-tuple-element(w), index=2
}}
"""
ALONE = f"""HloModule m
ENTRY e {{
  a = f32[140,140] parameter(0)
  b = f32[30,140] parameter(1)
  ROOT r = f32[30,140] {SOLVES}NO_TRANSPOSE
}}
"""
"""Which takes 12,380 bytes of code."""


@pytest.mark.parametrize(
    ("text", "name", "sizes"),
    [(LOOP, "bytes_per_tile", (65_536, 64_400)), (ALONE, "executable_bytes", (65_536, 12_000))],
)
def test_code_gives_way_where_memory_lacks(
    text: str, name: str, sizes: tuple[int, int], tmp_path: Path
) -> None:
    ample, scarce = (
        hloipu.compile(text, target="tiny", cache=False, set={f"memory.{name}": size})
        for size in sizes
    )
    assert ample.program == scarce.program
    assert ample.fits
    assert scarce.fits
    before, after = (x.estimate().spent.total.cycles for x in (ample, scarce))
    assert before < after < 1.01 * before
    scarce.save(tmp_path / "scarce.hloipu")
    again = hloipu.load(tmp_path / "scarce.hloipu")
    assert again.fits
    assert again.estimate() == scarce.estimate()
    assert np.array_equal(again.memory_plan.addresses, scarce.memory_plan.addresses)


@pytest.mark.parametrize(("size", "fits"), [(64, True), (256, False)])
def test_steps_are_levelled_where_memory_does_not_lack(
    size: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies: list[Sequence] = []

    def as_levelled(program: Program, *_: Any, **__: Any) -> Program:
        bodies.append(Sequence(program.body.steps))
        return replace(program, body=bodies[-1])

    monkeypatch.setattr(step_merging, "levelled", as_levelled)
    text = f"""HloModule m
ENTRY e {{
  x = f32[{size},{size}] parameter(0)
  ROOT y = f32[{size},{size}] dot(x, x), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}"""
    compiled = hloipu.compile(text, target="tiny", over_memory="allow", cache=False)
    assert compiled.fits is fits
    assert any(compiled.program.body is body for body in bodies) is fits
