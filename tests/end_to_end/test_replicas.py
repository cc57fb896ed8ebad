"""Replicas of training steps: every one's state is that of gradients averaged over all of them."""

from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import hloipu
from hloipu_compiler.interpret.random_inputs import random_arguments
from tests.support.memory_checker import overlaps
from tests.support.replica_trials import Copies, assert_equal_to_jax, compiled

STEPS = ("mlp_adam", "cnn_momentum", "transformer_adamw_clipped", "residual_sgd", "lstm_sgd")
ALL = [Copies(*x) for x in product(STEPS, (1, 2, 4), (1, 3))]
STAGED = [Copies("mlp_sgd", 2, 3, 2), Copies("cnn_adam", 2, 4, 2), Copies("residual_adam", 4, 3, 3)]
EXACT = [Copies("mlp_sgd", 2), Copies("mlp_sgd", 2, 3, 2), Copies("cnn_sgd", 2, 3)]


@pytest.mark.thinned(16)
@pytest.mark.parametrize("copies", [*ALL, *STAGED], ids=str)
def test_state_is_that_of_gradients_averaged(copies: Copies) -> None:
    assert_equal_to_jax(copies, compiled(copies))


@pytest.mark.parametrize("copies", EXACT, ids=str)
@pytest.mark.thinned(3)
def test_tiles_by_themselves_come_to_the_same(copies: Copies) -> None:
    assert_equal_to_jax(copies, compiled(copies), mode="exact")


@pytest.mark.parametrize("shard", [False, True])
@pytest.mark.parametrize(
    "copies", [Copies("cnn_momentum", 2, 2, 2), Copies("lstm_adam", 3)], ids=str
)
def test_no_two_live_variables_share_a_byte(copies: Copies, shard: bool) -> None:
    program = compiled(copies, shard_optimizer=shard)
    assert overlaps(program.program, program.memory_plan.addresses, Random(0), 2) == []


def test_replicas_change_nothing_of_what_is_fed() -> None:
    """Without a feed a loop's data is loaded once, on one replica and on several."""
    text = Path(__file__).parents[2].joinpath("hlo_samples/mnist_train_step.hlo").read_text()
    kinds: tuple[Any, ...] = ({}, {"replicas": 2})
    plain, copies = (
        hloipu.compile(text, target="gc200", loop=3, cache=False, **options) for options in kinds
    )
    for program in (plain, copies):
        assert not [queue.name for queue in program.program.queues if queue.to_device]
    assert len(copies.program.loaded) == len(plain.program.loaded)
    given = random_arguments(hloipu.verify(text), 0)
    count = len(plain.program.state)
    states, constants = given[:count], dict(enumerate(given[count:], count))
    found = []
    for program in (plain, copies):
        with program.session(state=states, constants=constants) as session:
            session.run(3)
            found.append(list(session.state().values()))
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
