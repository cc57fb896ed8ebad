"""Texts kept beside tests, with which what a test makes is compared."""

from collections.abc import Sequence
from difflib import unified_diff

import pytest


def fail_with_moved(name: str, stored: Sequence[str], now: Sequence[str]) -> None:
    """Fail with the lines that moved, if any did."""
    if diff := "\n".join(unified_diff(stored, now, name, "now", lineterm="")):
        pytest.fail(f"{diff}\n\nif this is right: pytest --update-goldens", pytrace=False)
