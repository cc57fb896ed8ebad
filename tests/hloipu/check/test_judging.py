"""The judge of whole modules finds single wrong ops in narrow types, and nothing in right ones."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from hloipu.check.outputs import Truth, compare_outputs, nested, truth_of
from hloipu.inputs import flat
from hloipu.xla_cpu.runner import XlaCpu
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.evaluator import evaluate
from hloipu_compiler.interpret.planning.plan import Array
from hloipu_compiler.interpret.random_inputs import random_arguments
from hloipu_compiler.ir.graph import Module

TEXT = """HloModule m
sum {{
  a = {t}[] parameter(0)
  b = {t}[] parameter(1)
  ROOT r = {t}[] add(a, b)
}}
ENTRY e {{
  x = {t}[16,32] parameter(0)
  w = {t}[32,8] parameter(1)
  b = {t}[8] parameter(2)
  d = {t}[16,8] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  bb = {t}[16,8] broadcast(b), dimensions={{1}}
  s = {t}[16,8] add(d, bb)
  k = {t}[] constant(0.3)
  kk = {t}[16,8] broadcast(k), dimensions={{}}
  m = {t}[16,8] multiply(s, kk)
  h = {t}[16,8] tanh(m)
  z = {t}[] constant(0)
  n = {t}[16] reduce(h, z), dimensions={{1}}, to_apply=sum
  nn = {t}[16,8] broadcast(n), dimensions={{0}}
  ROOT r = {t}[16,8] subtract(h, nn)
}}
"""
FAULTS = {
    "add -> subtract": ("add(d, bb)", "subtract(d, bb)"),
    "swapped": ("subtract(h, nn)", "subtract(nn, h)"),
    "dropped bias": ("add(d, bb)", "copy(d)"),
    "constant": ("constant(0.3)", "constant(0.405)"),
    "function": ("tanh(m)", "sine(m)"),
}
KINDS = ("bf16", "f8e4m3fn")


def agrees(right: Module, tried: Module, leaves: list[Array], truth: Truth | None) -> bool:
    assert truth is not None
    ours = evaluate(tried, *nested(tried, leaves))
    theirs = evaluate(right, *nested(right, leaves))
    return all(x.agrees for x in compare_outputs(right, ours, theirs, truth))


@pytest.mark.parametrize("kind", KINDS)
def test_planted_faults_are_found_and_the_right_module_agrees(kind: str, xla_cpu: XlaCpu) -> None:
    text = TEXT.format(t=kind)
    right = parse(text)
    leaves = flat(random_arguments(right, 1))
    truth = truth_of(xla_cpu, right, leaves)
    assert truth is not None
    more = truth.draw(range(9, 13))
    truth = replace(truth, draw=lambda _numbers: more)
    assert agrees(right, right, leaves, truth)
    missed = []
    for name, (old, new) in FAULTS.items():
        assert old in text
        if agrees(right, parse(text.replace(old, new)), leaves, truth):
            missed.append(name)
    assert missed == []


LOGISTIC = """HloModule m
ENTRY e {
  x = f16[64,64] parameter(0)
  c = f16[64,64] parameter(1)
  k = f16[] constant(1)
  one = f16[64,64] broadcast(k), dimensions={}
  slope = f16[] constant(-1)
  slopes = f16[64,64] broadcast(slope), dimensions={}
  n = f16[64,64] negate(x)
  p = f16[64,64] exponential(n)
  s = f16[64,64] add(p, one)
  l = f16[64,64] divide(one, s)
  ROOT r = f16[64,64] multiply(l, c)
}
"""


def test_logistic_function_may_round_once(xla_cpu: XlaCpu) -> None:
    """So programs compute it; a slope that is 2 % off is found all the same."""
    right = parse(LOGISTIC)
    leaves = flat(random_arguments(right, 1))
    truth = truth_of(xla_cpu, right, leaves)
    once = LOGISTIC.replace("divide(one, s)", "logistic(x)")
    steep = LOGISTIC.replace("negate(x)", "multiply(x, slopes)").replace("(-1)", "(-1.02)")
    assert agrees(right, parse(once), leaves, truth)
    assert not agrees(right, parse(steep), leaves, truth)


SCATTER = """HloModule m
sum {
  a = bf16[] parameter(0)
  b = bf16[] parameter(1)
  ROOT r = bf16[] add(a, b)
}
ENTRY e {
  z = bf16[64] parameter(0)
  i = s32[640,1] parameter(1)
  u = bf16[640] parameter(2)
  ROOT r = bf16[64] scatter(z, i, u), update_window_dims={}, inserted_window_dims={0},
    scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=sum
}
"""


def test_scatters_may_round_after_each_update_and_at_the_end(xla_cpu: XlaCpu) -> None:
    """XLA:CPU rounds after each, a sum in f32 once; a term too few is a fault."""
    module = parse(SCATTER)
    random = np.random.default_rng(3)
    index = np.repeat(np.arange(64, dtype=np.int32), 10)
    updates = random.uniform(0.5, 1.5, 640).astype(ml_dtypes.bfloat16)
    leaves: list[Array] = [np.zeros(64, ml_dtypes.bfloat16), index[:, None], updates]
    truth = truth_of(xla_cpu, module, leaves)
    assert truth is not None
    more = truth.draw(range(9, 13))
    truth = replace(truth, draw=lambda _numbers: more)
    (theirs,) = xla_cpu([(module, leaves)])
    assert not isinstance(theirs, str)
    rows = updates.astype(np.float32).reshape(64, 10)
    once = rows.sum(1).astype(ml_dtypes.bfloat16)
    assert (once != theirs[0]).any()
    for right in (theirs[0], once):
        assert all(x.agrees for x in compare_outputs(module, [right], theirs, truth))
    wrong = rows[:, 1:].sum(1).astype(ml_dtypes.bfloat16)
    assert not all(x.agrees for x in compare_outputs(module, [wrong], theirs, truth))


QUANTISED = """HloModule m
ENTRY e {
  x = f32[32,64] parameter(0)
  s = f32[32] parameter(1)
  b = f32[32,64] broadcast(s), dimensions={0}
  ROOT q = f32[32,64] divide(x, b)
}
"""


def test_divisors_may_be_inverted_and_multiplied_with(xla_cpu: XlaCpu) -> None:
    """As compilers do; inverses that are rounded to bf16 are a fault."""
    module = parse(QUANTISED)
    random = np.random.default_rng(5)
    x = random.normal(size=(32, 64)).astype(np.float32)
    s = random.uniform(0.1, 3, 32).astype(np.float32)
    leaves: list[Array] = [x, s]
    truth = truth_of(xla_cpu, module, leaves)
    assert truth is not None
    more = truth.draw(range(9, 13))
    truth = replace(truth, draw=lambda _numbers: more)
    inverse = (np.float32(1) / s)[:, None]
    theirs = [x / s[:, None]]
    assert (x * inverse != theirs[0]).any()
    assert all(r.agrees for r in compare_outputs(module, [x * inverse], theirs, truth))
    rough = inverse.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert not all(r.agrees for r in compare_outputs(module, [x * rough], theirs, truth))


CONTRACTED = """HloModule m
ENTRY e {{
  a = {t}[512] parameter(0)
  b = {t}[512] parameter(1)
  c = {t}[512] parameter(2)
  p = {t}[512] multiply(a, b)
  ROOT s = {t}[512] add(p, c)
}}
"""


@pytest.mark.parametrize(("kind", "wider", "narrower"),
                         [("f32", "f8", "f2"), ("f64", "g", "f4")])  # fmt: skip
def test_products_may_be_contracted_with_sums(
    kind: str, wider: str, narrower: str, xla_cpu: XlaCpu
) -> None:
    """As an optimizer's moving averages are; a product that is rounded more narrowly is a fault."""
    module = parse(CONTRACTED.format(t=kind))
    own = np.dtype({"f32": np.float32, "f64": np.float64}[kind])
    a, b, c = np.random.default_rng(7).uniform(0.5, 1, (3, 512)).astype(own)
    truth = truth_of(xla_cpu, module, [a, b, c])
    assert truth is not None
    more = truth.draw(range(9, 13))
    truth = replace(truth, draw=lambda _numbers: more)
    contracted = (a.astype(wider) * b.astype(wider) + c.astype(wider)).astype(own)
    twice = a * b + c
    assert (contracted != twice).any()
    for right in (contracted, twice):
        assert all(r.agrees for r in compare_outputs(module, [right], [twice], truth))
    rough = (a * b).astype(narrower).astype(own) + c
    assert not all(r.agrees for r in compare_outputs(module, [rough], [twice], truth))


