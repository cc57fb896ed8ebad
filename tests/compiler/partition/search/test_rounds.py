"""Rounds of the search for a cut: what is looked at of a long module before it is given up."""

from typing import cast

from hloipu_compiler.partition.search.candidate import Candidate, Estimate
from hloipu_compiler.partition.search.candidates import Given
from hloipu_compiler.partition.search.estimates import Step
from hloipu_compiler.partition.search.rounds import looked_at
from hloipu_runtime.watching import Search
from tests.support.cases import each


class Needing:
    """A step that needs so much of an IPU, by what is made again."""

    def __init__(self, needed: dict[str, int]) -> None:
        self.needed = needed

    def estimate(self, candidate: Candidate) -> Estimate:
        needed = self.needed[candidate.recompute]
        return Estimate(candidate, 1_000, 1.0, needed, needed, 100, needed <= 100, 0.0)

    def may_lie_beside(self, _: str) -> bool:
        return False


@each("least", ["full", "blocks"])
def test_a_long_module_is_given_up_only_if_no_recomputation_helps(least: str) -> None:
    kinds = ["none", "cheap", "blocks", "full"]
    candidates = [Candidate(4, "grouped", 8, kind, 1) for kind in kinds]
    given = Given(4, "grouped", 8, None, "auto", 1, False, (0, 1, 2, 3))

    def estimated(needed: dict[str, int]) -> dict[str, int]:
        step = cast(Step, Needing(needed))
        rows = looked_at(step, 4, candidates, given, Search(), is_thorough=False)
        return {row.candidate.recompute: row.needed_bytes for row in rows}

    too_much = dict.fromkeys(kinds, 400)
    assert set(estimated(too_much)) == {"none", "blocks", "full"}  # and the first
    assert estimated(too_much | {least: 90}) == too_much | {least: 90}
