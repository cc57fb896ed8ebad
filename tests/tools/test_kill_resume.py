"""Runs that are killed and resumed: a few, and what the tool says where the end is another."""

from pathlib import Path

import pytest

from tests.support.sessions import SUMS
from tools.kill_resume import Job, digest, finish, main, moments


def test_two_killed_runs_end_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sums.hlo"
    path.write_text(SUMS)
    arguments = ["--kills", "2", "--steps", "100", "--file", str(path), "--feed", "2"]
    assert main([*arguments, "--workers", "1"]) == 0
    assert "2 ends bit for bit the same" in capsys.readouterr().out


def test_another_end_has_another_digest(tmp_path: Path) -> None:
    path = tmp_path / "sums.hlo"
    path.write_text(SUMS)
    longer, shorter = (Job(tmp_path, str(path), "2", steps) for steps in (20, 10))
    assert finish(longer, tmp_path / "a.npz", None) != finish(shorter, tmp_path / "b.npz", None)
    assert digest(tmp_path / "a.npz") == finish(longer, tmp_path / "c.npz", None)


def test_moments_are_spread_over_the_run() -> None:
    found = moments(40, Job(Path(), "", "", 600), 2.0, seed=0)
    assert sum(x.steps == 0 and x.seconds > 0.1 for x in found) >= 6
    assert sum(x.writing for x in found) >= 6
    assert {x.steps // 150 for x in found} == {0, 1, 2, 3}
