"""What XLA:CPU is given in a module's place computes the same values."""

import numpy as np

from hloipu.xla_cpu.forms import for_partitioner, for_stablehlo
from hloipu_compiler.evaluate.evaluator import evaluate
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.verify.verifier import verify

OPTIMISED = """
HloModule m

inner { a = f32[2,3]{0,1} parameter(0)
  b = f32[6]{0} bitcast(a)
  n = f32[6]{0} negate(b)
  ROOT t = (f32[6]{0}, f32[2,3]{0,1}) tuple(n, a) }

ENTRY e {
  x = f32[3,2]{1,0} parameter(0)
  y = f32[2,3]{0,1} bitcast(x)
  f = (f32[6]{0}, f32[2,3]{0,1}) fusion(y), kind=kLoop, calls=inner
  g = f32[6]{0} get-tuple-element(f), index=0
  h = f32[2,3]{0,1} get-tuple-element(f), index=1
  ROOT r = (f32[6]{0}, f32[2,3]{0,1}) tuple(g, h)
}
"""


def test_fusions_and_bitcasts_are_spelled_out() -> None:
    """Bitcasts between layouts become transposes and reshapes, fusions calls; values stay."""
    module = parse(OPTIMISED)
    made = for_stablehlo(module)
    verify(made)
    opcodes = {x.opcode for c in made.computations for x in c.instructions}
    assert opcodes.isdisjoint({"fusion", "bitcast"})
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    for given in (module, made):
        flat, turned = evaluate(given, x)
        np.testing.assert_array_equal(flat, -np.arange(6))
        np.testing.assert_array_equal(turned, x.T)


def test_what_is_written_per_device_is_marked_manual() -> None:
    """The partitioner shall not split it again, whatever its parameters still say."""
    text = (
        "HloModule m, num_partitions=2\n\nENTRY e { p = f32[4] parameter(0), "
        "sharding={devices=[2]<=[2]}\n  ROOT t = (f32[4], f32[4]) tuple(p, p) }\n"
    )
    p, t = for_partitioner(parse(text)).entry.instructions
    assert p.attributes.text("sharding") == "{manual}"
    assert t.attributes.text("sharding") == "{{manual}, {manual}}"
