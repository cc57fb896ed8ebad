"""A fixed sample of `python -m tools.conformance`: every opcode once and more, against XLA:CPU."""

from tests.support.xla_oracle import Oracle
from tools.conformance.cases import all_cases
from tools.conformance.deviations import read
from tools.conformance.outcome import FAILED, UNCARRIED, judged
from tools.conformance.workers import chosen_cases

MODULES = 100


def test_sample_agrees_with_xla(oracle: Oracle) -> None:
    table = read()
    made = [judged(case, oracle, table) for case in chosen_cases(MODULES)]
    assert [f"{x.name}: {x.said}" for x in made if x.status == FAILED] == []
    assert len({x.opcode for x in made if x.status != UNCARRIED}) > 70


def test_cases_are_many_distinct_and_always_the_same() -> None:
    cases = all_cases()
    assert len({case.name for case in cases}) == len(cases)
    assert len({case.text for case in cases}) > 15_000
    assert [c.name for c in cases] == [c.name for c in all_cases()]
