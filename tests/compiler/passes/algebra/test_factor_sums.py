"""Factors that repeat along a sum leave it: what stays is summed once, and no value overflows."""

import numpy as np
import pytest

import hloipu
from hloipu_compiler.passes import run_passes
from tests.support.passes import SUM, entry, opcodes
from tests.support.xla_oracle import Oracle

HALF_SUM = SUM.replace("f32", "f16").replace("sum", "half_sum")
CASES = {
    # A negated product with two numbers of each column, in f16; what it is of is summed, too.
    "columns": """\
  x = f16[24,16] parameter(0)
  c = f16[16] parameter(1)
  b = f16[24,16] broadcast(c), dimensions={1}
  p = f16[24,16] multiply(x, b)
  q = f16[24,16] multiply(p, b)
  n = f16[24,16] negate(q)
  z = f16[] constant(0)
  s = f16[16] reduce(n, z), dimensions={0}, to_apply=half_sum
  t = f16[16] reduce(x, z), dimensions={0}, to_apply=half_sum
  ROOT r = (f16[16], f16[16]) tuple(s, t)""",
    # Both operands of a product have factors, in f32, one of them widened.
    "both": """\
  x = f16[24,16] parameter(0)
  c = f16[16] parameter(1)
  w = f32[24,16] convert(x)
  k = f32[16] convert(c)
  b = f32[24,16] broadcast(k), dimensions={1}
  p = f32[24,16] multiply(w, b)
  e = f32[24,16] cosine(w)
  q = f32[24,16] multiply(b, e)
  m = f32[24,16] multiply(p, q)
  d = f32[24,16] add(p, p)
  z = f32[] constant(0)
  s = f32[16] reduce(m, z), dimensions={0}, to_apply=sum
  ROOT r = (f32[16], f32[24,16]) tuple(s, d)""",
}


def _arrays(factor: float, size: float) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(5)
    x = (size * random.uniform(0.5, 1, (24, 16))).astype(np.float16)
    return x, (factor * random.uniform(0.5, 1, 16)).astype(np.float16)


@pytest.mark.parametrize("mode", ["exact", "functional"])
@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_xla(name: str, mode: str, oracle: Oracle) -> None:
    text = entry(CASES[name], SUM + HALF_SUM)
    arrays = _arrays(0.7, 2)
    expected = oracle.run(text, arrays)
    outputs = hloipu.compile(text, target="tiny").run(*arrays, mode=mode).outputs
    for output, array in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(output, array, rtol=3e-3 if output.dtype == "f2" else 2e-6)


def test_one_sum_is_left() -> None:
    after, _ = run_passes(hloipu.parse(entry(CASES["columns"], HALF_SUM)), None, "factor-sums")
    assert all(
        x.opcode != "reduce" or x.shape.dimensions == (16,) for x in after.entry.instructions
    )
    after, _ = run_passes(after, None, "eliminate-common-subexpressions,eliminate-dead-code")
    assert opcodes(after).count("reduce") == 1


def test_what_factors_keep_small_does_not_overflow() -> None:
    text = entry(CASES["columns"], HALF_SUM).replace(
        "n = f16[24,16] negate(q)", "n = f16[24,16] copy(q)"
    )
    x, c = _arrays(2**-7, 60000)
    sums = hloipu.compile(text, target="tiny").run(x, c).outputs[0]
    wide = x.astype(np.float64) * c.astype(np.float64) ** 2
    np.testing.assert_allclose(sums, wide.sum(0), rtol=1e-3)


@pytest.mark.parametrize(
    "changes",
    [
        {"c = f16[16]": "c = f16[24]", "(c), dimensions={1}": "(c), dimensions={0}"},
        {"constant(0)": "constant(1)"},
        {"add(": "maximum("},
    ],
)
def test_what_stays(changes: dict[str, str]) -> None:
    text = entry(CASES["columns"], HALF_SUM)
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    after, _ = run_passes(hloipu.parse(text), None, "factor-sums")
    assert opcodes(after).count("multiply") == 2
