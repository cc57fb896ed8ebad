"""Constants as leaves in storage form."""

import numpy as np
import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.evaluator import Evaluator
from hloipu_compiler.interpret.planning.constants import constant_leaves
from hloipu_compiler.ir.graph import Instruction
from hloipu_runtime.errors import HloipuError


def constant(text: str) -> Instruction:
    return parse(f"HloModule m\nENTRY e {{\n  ROOT c = {text}\n}}\n").entry["c"]


def test_storage_form_and_read_only() -> None:
    for text, dtype, values in (
        ("bf16[2] constant({1, 2.5})", np.float32, [1, 2.5]),
        ("s4[3] constant({-8, 7, 0})", np.int8, [-8, 7, 0]),
        ("pred[2] constant({true, false})", np.bool_, [True, False]),
        ("c64[1] constant({(1, -2)})", np.complex64, [1 - 2j]),
        ("f32[] constant(-0)", np.float32, -0.0),
    ):
        (leaf,) = constant_leaves(constant(text))
        assert (leaf.dtype, leaf.tolist()) == (dtype, values)
        assert not leaf.flags.writeable


def test_tuples_are_flattened() -> None:
    leaves = constant_leaves(constant("(s32[], (f32[2], pred[])) constant((1, ({2, 3}, true)))"))
    assert [x.tolist() for x in leaves] == [1, [2, 3], True]


def test_an_elided_constant_is_an_error_that_names_it() -> None:
    text = """HloModule m
inner {
  x = f32[3] parameter(0)
  weights.7 = f32[3] constant({...})
  ROOT r = f32[3] add(x, weights.7)
}
ENTRY e {
  x = f32[3] parameter(0)
  ROOT r = f32[3] call(x), to_apply=inner
}
"""
    with pytest.raises(HloipuError, match=r"weights\.7") as caught:
        Evaluator(parse(text))
    assert caught.value.exit_code == 4


def test_an_elided_constant_that_nobody_reads_does_not_matter() -> None:
    text = """HloModule m
ENTRY e {
  x = f32[3] parameter(0)
  dead = f32[3] constant({...})
  ROOT r = f32[3] negate(x)
}
"""
    (got,) = Evaluator(parse(text))(np.ones(3, np.float32))
    assert got.tolist() == [-1, -1, -1]
