"""`cheapen-divisions`: quotients by what repeats, and the logistic function, against f64."""

import numpy as np
import pytest

from hloipu_compiler.interpret.participants import evaluate_everywhere
from hloipu_compiler.passes.algebra.repeats import CheapenDivisions
from hloipu_compiler.passes.fusion.row_finding import sizes_of
from hloipu_compiler.plan.plan import Plan
from tests.support.passes import entry, opcodes, parsed

RNG = np.random.default_rng(7)
ROWS = """\
  x = {t}[6,40] parameter(0)
  s = {t}[6] parameter(1)
  b = {t}[6,40] broadcast(s), dimensions={{0}}
  ROOT d = {t}[6,40] divide(x, b)"""


@pytest.mark.parametrize(("kind", "units"), [("f32", 1.5), ("f16", 0.501)])
def test_quotients_by_what_repeats(kind: str, units: float) -> None:
    """1.5 units in the last place in f32; f16 rounds once, of which f32's own rounding is 2^-12."""
    module = parsed(entry(ROWS.format(t=kind)))
    made, _ = CheapenDivisions().run(module, Plan())
    assert opcodes(made).count("multiply") == 1
    divisors = [x for x in made.entry.instructions if x.opcode == "divide"]
    assert [sizes_of(x) for x in divisors] == [(6,)]
    dtype = np.dtype(np.float32 if kind == "f32" else np.float16)
    x = RNG.uniform(-9, 9, (6, 40)).astype(dtype)
    # Inverses that f16 cannot hold or holds with few bits are among them.
    s = np.array([3, 7e-6, 60000, 0.1, -5, 1 / 3], dtype)
    wanted = x.astype(float) / s.astype(float)[:, None]
    with np.errstate(over="ignore"):
        fits = np.isfinite(wanted.astype(dtype))
        found = np.asarray(evaluate_everywhere(made, x, s)[0])
    assert np.isfinite(found[fits]).all()
    spacing = np.spacing(np.abs(wanted[fits]).astype(dtype)).astype(float)
    assert (np.abs(found[fits].astype(float) - wanted[fits]) <= units * spacing).all()


@pytest.mark.parametrize(
    "body",
    [
        # What repeats less than a vector has elements; one number that no row waits for; integers.
        ROWS.format(t="f32").replace("40", "3"),
        ROWS.format(t="s32"),
        ROWS.format(t="bf16"),
        "  x = f32[6,40] parameter(0)\n  s = f32[] parameter(1)\n"
        "  b = f32[6,40] broadcast(s), dimensions={}\n  ROOT d = f32[6,40] divide(x, b)",
        "  x = f32[6,40] parameter(0)\n  s = f32[6] parameter(1)\n"
        "  b = f32[6,40] broadcast(s), dimensions={0}\n  ROOT d = f32[6,40] divide(b, x)",
    ],
)
def test_what_stays(body: str) -> None:
    module = parsed(entry(body))
    assert CheapenDivisions().run(module, Plan())[0] is module


def test_a_constant_is_inverted_at_once() -> None:
    body = """\
  x = f16[6,40] parameter(0)
  s = f16[] constant(12)
  b = f16[6,40] broadcast(s), dimensions={}
  ROOT d = f16[6,40] divide(x, b)"""
    made, _ = CheapenDivisions().run(parsed(entry(body)), Plan())
    assert "divide" not in opcodes(made)
    x = RNG.uniform(-9, 9, (6, 40)).astype(np.float16)
    found = np.asarray(evaluate_everywhere(made, x)[0])
    np.testing.assert_array_equal(found, (x.astype(float) / 12).astype(np.float16))


def test_new_ops_are_where_the_quotient_was() -> None:
    module = parsed(entry(ROWS.format(t="f16")))
    name = module.entry.name
    made, plan = CheapenDivisions().run(module, Plan(ipus={(name, "d"): 1}))
    new = {x.name for x in made.entry.instructions} - {"x", "s", "b"}
    assert {key for key, ipu in plan.ipus.items() if ipu == 1} == {(name, x) for x in new}


@pytest.mark.parametrize("total", ["add(one, e)", "add(e, one)"])
def test_the_logistic_function(total: str) -> None:
    body = f"""\
  x = f16[400] parameter(0)
  c = f16[] constant(1)
  one = f16[400] broadcast(c), dimensions={{}}
  n = f16[400] negate(x)
  e = f16[400] exponential(n)
  t = f16[400] {total}
  ROOT d = f16[400] divide(one, t)"""
    made, _ = CheapenDivisions().run(parsed(entry(body)), Plan())
    assert made.entry.instructions[made.entry.root].opcode == "logistic"
    x = np.linspace(-20, 20, 400).astype(np.float16)
    found = np.asarray(evaluate_everywhere(made, x)[0]).astype(float)
    wanted = 1 / (1 + np.exp(-x.astype(float)))
    assert (np.abs(found - wanted) <= np.spacing(wanted.astype(np.float16))).all()
    other, _ = CheapenDivisions().run(
        parsed(entry(body.replace("constant(1)", "constant(2)"))), Plan()
    )
    assert "logistic" not in opcodes(other)
