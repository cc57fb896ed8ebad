"""`fuse-rows` and what runs on several IPUs; modules before and after are among the goldens."""

import hloipu
from hloipu_compiler.passes.fusion.fuse_rows import rows_fused
from tests.support.passes import entry, opcodes

REDUCERS = (
    "sum {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}\n\n"
    "top {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n"
    "  ROOT c = f32[] maximum(a, b)\n}"
)
SOFTMAX = """\
  x = f32[4,5] parameter(0)
  low = f32[] constant(-inf)
  zero = f32[] constant(0)
  m = f32[4] reduce(x, low), dimensions={1}, to_apply=top
  mb = f32[4,5] broadcast(m), dimensions={0}
  d = f32[4,5] subtract(x, mb)
  e = f32[4,5] exponential(d)
  s = f32[4] reduce(e, zero), dimensions={1}, to_apply=sum
  sb = f32[4,5] broadcast(s), dimensions={0}
"""


def test_rows_are_put_together_within_an_ipu_alone() -> None:
    module = hloipu.verify(entry(SOFTMAX + "  ROOT r = f32[4,5] divide(e, sb)", REDUCERS))
    name = module.entry.name
    ipus = {(name, x): 0 for x in ("m", "d", "e")} | {(name, x): 1 for x in ("s", "r")}
    made = rows_fused(module, 64, ipus)
    assert sorted(x.name for x in made.entry.instructions if x.opcode == "fusion") == ["e", "r"]
    one = rows_fused(module, 64, dict.fromkeys(ipus, 1))
    assert opcodes(one).count("fusion") == 1
