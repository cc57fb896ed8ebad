"""The stress tool runs, and finds what is wrong."""

import pytest

from tests.support.stream_parts import feed
from tests.support.stream_trial import Case
from tools.stress_streams import __main__ as stress
from tools.stress_streams.soak import GROWTH_LIMIT_BYTES, soak


def test_a_short_soak_keeps_its_memory() -> None:
    assert soak(3000) < GROWTH_LIMIT_BYTES


def test_a_case_that_ends_otherwise_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Case("ends", lambda: feed([], 1), "E2021", 0)
    right = Case("ends", lambda: feed([], 1), "E2020", 0)
    monkeypatch.setattr(stress, "CASES", (wrong, right))
    failures = stress.repeated(2, 0)
    assert failures.total() == 2
