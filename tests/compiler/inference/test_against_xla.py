from collections import Counter

import pytest

from hloipu_compiler.errors import InvalidHloError
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.verify.verifier import faults_of
from tests.support.shape_draws import Draw
from tests.support.xla_oracle import Oracle

COUNT = 400


def _accepted(text: str) -> bool:
    try:
        return not faults_of(parse(text))
    except InvalidHloError:
        return False


@pytest.mark.parametrize("seed", [1, 2])
def test_random_instructions_are_judged_as_xla_judges_them(seed: int, oracle: Oracle) -> None:
    draw, verdicts = Draw(seed), Counter[str]()
    for _ in range(COUNT):
        _, text = draw.text()
        verdict = oracle.verify(text)
        verdicts[verdict.status] += 1
        if verdict.status == "unavailable":
            pytest.skip(verdict.message)
        if verdict.status in ("accepted", "refused", "unparsed"):
            assert _accepted(text) is verdict.accepted, f"{text}\n{verdict}"
    assert verdicts["accepted"] > COUNT / 3
    assert verdicts["refused"] + verdicts["unparsed"] > COUNT / 10
