"""Small training steps, compiled for sessions."""

from pathlib import Path
from typing import Any

import numpy as np

from hloipu_compiler.compilation import CompileRequest
from hloipu_compiler.driver import compile_module
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.plan.wrapping import WrappingRequest
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.machine.load import load_machine

SAMPLES = Path(__file__).parents[2] / "hlo_samples"

SUMS = """
HloModule sums, input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, may-alias) }

ENTRY e {
  a = f32[6] parameter(0)
  b = s32[] parameter(1)
  x = f32[6] parameter(2)
  k = f32[6] parameter(3)
  scaled = f32[6] multiply(x, k)
  more = f32[6] add(a, scaled)
  one = s32[] constant(1)
  next = s32[] add(b, one)
  ROOT out = (f32[6], s32[], f32[6]) tuple(more, next, scaled)
}
"""
"""a += x * k, b += 1; the third result is x * k."""

SWAP = """
HloModule swap

ENTRY e {
  s = (f32[3], f32[3], f32[3]) parameter(0), metadata={op_name="s"}
  a = f32[3] get-tuple-element(s), index=0
  b = f32[3] get-tuple-element(s), index=1
  c = f32[3] get-tuple-element(s), index=2
  ROOT out = (f32[3], f32[3], f32[3]) tuple(b, a, c)
}
"""
"""a, b, c = b, a, c."""


def compiled(text: str, target: str = "tiny", **request: Any) -> CompiledProgram:
    """Return a step compiled as a request for wrapping says."""
    machine = load_machine(target, {})
    made = compile_module(parse(text), CompileRequest(machine, wrapping=WrappingRequest(**request)))
    return CompiledProgram(made.program, machine, over_memory="allow")


def sums(loop: int = 3) -> CompiledProgram:
    """Return `SUMS` in a loop, fed with x, its third result going to a queue."""
    return compiled(SUMS, loop=loop, feeds={"data": (2,)}, outfeeds=("seen",))


def rows(count: int) -> np.ndarray[Any, Any]:
    """Return so many elements for `sums`, small whole numbers."""
    return np.arange(count * 6, dtype=np.float32).reshape(count, 6) % 7


START = {"a": np.zeros(6, np.float32), "b": np.int32(5)}
SCALE = {3: np.full(6, 2, np.float32)}
