"""Blocks of networks at the sizes that networks have: compiled for large machines, and proved."""

import pytest

from tools.fuzz_blocks.cases import case
from tools.fuzz_blocks.trial import compiled

SEEDS = (
    0,
)  # fmt: skip
"""Cases that take little time; among them those whose programs once were not proved."""


@pytest.mark.thinned(5)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_block_at_real_sizes_is_proved(seed: int) -> None:
    program = compiled(case(seed))

    assert program.profile().lower_bound_cycles > 0
