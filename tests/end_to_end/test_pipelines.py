"""Training steps cut into micro-batches and stages: the same state as gradients taken apart.

A covering sample; `make pipeline-conformance` runs more of all configurations.
"""

import pytest

from tests.support.pipeline_trials import Cut, assert_equal_to_jax, compiled, every_cut

SAMPLE = every_cut()[:60]


@pytest.mark.parametrize("cut", SAMPLE, ids=map(str, SAMPLE))
def test_state_is_that_of_gradients_taken_apart(cut: Cut) -> None:
    assert_equal_to_jax(cut, compiled(cut))


@pytest.mark.parametrize("cut", SAMPLE[:8], ids=map(str, SAMPLE[:8]))
def test_tiles_by_themselves_come_to_the_same(cut: Cut) -> None:
    assert_equal_to_jax(cut, compiled(cut), mode="exact")
