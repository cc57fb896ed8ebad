"""Texts kept beside tests: what a test makes is compared with a file, or written into it."""

from difflib import unified_diff
from pathlib import Path

import pytest


def check_golden(golden: Path, text: str, config: pytest.Config) -> None:
    """Fail with what moved where a file holds another text; `--update-goldens`: write it anew."""
    if config.getoption("--update-goldens"):
        golden.write_text(text)
        return
    lines = golden.read_text().splitlines(keepends=True), text.splitlines(keepends=True)
    if diff := "".join(unified_diff(*lines, golden.name, "now")):
        pytest.fail(f"{diff}\nif this is right: pytest --update-goldens", pytrace=False)
