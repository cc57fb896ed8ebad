from math import isnan

import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.verify.verifier import verify
from tools.bench.shared.op_cases import FAMILIES, SIZES, op_cases
from tools.bench.shared.sides import geometric_mean


def test_every_case_is_a_valid_module_with_a_name_of_its_own() -> None:
    cases = list(op_cases())
    for case in cases:
        if case.size == "small":
            verify(parse(case.text))
    assert len({(c.family, c.name, c.size) for c in cases}) == len(cases)
    assert {(c.family, c.size) for c in cases} == {(f, s) for f in FAMILIES for s in SIZES}


def test_geometric_mean() -> None:
    assert geometric_mean([0.5, 8]) == pytest.approx(2)
    assert isnan(geometric_mean([]))
