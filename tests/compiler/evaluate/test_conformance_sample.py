"""A fixed sample of `python -m tools.conformance`: every opcode once and more, against XLA:CPU."""

import pytest

from tests.support.xla_oracle import available

pytestmark = pytest.mark.skipif(
    not available(), reason="jaxlib is not installed (dependency group `oracle`)"
)

MODULES = 100


def test_sample_agrees_with_xla() -> None:
    from tools.conformance.outcome import FAILED, UNCARRIED
    from tools.conformance.workers import chosen_cases, outcomes

    cases = chosen_cases(MODULES)
    made = list(outcomes(cases))
    assert [f"{x.name}: {x.said}" for x in made if x.status == FAILED] == []
    judged = [x for x in made if x.status != UNCARRIED]
    assert len({x.opcode for x in judged}) > 70


def test_cases_are_many_distinct_and_always_the_same() -> None:
    from tools.conformance.cases import all_cases

    cases = all_cases()
    assert len({case.name for case in cases}) == len(cases)
    assert len({case.text for case in cases}) > 15_000
    assert [c.name for c in cases] == [c.name for c in all_cases()]
