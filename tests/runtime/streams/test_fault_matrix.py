"""Every fault of either direction ends in time with a typed error and leaves nothing behind."""

import pytest

from tests.support.stream_cases import CASES
from tests.support.stream_trial import Case, repeat_case


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_fault(case: Case) -> None:
    repeat_case(case)
