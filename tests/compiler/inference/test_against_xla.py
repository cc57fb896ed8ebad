"""Modules of one op, right and wrong, are judged as by XLA's verifier, but for the documented."""

import re
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest

from tests.support.xla_oracle import Oracle
from tools.conformance.odd_shapes import odd_cases
from tools.dialect import exceptions
from tools.dialect.judge import ours, pairs
from tools.fuzz_ops.form import case_of, sizes_of
from tools.fuzz_ops.forms import computing_forms
from tools.fuzz_ops.moving_forms import moving_forms

COUNT = 300
TYPES = ("f32", "f32", "f32", "bf16", "f64", "f8e5m2", "s32", "s32", "u8", "s4", "pred", "c64")
SIZES = (0, 1, 2, 3, 4, 6)
_CHANGEABLE = re.compile(
    rf"(?<![\w.])(?<!parameter\()\d+(?![\w.])|\b(?:{'|'.join(sorted(set(TYPES)))})(?=\[)"
)
"""Not the numbers of parameters: XLA dies where two are the same."""


def drawn_texts(seed: int, count: int) -> Iterator[str]:
    """Yield modules of odd sizes and attributes, and of all opcodes; some are made wrong."""
    rng = Random(seed)
    forms = [*computing_forms(), *moving_forms()]
    for case in odd_cases(count, seed):
        text = case.text
        if rng.random() < 0.5:
            form = rng.choice(forms)
            sizes = {name: rng.choice(SIZES) for name in sizes_of(form)}
            text = case_of(form, rng.choice(TYPES), sizes).text
        yield changed(text, rng) if rng.random() < 0.4 else text


def changed(text: str, rng: Random) -> str:
    """Return a module with one number or element type of its entry changed."""
    place = rng.choice(list(_CHANGEABLE.finditer(text, text.index("ENTRY"))))
    word = place[0]
    other = str(max(0, int(word) + rng.choice((-1, 1)))) if word.isdigit() else rng.choice(TYPES)
    return text[: place.start()] + other + text[place.end() :]


@pytest.mark.parametrize("seed", [1, 2])
def test_random_instructions_are_judged_as_xla_judges_them(seed: int, oracle: Oracle) -> None:
    verdicts, documented = Counter[str](), exceptions.read()
    for text in drawn_texts(seed, COUNT):
        verdict = oracle.verify(text)
        verdicts[verdict.status] += 1
        if verdict.status == "unavailable":
            pytest.skip(verdict.message)
        if verdict.status in ("accepted", "refused", "unparsed"):
            at_parse, at_verify, _ = ours(text)
            for pair in pairs(at_parse, at_verify, verdict, crashed_in_parser=False):
                known = pair.agree or any(x.covers(pair, text) for x in documented)
                assert known, f"{text}\n{pair}"
    assert verdicts["accepted"] > COUNT / 3
    assert verdicts["refused"] + verdicts["unparsed"] > COUNT / 10
