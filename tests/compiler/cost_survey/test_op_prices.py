"""Prices of ops: what a program of each alone costs, once for all that are alike."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import hloipu
from hloipu_compiler.cost_survey.op_prices import OpPrice, form_of
from hloipu_compiler.driver import op_prices
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.lowering.core.lowering import lower
from hloipu_compiler.memo import Memo
from hloipu_compiler.planners.tuning import DEFAULT_TUNING, Tuning
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.program import Program

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


DRIVER = "hloipu_compiler.driver"
PRICES = "hloipu_compiler.cost_survey.op_prices"
REDUCE = """HloModule m
sum {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT z = f32[] add(x, y)
}
ENTRY main {
  a = f32[6,5]{1,0} parameter(0)
  zero = f32[] constant(0)
  ROOT e = f32[6]{0} reduce(a, zero), dimensions={1}, to_apply=sum
}
"""
CALL = """HloModule m
sum { x = f32[] parameter(0) y = f32[] parameter(1) ROOT z = f32[] add(x, y) }
ENTRY main { a = f32[] parameter(0) ROOT c = f32[] custom-call(a), custom_call_target="sum" }
"""
CHANGES = {
    "another shape": ("6,5", "6,7"),
    "another type": ("f32", "f16"),
    "another constant": ("constant(0)", "constant(1)"),
    "another attribute": ("f32[6]{0} reduce(a, zero), dimensions={1}",
                          "f32[5]{0} reduce(a, zero), dimensions={0}"),
    "another layout": ("{1,0}", "{0,1}"),
    "another op within": ("add(x, y)", "maximum(x, y)"),
    "operands the other way": ("add(x, y)", "add(y, x)"),
}  # fmt: skip


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> list[Module]:
    """What is lowered, with nothing known before."""
    seen: list[Module] = []

    def noted(module: Module, *others: Any) -> Program:
        seen.append(module)
        return lower(module, *others)

    monkeypatch.setattr(f"{PRICES}.PRICE_MEMO", Memo[OpPrice | None](99))
    monkeypatch.setattr(f"{DRIVER}.lower", noted)
    return seen


def prices(text: str, machine: Machine = MACHINE, tuning: Tuning = DEFAULT_TUNING) -> list[OpPrice]:
    return op_prices(hloipu.parse(text), machine, tuning)


def test_an_op_under_other_names_is_known(lowered: list[Module]) -> None:
    first = prices(REDUCE)
    renamed = REDUCE.replace("sum", "total").replace(" e =", " k =").replace("(a,", "(b,")
    assert prices(renamed.replace(" a =", " b =")) == first
    assert len(lowered) == 1


@pytest.mark.parametrize("change", CHANGES)
def test_an_op_that_differs_is_not(change: str, lowered: list[Module]) -> None:
    prices(REDUCE)
    found = prices(REDUCE.replace(*CHANGES[change]))
    assert len(lowered) == 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{PRICES}.PRICE_MEMO", Memo[OpPrice | None](99))
        assert prices(REDUCE.replace(*CHANGES[change])) == found


def test_machines_and_tunings_have_prices_of_their_own(lowered: list[Module]) -> None:
    small = load_machine("tiny", {"tiles_per_ipu": "2"})
    first = prices(REDUCE)
    assert prices(REDUCE, small) != first
    prices(REDUCE, tuning=replace(DEFAULT_TUNING, memory_percent=30))
    assert len(lowered) == 3
    assert prices(REDUCE, load_machine("tiny")) == first
    assert len(lowered) == 3


def test_names_that_are_no_names_of_computations_are_compared() -> None:
    """A target may be called as a computation is."""
    target = CALL.replace('"sum"', '"product"').replace("sum {", "product {")
    assert form_of(hloipu.parse(CALL)) != form_of(hloipu.parse(target))


def test_literals_are_compared_by_what_they_hold() -> None:
    def of(literal: Literal) -> object:
        module = hloipu.parse(REDUCE)
        entry = module.entry
        constant = entry.instructions[1]._replace(literal=literal)
        changed = replace(entry, instructions=(entry.instructions[0], constant))
        return form_of(replace(module, computations=(module.computations[0], changed)))

    long = "0, " * 100
    ones = [Literal(array=np.ones(3, np.float32)) for _ in range(2)]
    assert of(ones[0]) == of(ones[1])
    assert of(ones[0]) != of(Literal(array=np.zeros(3, np.float32)))
    assert of(ones[0]) != of(Literal(array=np.ones(3, np.float16)))
    assert of(Literal(long)) == of(Literal(long[:-3] + "0, "))
    assert of(Literal(long)) != of(Literal(long[:-3] + "1, "))


def test_the_oldest_prices_are_forgotten() -> None:
    known: Memo[int] = Memo(most=2)
    found = [known.of(key, lambda key=key: key) for key in (1, 2, 3)]  # type: ignore[misc]
    assert found == [1, 2, 3]
    assert known.of(3, lambda: -1) == 3
    assert known.of(2, lambda: -1) == 2
    assert known.of(1, lambda: -1) == -1
