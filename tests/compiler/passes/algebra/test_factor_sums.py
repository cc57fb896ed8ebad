"""Factors that repeat along a sum leave it: what stays is summed once, and no value overflows."""

from typing import Any

import numpy as np
import pytest

import hloipu
from hloipu_compiler.passes import run_passes
from hloipu_compiler.passes.algebra import repeats
from hloipu_compiler.passes.fusion.row_finding import sizes_of
from tests.support.passes import SUM, entry, opcodes
from tests.support.xla_oracle import Oracle

HALF_SUM = SUM.replace("f32", "f16").replace("sum", "half_sum")
CASES = {
    # A negated product with two numbers of each column; what it is of is summed, too.
    "columns": """\
  x = f32[24,16] parameter(0)
  c = f32[16] parameter(1)
  b = f32[24,16] broadcast(c), dimensions={1}
  p = f32[24,16] multiply(x, b)
  q = f32[24,16] multiply(p, b)
  n = f32[24,16] negate(q)
  z = f32[] constant(0)
  s = f32[16] reduce(n, z), dimensions={0}, to_apply=sum
  t = f32[16] reduce(x, z), dimensions={0}, to_apply=sum
  ROOT r = (f32[16], f32[16]) tuple(s, t)""",
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
    # Factors of a product with other readers stay there; those of a later sum go.
    "others": """\
  x = f32[24,16] parameter(0)
  c = f32[16] parameter(1)
  b = f32[24,16] broadcast(c), dimensions={1}
  p = f32[24,16] multiply(x, b)
  e = f32[24,16] cosine(x)
  q = f32[24,16] multiply(b, e)
  m = f32[24,16] multiply(p, q)
  z = f32[] constant(0)
  s = f32[16] reduce(m, z), dimensions={0}, to_apply=sum
  v = f32[16] sine(s)
  t = f32[16] reduce(p, z), dimensions={0}, to_apply=sum
  ROOT r = (f32[16], f32[16], f32[24,16]) tuple(v, t, m)""",
}


def _arrays(dtype: str) -> list[np.ndarray]:
    random = np.random.default_rng(5)
    return [random.uniform(0.5, 1, shape).astype(dtype) for shape in ((24, 16), 16)]


@pytest.mark.parametrize("mode", ["exact", "functional"])
@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_xla(name: str, mode: str, oracle: Oracle) -> None:
    text = entry(CASES[name], SUM)
    arrays = _arrays("f2" if name == "both" else "f4")
    expected = oracle.run(text, arrays)
    outputs = hloipu.compile(text, target="tiny").run(*arrays, mode=mode).outputs
    for output, array in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(output, array, rtol=2e-6)


def test_one_sum_is_left() -> None:
    passes = "factor-sums,eliminate-dead-code"
    after, _ = run_passes(hloipu.parse(entry(CASES["columns"], SUM)), None, passes)
    assert opcodes(after).count("reduce") == 1


def test_signs_of_halves_leave_and_their_products_stay() -> None:
    body = HALF_SUM, CASES["columns"].replace("f32", "f16").replace("=sum", "=half_sum")
    after, _ = run_passes(hloipu.parse(entry(*body[::-1])), None, "factor-sums")
    assert opcodes(after).count("multiply") == 2
    negated = [sizes_of(x) for x in after.entry.instructions if x.opcode == "negate"]
    assert negated[-1] == (16,)


@pytest.mark.parametrize(
    "changes",
    [
        {"c = f32[16]": "c = f32[24]", "(c), dimensions={1}": "(c), dimensions={0}"},
        {"constant(0)": "constant(1)"},
        {"add(": "maximum("},
    ],
)
def test_what_stays(changes: dict[str, str]) -> None:
    text = entry(CASES["columns"], SUM)
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    after, _ = run_passes(hloipu.parse(text), None, "factor-sums")
    assert opcodes(after).count("multiply") == 2


def test_products_of_products_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 18 squares of squares once, not twice as often as the one that it is part of."""
    looked_at = []
    terms = repeats._Sum._terms

    def counted(*arguments: Any) -> Any:
        looked_at.append(arguments[2])
        return terms(*arguments)

    monkeypatch.setattr(repeats._Sum, "_terms", counted)
    squares = "".join(f"  x{n + 1} = f32[8,16] multiply(x{n}, x{n})\n" for n in range(18))
    text = entry(
        "  x0 = f32[8,16] parameter(0)\n  z = f32[] constant(0)\n" + squares +
        "  ROOT r = f32[8] reduce(x18, z), dimensions={1}, to_apply=sum",
        SUM,
    )  # fmt: skip
    run_passes(hloipu.parse(text), None, "factor-sums")
    assert len(looked_at) == len(set(looked_at)) == 19
