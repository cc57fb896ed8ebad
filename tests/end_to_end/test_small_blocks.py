"""Blocks of networks at small sizes: what tiles compute, memories spoiled, and the evaluator."""

import pytest

from tools.fuzz_blocks.cases import case
from tools.fuzz_blocks.draws import SMALL
from tools.fuzz_blocks.values import value_faults

CASES = 40


@pytest.mark.thinned(6)
@pytest.mark.parametrize("seed", range(CASES))
def test_a_small_block_computes_what_it_means(seed: int) -> None:
    assert value_faults(case(seed, SMALL), target="tiny") == []
