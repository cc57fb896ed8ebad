from math import isnan

import numpy as np
import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.kernels.native.settings import Settings
from tools.bench.shared.op_cases import FAMILIES, SIZES, op_cases
from tools.bench.shared.runner import CompiledRun
from tools.bench.shared.sides import geometric_mean


def test_every_case_is_a_valid_module_with_a_name_of_its_own() -> None:
    cases = list(op_cases())
    for case in cases:
        if case.size == "small":
            verify(parse(case.text))
    assert len({(c.family, c.name, c.size) for c in cases}) == len(cases)
    assert {(c.family, c.size) for c in cases} == {(f, s) for f in FAMILIES for s in SIZES}


@pytest.mark.parametrize("mode", ["functional", "exact"])
def test_what_is_slow_is_named_with_its_bytes(mode: str) -> None:
    text = """HloModule m
    ENTRY e {
      x = f32[192,192]{1,0} parameter(0)
      quick = f32[192,192]{1,0} negate(x)
      product = f32[192,192]{1,0} dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
      long = f32[192,192]{1,0} power(product, quick)
      ROOT r = (f32[192,192]{1,0}, f32[192,192]{1,0}) tuple(quick, long)
    }"""
    run = CompiledRun(parse(text), [np.ones((192, 192), np.float32)], mode, Settings(is_on=False))
    run(2)
    assert any(x in run.slow(most=2) for x in ("% long (147,456 bytes)", "% product (147"))


def test_geometric_mean() -> None:
    assert geometric_mean([0.5, 8]) == pytest.approx(2)
    assert isnan(geometric_mean([]))
