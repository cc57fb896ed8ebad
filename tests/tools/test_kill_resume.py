"""Runs that are killed and resumed: when, and how it is seen where the end is another."""

from pathlib import Path
from random import Random

import pytest

from tests.support.fitted_plane import STEP
from tools import kill_resume
from tools.kill_resume import Job, Moment, finish, moments, trial


def test_another_end_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plane.hlo"
    path.write_text(STEP)
    longer, shorter = (Job(tmp_path, "run", steps, str(path), (1, 2), "tiny") for steps in (20, 10))
    wanted = finish(longer, tmp_path / "whole.npz", None)
    monkeypatch.setattr(kill_resume, "stop", lambda *_: ("between", []))
    at_once = Moment("KILL", 0, 0.0, writing=False)
    assert trial(longer, 0, at_once, wanted)[1] == []
    assert trial(shorter, 1, at_once, wanted)[1] == ["another end", "other losses"]


def test_moments_are_spread_over_the_run() -> None:
    found = [*moments(["KILL"] * 40, 600, 2.0, Random(0))]
    assert sum(x.steps == 0 and x.seconds > 0.1 for x in found) >= 6
    assert sum(x.writing for x in found) >= 6
    assert {x.steps // 150 for x in found} == {0, 1, 2, 3}
