"""Padding goes into the windows that read it, as in the gradients of pooling that JAX writes."""

import numpy as np
import pytest

import hloipu
from hloipu_compiler.passes import run_passes
from tests.support.passes import SUM, entry, opcodes
from tests.support.xla_oracle import Oracle

GREATER = """greater {
  p = f32[] parameter(0)
  q = f32[] parameter(1)
  ROOT r = pred[] compare(p, q), direction=GE
}
"""
MEAN = """\
  g = f32[2,5,6,4] parameter(0)
  z = f32[] constant(0)
  p = f32[2,11,15,4] pad(g, z), padding=0_0x1_1_1x2_2_1x0_0
  ROOT r = f32[2,10,13,4] reduce-window(p, z), window={size=1x2x3x1}, to_apply=sum"""
MAXIMUM = """\
  x = f32[2,9,10,4] parameter(0)
  g = f32[2,5,5,4] parameter(1)
  z = f32[] constant(0)
  m = f32[] constant(-inf)
  p = f32[2,11,12,4] pad(x, m), padding=0_0x1_1x1_1x0_0
  s = f32[2,11,12,4] select-and-scatter(p, g, z), window={size=1x3x3x1 stride=1x2x2x1}, \
select=greater, scatter=sum
  ROOT r = f32[2,9,10,4] slice(s), slice={[0:2],[1:10],[1:11],[0:4]}"""
PEELED = MAXIMUM.replace("11,12", "11,11").replace("1_1x0_0", "0_1x0_0").replace("[1:11]", "[0:10]")
"""XLA:CPU would come to the last column out of turn, and choose another one of equals."""


@pytest.mark.parametrize("mode", ["exact", "functional"])
@pytest.mark.parametrize("body", [MEAN, MAXIMUM], ids=["mean", "maximum"])
def test_values_are_those_of_xla(body: str, mode: str, oracle: Oracle) -> None:
    text = entry(body, SUM + GREATER)
    random = np.random.default_rng(3)
    shapes = [(2, 5, 6, 4)] if body is MEAN else [(2, 9, 10, 4), (2, 5, 5, 4)]
    # Of few different values, so that some windows have equals.
    arrays = [random.integers(-4, 4, s).astype(np.float32) for s in shapes]
    after, _ = run_passes(hloipu.parse(text), None, "absorb-views,eliminate-dead-code")
    assert not {"pad", "slice"} & {*opcodes(after)}
    (found,) = hloipu.compile(text, target="tiny").run(*arrays, mode=mode).outputs
    (expected,) = oracle.run(text, arrays)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("body", "old", "new"),
    [
        (MEAN, "pad(g, z)", "pad(g, o)"),
        (MEAN, "padding=0_0x1_1_1x2_2_1x0_0", "padding=0_0x2_0_1x5_-1_1x0_0"),
        (MAXIMUM, "constant(-inf)", "constant(-9)"),
        (MAXIMUM, "[1:10]", "[2:11]"),
        (PEELED, "z", "z"),
    ],
)
def test_what_stays(body: str, old: str, new: str) -> None:
    assert old in body
    changed = body.replace(old, new).replace("  z = ", "  o = f32[] constant(1)\n  z = ")
    module = hloipu.parse(entry(changed, SUM + GREATER))
    (reader,) = (x for x in run_passes(module, None, "absorb-views")[0].entry.instructions
                 if x.opcode in ("reduce-window", "select-and-scatter"))  # fmt: skip
    assert all(w.pad_low == w.pad_high == 0 for w in reader.attributes.window().dimensions)
