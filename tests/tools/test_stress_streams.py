"""The stress tool runs, and finds what is wrong."""

import pytest

from tests.support import stream_cases
from tools.stress_streams import __main__ as stress
from tools.stress_streams.soak import GROWTH_LIMIT_BYTES, soak


def test_a_short_soak_keeps_its_memory() -> None:
    assert soak(3000) < GROWTH_LIMIT_BYTES


def test_a_case_that_ends_otherwise_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = stream_cases.Case("ends", lambda: stream_cases.feed([], 1), "E2021", 0)
    right = stream_cases.Case("ends", lambda: stream_cases.feed([], 1), "E2020", 0)
    monkeypatch.setattr(stress, "CASES", (wrong, right))
    failures = stress.repeated(2, 0)
    assert failures.total() == 2
