"""The tutorial's blocks run as they are written, one after the other."""

import re
from pathlib import Path
from typing import Any

import pytest

TUTORIAL = Path(__file__).parents[1] / "docs" / "tutorial.md"


def test_every_block_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    blocks = re.findall(r"^```python\n(.*?)^```", TUTORIAL.read_text("utf-8"), re.M | re.S)
    assert len(blocks) == 4
    for block in blocks:
        exec(compile(block, str(TUTORIAL), "exec"), names)
    said = capsys.readouterr().out
    assert "fits: True" in said
    assert "bubble" in said
    assert (tmp_path / "two-stages.html").stat().st_size > 100_000