@pytest.mark.parametrize("last", ["s32[64] convert(p)", "f32[64] floor(p)", "f32[64] copy(p)"])
def test_products_that_are_in_no_sum_are_exact(last: str, xla_cpu: XlaCpu) -> None:
    """An exact product that is truncated is one number only."""
    module = parse(f"""HloModule m
ENTRY e {{
  a = f32[64] parameter(0)
  b = f32[64] parameter(1)
  p = f32[64] multiply(a, b)
  ROOT r = {last}
}}
""")
    leaves: list[Array] = list(
        np.random.default_rng(0).integers(1, 1000, (2, 64)).astype(np.float32)
    )
    truth = truth_of(xla_cpu, module, leaves)
    assert truth is not None
    right = (leaves[0] * leaves[1]).astype(truth[0].dtype if last[0] == "s" else np.float32)
    assert all(r.agrees for r in compare_outputs(module, [right], [right], truth))
    for step in (-1, 1):
        wrong = right.copy()
        wrong[3] += step
        assert not all(r.agrees for r in compare_outputs(module, [wrong], [right], truth))


MODULUS = """HloModule m
ENTRY e {
  x = c64[512] parameter(0)
  a = f32[512] abs(x)
  s = c64[512] sign(x)
  ROOT t = (f32[512], c64[512]) tuple(a, s)
}
"""


def test_moduli_of_complex_numbers_are_rounded(xla_cpu: XlaCpu) -> None:
    """`abs` and `sign` move bits of floats; of complex numbers they compute: formulas differ."""
    module = parse(MODULUS)
    parts = np.random.default_rng(11).normal(size=(2, 512)).astype(np.float32)
    x = (parts[0] + 1j * parts[1]).astype(np.complex64)
    truth = truth_of(xla_cpu, module, [x])
    assert truth is not None
    more = truth.draw(range(9, 13))
    truth = replace(truth, draw=lambda _numbers: more)
    root = np.sqrt(x.real * x.real + x.imag * x.imag)
    theirs = [root, x / root]
    exact = np.abs(x.astype(np.complex128)).astype(np.float32)
    assert (exact != root).any()
    for size in (root, exact):
        ours = [size, x / size]
        assert all(r.agrees for r in compare_outputs(module, ours, theirs, truth))
    larger = root * np.float32(1 + 1e-5)
    for wrong in ([larger, x / root], [root, x / larger]):
        assert not all(r.agrees for r in compare_outputs(module, wrong, theirs, truth))
