"""Figures of the tool that judges estimates."""

import pytest

from tools.judge_search import rank_agreement


@pytest.mark.parametrize(
    ("estimates", "rho"), [([1, 2, 3, 4], 1.0), ([4, 3, 2, 1], -1.0), ([2, 1, 3, 4], 0.8)]
)
def test_ranks_agree_as_spearman_says(estimates: list[float], rho: float) -> None:
    assert rank_agreement(estimates, [10, 20, 30, 40]) == pytest.approx(rho)
