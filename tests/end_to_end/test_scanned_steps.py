"""Steps that scan over stacked layers, cut into stages, train as JAX's gradients and update do."""

import jax
import numpy as np
import pytest

import hloipu
from tests.support.pipeline_trials import UPDATES, Cut, assert_equal_to_jax, compiled
from tests.support.training_steps import SCANNED_STEPS

CUTS = [
    Cut("scanned_mlp_adam", 2, "grouped", 3),
    Cut("scanned_mlp_adam", 4, "sequential", 1, recompute="full"),
    Cut("scanned_mlp_again_adam", 2, "interleaved", 4, recompute="full"),
    Cut("scanned_mlp_again_adamw_clipped", 4, "grouped", 4),
    Cut("scanned_mlp_adamw_clipped", 3, "grouped", 4, recompute="cheap", replicas=2),
    Cut("scanned_transformer_adamw_clipped", 2, "sequential", 3, recompute="full"),
    Cut("scanned_transformer_adam", 4, "interleaved", 3),
    Cut("scanned_transformer_again_adam", 2, "grouped", 4, recompute="full"),
    Cut("scanned_transformer_again_adamw_clipped", 4, "interleaved", 1),
    Cut("scanned_statistics_adam", 2, "grouped", 3),
    Cut("scanned_statistics_adam", 4, "interleaved", 4, recompute="full"),
    Cut("scanned_statistics_adamw_clipped", 1, "grouped", 3),
]


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_scanned_steps_train_in_stages_as_in_jax(cut: Cut) -> None:
    assert_equal_to_jax(cut, compiled(cut))


def test_a_scanned_step_trains_in_stages_tile_by_tile() -> None:
    cut = Cut("scanned_mlp_again_adam", 2, "grouped", 3)
    assert_equal_to_jax(cut, compiled(cut), mode="exact")


def test_names_of_what_jax_differentiates_change_nothing() -> None:
    step = SCANNED_STEPS["scanned_mlp_adam"]
    first = step.state_count
    state = [np.asarray(x) for x in jax.tree.leaves(step.state())]
    found = []
    for text in (step.text, step.named_text):
        program = hloipu.compile(
            text, target="tiny", over_memory="allow", cache=False, stages=4, micro_batches=2,
            feed={"data": (first, first + 1)}, outfeed=[f"loss={first}"], loop=UPDATES,
        )  # fmt: skip
        data = iter([step.batch(n) for n in range(2 * UPDATES)])
        with program.session(state=state, infeeds={"data": data}) as session:
            session.run(UPDATES)
            found.append(list(session.state().values()))
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)
