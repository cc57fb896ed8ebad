"""Mutants of the samples are read or refused with a place, in time, by a process of 1 GiB."""

from pathlib import Path

import pytest

from tools.fuzz_parser import case_names
from tools.fuzzing import cases, pool, trial

SAMPLES = Path(__file__).resolve().parents[2] / "hlo_samples"


def test_mutants_end_in_acceptance_or_a_placed_error() -> None:
    results = list(pool.run(7, [SAMPLES], case_names(400, 0), 1))

    assert len(results) == 400
    assert [(r.case, r.outcome) for r in results if r.outcome.failed] == []


def test_a_case_is_the_same_text_each_time() -> None:
    first, second = (cases.read(3, [SAMPLES]) for _ in range(2))
    assert [first.text(i, whole=False) for i in range(30)] == [
        second.text(i, whole=False) for i in range(30)
    ]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("HloModule m ENTRY e { ROOT p = f32[] parameter(0) }", "accepted"),
        ("HloModule m ENTRY e { ROOT p = f32[] parameter(0)", "refused"),
    ],
)
def test_a_trial_says_how_reading_ended(text: str, kind: str) -> None:
    assert trial.run(text).kind == kind


def test_a_traceback_is_found_and_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(text: str) -> None:
        if "poison" in text:
            raise ZeroDivisionError

    monkeypatch.setattr(trial, "parse", broken)
    monkeypatch.setattr(trial, "verify", lambda module: None)
    monkeypatch.setattr(trial, "print_module", lambda module: "")
    text = "\n".join(["one", "two poison three", "four"] * 10)

    outcome = trial.run(text)

    assert outcome.kind == "traceback"
    assert trial.smallest(text, outcome) == "poison"


def test_a_worker_that_hangs_is_ended_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = pool.Worker(0, [SAMPLES])
    sleeps = (
        "import sys; sys.stdin.readline(); print('{\"seconds_allowed\": 0}', flush=True); input()"
    )
    worker._command = ["python3", "-c", sleeps]
    monkeypatch.setattr(pool, "GRACE_SECONDS", 0.1)

    assert worker.run("part 0").outcome.kind == "hang"
    worker._command = ["python3", "-c", "pass"]
    assert worker.run("part 0").outcome.kind == "died"
    worker.close()
