"""A trainer given a text in Graphcore's encoding: what it says holds, arguments come before it."""

from typing import Any

import numpy as np
import pytest

import hloipu
from tests.support.poplar_small import TEXT, TURNS, WEIGHTS, elements, trained

ASKED: list[tuple[dict[str, Any], int, str]] = [
    ({}, 3, "l"),
    ({"micro_batches": 2, "schedule": "sequential", "metrics": ["loss"]}, 2, "loss"),
]
"""Arguments, micro-batches of an update, name of the loss."""


@pytest.mark.parametrize(("asked", "micro_batches", "name"), ASKED)
def test_micro_batches_and_queues_are_those_of_the_text_unless_asked(
    asked: dict[str, Any], micro_batches: int, name: str
) -> None:
    trainer = hloipu.Trainer(
        TEXT, state=list(WEIGHTS), target="tiny", over_memory="allow", cache=False, **asked
    )
    rows = np.concatenate(elements(micro_batches * TURNS))
    history = trainer.fit((rows,), progress=False)
    weights, losses = trained(micro_batches)
    assert trainer.steps == TURNS
    assert isinstance(trainer.state, dict)
    np.testing.assert_array_equal(list(trainer.state.values()), weights)
    means = np.reshape(losses, (TURNS, micro_batches)).mean(1)
    assert list(history.steps) == [name]
    np.testing.assert_allclose(history.steps[name], means, rtol=1e-6)
