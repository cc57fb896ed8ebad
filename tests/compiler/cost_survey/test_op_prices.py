"""Prices of ops: what a program of each alone costs, once for all that are alike."""

import hloipu
from hloipu_compiler.driver import op_prices
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.planners.tuning import DEFAULT_TUNING
from hloipu_runtime.machine.load import load_machine

TEXT = """HloModule m
sum {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT z = f32[] add(x, y)
}
ENTRY main {
  a = f32[16,16]{1,0} parameter(0)
  b = f32[16,16]{1,0} dot(a, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  c = f32[16,16]{1,0} dot(b, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  d = f32[16,16]{1,0} tanh(c)
  zero = f32[] constant(0)
  e = f32[16]{0} reduce(d, zero), dimensions={1}, to_apply=sum
  f = f32[4,4]{1,0} reshape(e)
  ROOT g = f32[2,4]{1,0} custom-call(f), custom_call_target="nobody.knows"
}
"""
MACHINE = load_machine("tiny")


def cycles_of(module: Module) -> list[float]:
    return [price.cycles for price in op_prices(module, MACHINE, DEFAULT_TUNING)]


def test_ops_cost_what_their_programs_do_and_others_are_guessed() -> None:
    module = hloipu.parse(TEXT)
    prices = dict(zip(module.entry.position, cycles_of(module), strict=True))
    assert prices["a"] == prices["zero"] == prices["f"] == 0
    assert prices["b"] == prices["c"] > 0
    assert prices["g"] == 2 * 4 + 4 * 4  # elements made and read
    alone = hloipu.compile(
        """HloModule m
ENTRY main {
  a = f32[16,16]{1,0} parameter(0)
  b = f32[16,16]{1,0} parameter(1)
  ROOT c = f32[16,16]{1,0} dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
""",
        target="tiny",
        cache=False,
    ).estimate()
    working = alone.compute_cycles + alone.exchange_cycles
    assert working <= prices["c"] <= working + 2 * alone.sync_cycles
