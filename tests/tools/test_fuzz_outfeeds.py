"""A draw of outfeeds of every mode, against numpy, and that wrong ones are found."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tools.fuzz_outfeeds.case import Case, all_cases, drawn_cases
from tools.fuzz_outfeeds.expected import outfed, trained
from tools.fuzz_outfeeds.judge import judged
from tools.fuzz_outfeeds.trainers import judged_command, judged_trainer

EXACT = [case for case in all_cases(loops=(10,)) if case.mode == "exact"]


@pytest.mark.parametrize("case", [*drawn_cases(10, seed=1), *EXACT[::20]], ids=str)
def test_outfeeds_give_what_numpy_makes_of_the_elements(case: Case) -> None:
    verdict = judged(case)
    assert not verdict.faults
    assert verdict.compared >= len(case.outfeeds)


@pytest.mark.parametrize("case", drawn_cases(3, seed=2), ids=str)
def test_metrics_and_commands_give_the_same(case: Case) -> None:
    for verdict in (judged_trainer(case), judged_command(case)):
        assert not verdict.faults
        assert verdict.compared


def test_every_way_is_among_the_cases() -> None:
    cases = list(all_cases())
    assert len(cases) > 8_000
    assert {case.mode for case in cases} == {"functional", "exact"}
    modes = {outfeed.mode.partition("-")[0] for outfeed in cases[0].outfeeds}
    assert modes == {"all", "last", "first", "every", "sum", "mean"}


def test_what_numpy_expects_is_right_for_elements_counted_by_hand() -> None:
    """Two replicas, two micro-batches, three turns: elements 0, 2, 4, … are those of replica 0."""
    case = Case(3, 2, 2, 1, 0, "s32", "functional", 0)
    ones = np.arange(case.elements, dtype=np.int32)
    results = trained(case, {**case.fed(), "one": ones})
    taken: Any = next(x for x in case.outfeeds if x.mode == "all")
    for mode, wanted in {
        "all": [[2 * n, 2 * n + 1] for n in range(18)],
        "first": [[0, 1], [12, 13]],
        "last": [[10, 11], [34, 35]],
        "every-5": [[8, 9], [18, 19], [28, 29]],
        "sum": [[30, 36], [102, 108], [174, 180]],
        "mean": [[5, 6], [17, 18], [29, 30]],
    }.items():
        outfeed = replace(taken, mode=mode, places=(6,))
        found = outfed(outfeed, results, case.calls, "s32")
        assert [list(one) for (one,) in found] == wanted
