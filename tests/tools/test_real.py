"""`make real` fails where a dump does not compile, or a trainer is not taken for one."""

from dataclasses import replace
from pathlib import Path

from tools.real import TRAINING, Outcome, checked, estimated

SAMPLES = Path(__file__).parents[2] / "hlo_samples"
FINE = Outcome("a", "K=4", 1.0, 1, False, "trains: 8 weights, Adam; 4 micro-batches an update")


def test_a_trainer_has_to_be_taken_for_one() -> None:
    assert not checked(FINE, names_backward_ops=True).is_failure
    misread = replace(
        FINE,
        taken_for="trains nothing: each micro-batch writes 8 arrays of state; no gradients",
    )
    assert checked(misread, names_backward_ops=True).is_failure
    assert not checked(misread, names_backward_ops=False).is_failure


def test_only_what_a_user_would_accept_is_no_failure(tmp_path: Path) -> None:
    unnamed = tmp_path / "unnamed.hlo"
    unnamed.write_text(
        "HloModule m\nENTRY e {\n  a = f32[4] parameter(0)\n  b = f32[4] parameter(1)\n"
        "  ROOT c = f32[4] add(a, b)\n}\n"
    )
    refused = estimated(unnamed, "K=4", ("--micro-batches", "4"), "tiny")
    assert (refused.code, refused.is_failure) == ("", False)
    unnamed.write_text("HloModule m\nENTRY e {\n  ROOT a = f32[4] parameter(1)\n}\n")
    invalid = estimated(unnamed, "1 IPU", (), "tiny")
    assert invalid.code
    assert invalid.is_failure


def test_no_estimate_takes_much_longer_than_it_may_search() -> None:
    slow = estimated(SAMPLES / "mnist_adam_step.hlo", "K=4", (), "gc200", search_seconds=0.01)
    assert slow.is_failure
    assert slow.message == "longer than 0.04 s"


def test_a_row_says_what_a_step_was_taken_for() -> None:
    sample = SAMPLES / "mnist_adam_step.hlo"
    cut = estimated(sample, "R=2 K=2", TRAINING["R=2 K=2"], "gc200")
    assert cut.taken_for.startswith("trains: 4 weights, Adam")
    assert "each replica's own" in cut.taken_for
    assert f"{cut.cycles:,} cycles" in cut.line
    alone = estimated(sample, "R=2", TRAINING["R=2"], "gc200")
    assert "nothing is combined" in alone.taken_for
