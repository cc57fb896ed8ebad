"""Scans that are written as running totals and loops give what they gave, divided or not."""

import numpy as np
import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.evaluator import Evaluator
from hloipu_compiler.partition.spmd.partitioning import ready_to_divide
from hloipu_compiler.passes.loops.scans_as_loops import scans_as_loops
from hloipu_compiler.verify.verifier import verify
from tests.support.blocks import check_on_devices

TOTAL = "b = f32[8] {}(x, c)  ROOT r = (f32[8], f32[8]) tuple(b, b)"
MIXED = (
    "d = f32[8] multiply(x, c)  e = f32[8] subtract(d, x)  ROOT r = (f32[8], f32[8]) tuple(d, e)"
)
BODIES = {
    "sum": TOTAL.format("add"),
    "greatest": TOTAL.format("maximum"),
    "mixed": MIXED,
    "difference": TOTAL.format("subtract"),
}
DIVIDED = ("[4,1]<=[4]", "[1,4]<=[4]", "[2,2]<=[4]")


def _text(body: str, reverse: str, divided: str) -> str:
    return f"""HloModule m
body {{ x = f32[8] parameter(0)  c = f32[8] parameter(1)  {BODIES[body]} }}
ENTRY e {{
  x = f32[8,9] parameter(0), sharding={{devices={divided}}}
  c = f32[8] parameter(1)
  ROOT s = (f32[8,9], f32[8]) scan(x, c), dimensions={{1}}, num_carries=1, to_apply=body,
    is_associative={"false" if body == "difference" else "true"}, is_reverse={reverse}
}}"""


@pytest.mark.parametrize("reverse", ["false", "true"])
@pytest.mark.parametrize("body", BODIES)
def test_scans_are_divided(body: str, reverse: str) -> None:
    given = [np.random.default_rng(3).standard_normal(n).astype(np.float32) for n in ((8, 9), 8)]
    for divided in DIVIDED:
        module = parse(_text(body, reverse, divided))
        verify(module)
        expected = Evaluator(module)(*given)
        local = check_on_devices(ready_to_divide(module), given, expected)
        assert not any(x.opcode == "scan" for c in local.computations for x in c.instructions)
        loops = any(x.opcode == "while" for x in local.entry.instructions)
        assert loops == (body in ("mixed", "difference"))
        if divided == DIVIDED[0] and not loops:
            assert "all-gather" not in {x.opcode for x in local.entry.instructions}


@pytest.mark.parametrize(("kind", "loops"), [("f32", True), ("s32", False)])
def test_sums_in_a_stated_order_keep_it(kind: str, loops: bool) -> None:
    text = _text("sum", "false", DIVIDED[0]).replace("associative=true", "associative=false")
    module = parse(text.replace("f32", kind))
    given = [np.full(n, value, kind.replace("s", "i").replace("32", "4"))
             for n, value in (((8, 9), 2**30), (8, -(2**30)))]  # fmt: skip
    if loops:
        given = [x * np.float32(2.0**97) for x in given]  # two terms overflow, each total does not
        given[0][:, 2:] = 0
    expected = Evaluator(module)(*given)
    assert np.isfinite(expected[0]).all()
    local = check_on_devices(ready_to_divide(module), given, expected)
    assert any(x.opcode == "while" for x in local.entry.instructions) is loops


def test_what_has_no_scan_is_left_alone() -> None:
    module = parse("HloModule m\nENTRY e { ROOT x = f32[] parameter(0) }\n")
    assert scans_as_loops(module) is module
