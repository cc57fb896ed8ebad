"""Every fault of either direction ends in time with a typed error and leaves nothing behind."""

from collections.abc import Iterator

import pytest

from tests.support.heartbeat import Heartbeat
from tests.support.stream_cases import CASES
from tests.support.stream_trial import Case, repeat_case


@pytest.fixture(scope="module")
def heart() -> Iterator[Heartbeat]:
    with Heartbeat() as beating:
        yield beating


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_fault(case: Case, heart: Heartbeat) -> None:
    repeat_case(case, heart.stalled_since)
