"""Ops on sizes that no grid divides: values on tiles are XLA's, and a box that is off shows."""

import pytest

from tests.support.xla_oracle import Oracle
from tools.conformance.deviations import read
from tools.conformance.odd_shapes import odd_cases
from tools.tile_conformance import AGREES, TileOutcome, judged

CASES = odd_cases(36, 0)


def outcome(oracle: Oracle, number: int) -> TileOutcome:
    machine = ("tiny", "tiny-7")[number // 18]
    return judged(CASES[number], oracle, read(), [machine])


@pytest.mark.parametrize(
    "number", range(len(CASES)), ids=lambda n: CASES[n].name.split(" {")[0][:60]
)
def test_values_on_tiles_are_those_of_xla(number: int, oracle: Oracle) -> None:
    found = outcome(oracle, number)
    assert found.status == AGREES, found.said
