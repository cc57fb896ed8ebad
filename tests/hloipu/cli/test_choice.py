"""`--plan auto` and `hloipu estimate --sweep`: tables of ways to cut a step."""

import json
from dataclasses import replace

from hloipu_compiler.partition.search.best import best_of, choice_of, most_promising
from hloipu_compiler.partition.search.candidate import Candidate, Estimate
from tests.support.command_line import run

SAMPLE = "hlo_samples/mnist_train_step.hlo"
FED = ("--feed", "data=4,5", "--target", "gc200", "--no-cache")


def sweep(*asked: str) -> list[dict[str, object]]:
    words = [word for text in asked for word in ("--sweep", text)]
    outcome = run("estimate", SAMPLE, *FED, *words, "--json")
    assert outcome.code == 0, outcome.err
    rows: list[dict[str, object]] = json.loads(outcome.out)["rows"]
    return rows


def test_every_combination_is_a_row() -> None:
    rows = sweep("micro-batches=1,4", "schedule=grouped,sequential", "stages=1,2")
    assert [(r["micro_batches"], r["schedule"], r["stages"]) for r in rows] == [
        (k, kind, s) for k in (1, 4) for kind in ("grouped", "sequential") for s in (1, 2)
    ]
    assert rows[3]["flags"] == "--stages 2 --schedule sequential --micro-batches 1"


def test_more_micro_batches_have_less_bubble_and_a_sequence_of_two_stages_has_half() -> None:
    rows = sweep("stages=2", "micro-batches=1,2,4,8,64")
    bubbles = [float(str(r["bubble"])) for r in rows]
    assert bubbles == sorted(bubbles, reverse=True)
    (row,) = sweep("stages=2", "schedule=sequential")
    assert row["bubble"] == 0.5


def test_the_flags_of_a_row_give_its_bubble_about() -> None:
    """An estimate by ops alone is near what the whole program costs, not the same."""
    (row,) = sweep("stages=2", "micro-batches=8")
    outcome = run("estimate", SAMPLE, *FED, *str(row["flags"]).split(), "--json")
    (pipeline,) = json.loads(outcome.out)["pipelines"]
    assert abs(pipeline["bubble"] - float(str(row["bubble"]))) < 0.2
    assert pipeline["cycles"] / 2 < int(str(row["update_cycles"])) < 2 * pipeline["cycles"]


def test_what_cannot_be_swept_over_is_refused() -> None:
    for asked in ("stages=0", "schedule=fast", "width=3", "micro-batches=many"):
        outcome = run("estimate", SAMPLE, *FED, "--sweep", asked)
        assert outcome.code != 0
        assert "error[E0520]" in outcome.err


def test_a_plan_is_found_and_compiled() -> None:
    outcome = run("compile", SAMPLE, *FED, "--plan", "auto", "--ipus", "2")
    assert outcome.code == 0, outcome.err
    assert "best of " in outcome.err
    assert "--replicas 2" in outcome.err


def estimate(speed: float, needed: int, bubble: float = 0.0, fits: bool = True) -> Estimate:
    return Estimate(Candidate(), 1, speed, needed, needed, 100, fits, bubble)


def test_rows_that_another_beats_in_everything_are_dropped() -> None:
    fast, small, beaten = estimate(9, 90), estimate(5, 50), estimate(4, 60)
    assert best_of([beaten, small, fast]) == [fast, small]


def test_the_fastest_that_fits_is_chosen_or_the_smallest() -> None:
    fast, slow = estimate(9, 90, fits=False), estimate(5, 50)
    assert choice_of([fast, slow]) is slow
    assert choice_of([fast, estimate(1, 95, fits=False)]) is fast


def test_what_may_fit_is_hoped_for_if_it_is_much_faster() -> None:
    near, far = estimate(9, 110, fits=False), estimate(10, 135, fits=False)
    hopeless = estimate(99, 150, fits=False)
    assert most_promising([estimate(5, 50), near, far, hopeless], 1.1) is near
    sure = estimate(8.5, 90)
    assert most_promising([sure, near, hopeless], 1.1) is sure
    likely = estimate(9.4, 109, fits=False)
    assert most_promising([sure, likely, far], 1.1) is likely  # it lacks little
    assert most_promising([sure, replace(likely, per_second=9.2), far], 1.1) is sure
    assert most_promising([hopeless], 1.1) is hopeless
    again = replace(near, candidate=Candidate(recompute="cheap"), per_second=9.05)
    assert most_promising([again, near], 1.1) is near
    assert most_promising([replace(again, per_second=9.2), near], 1.1).per_second == 9.2
