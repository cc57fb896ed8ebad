"""Mutants of the samples are read or refused with a place, in time, by a process of 1 GiB."""

from functools import partial
from pathlib import Path

import pytest

from tools.fuzz_parser import case_names
from tools.fuzzing import cases, pool, trial
from tools.mapping import Where, mapped

SAMPLES = Path(__file__).resolve().parents[2] / "hlo_samples"


def test_mutants_end_in_acceptance_or_a_placed_error() -> None:
    judge = partial(pool.judged, seed=7, folders=(SAMPLES,))
    where = Where(1, memory_bytes=pool.MEMORY_BYTES)
    results = list(mapped(judge, case_names(400, 0), pool.lost, where))

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
