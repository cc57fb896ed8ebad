"""Replicas of training steps: every one's state is that of gradients averaged over all of them."""

from itertools import product
from random import Random

import pytest

from tests.support.memory_checker import overlaps
from tests.support.replica_trials import Copies, assert_equal_to_jax, compiled

STEPS = ("mlp_adam", "cnn_momentum", "transformer_adamw_clipped", "residual_sgd", "lstm_sgd")
ALL = [Copies(*x) for x in product(STEPS, (1, 2, 4), (1, 3))]
STAGED = [Copies("mlp_sgd", 2, 3, 2), Copies("cnn_adam", 2, 4, 2), Copies("residual_adam", 4, 3, 3)]
EXACT = [Copies("mlp_sgd", 2), Copies("mlp_sgd", 2, 3, 2), Copies("cnn_sgd", 2, 3)]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("copies", [*ALL, *STAGED], ids=str)
def test_state_is_that_of_gradients_averaged(copies: Copies) -> None:
    assert_equal_to_jax(copies, compiled(copies))


@pytest.mark.parametrize("copies", EXACT, ids=str)
def test_tiles_by_themselves_come_to_the_same(copies: Copies) -> None:
    assert_equal_to_jax(copies, compiled(copies), mode="exact")


@pytest.mark.parametrize("shard", [False, True])
@pytest.mark.parametrize(
    "copies", [Copies("cnn_momentum", 2, 2, 2), Copies("lstm_adam", 3)], ids=str
)
def test_no_two_live_variables_share_a_byte(copies: Copies, shard: bool) -> None:
    program = compiled(copies, shard_optimizer=shard)
    assert overlaps(program.program, program.memory_plan.addresses, Random(0), 2) == []
