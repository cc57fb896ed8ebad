"""A trainer given a text in Graphcore's encoding: what it says holds, arguments come before it."""

from typing import Any

import numpy as np
import pytest

import hloipu
from tests.support.poplar_small import TEXT, TURNS, WEIGHTS, elements, trained


@pytest.mark.parametrize(("asked", "micro_batches"), [({}, 3), ({"micro_batches": 2}, 2)])
def test_micro_batches_and_queues_are_those_of_the_text_unless_asked(
    asked: dict[str, Any], micro_batches: int
) -> None:
    trainer = hloipu.Trainer(
        TEXT, state=list(WEIGHTS), metrics=None, target="tiny", over_memory="allow", cache=False,
        schedule="sequential", **asked,
    )  # fmt: skip
    rows = np.concatenate(elements(micro_batches * TURNS))
    history = trainer.fit((rows,), progress=False)
    weights, losses = trained(micro_batches)
    assert trainer.steps == TURNS
    assert isinstance(trainer.state, dict)
    np.testing.assert_array_equal(list(trainer.state.values()), weights)
    np.testing.assert_allclose(
        history.steps["l"], np.reshape(losses, (TURNS, micro_batches)).mean(1), rtol=1e-6
    )


def test_metrics_are_named_in_the_order_of_the_queues() -> None:
    trainer = hloipu.Trainer(
        TEXT, state=list(WEIGHTS), metrics=["loss"], target="tiny", over_memory="allow",
        cache=False,
    )  # fmt: skip
    history = trainer.fit((np.concatenate(elements()),), progress=False)
    assert list(history.steps) == ["loss"]
