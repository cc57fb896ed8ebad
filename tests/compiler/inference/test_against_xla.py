"""Modules of one op, right and wrong, are judged as by XLA's verifier."""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from random import Random

import pytest

from hloipu_compiler.errors import InvalidHloError
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.verify.verifier import faults_of
from tests.support.xla_oracle import Oracle
from tools.conformance.odd_shapes import odd_cases
from tools.fuzz_ops.form import case_of, sizes_of
from tools.fuzz_ops.forms import computing_forms
from tools.fuzz_ops.moving_forms import moving_forms

COUNT = 300
TYPES = ("f32", "f32", "f32", "bf16", "f64", "f8e5m2", "s32", "s32", "u8", "s4", "pred", "c64")
SIZES = (0, 1, 2, 3, 4, 6)
UNCHECKED = (" add-dependency(", " bitcast(", "_batching_dims=")
"""What XLA accepts with shapes or numbers that mean nothing: `docs/hlo_dialect.md`."""
_CHANGEABLE = re.compile(
    rf"(?<![\w.])(?<!parameter\()\d+(?![\w.])|\b(?:{'|'.join(sorted(set(TYPES)))})(?=\[)"
)
"""Not the numbers of parameters: XLA dies where two are the same."""


def drawn_texts(seed: int, count: int) -> Iterator[str]:
    """Yield modules of odd sizes and attributes, and of all opcodes; some are made wrong."""
    rng = Random(seed)
    forms = (*computing_forms(), *moving_forms())
    of_one_function = [list(x) for _, x in groupby(forms, lambda form: getattr(form, "func", form))]
    for case in odd_cases(count, seed):
        text = case.text
        if rng.random() < 0.5:
            form = rng.choice(rng.choice(of_one_function))
            sizes = {name: rng.choice(SIZES) for name in sizes_of(form)}
            text = case_of(form, rng.choice(TYPES), sizes).text
        yield changed(text, rng) if rng.random() < 0.4 else text


def changed(text: str, rng: Random) -> str:
    """Return a module with one number or element type of its entry changed."""
    place = rng.choice(list(_CHANGEABLE.finditer(text, text.index("ENTRY"))))
    word = place[0]
    other = str(max(0, int(word) + rng.choice((-1, 1)))) if word.isdigit() else rng.choice(TYPES)
    return text[: place.start()] + other + text[place.end() :]


def _accepted(text: str) -> bool:
    try:
        return not faults_of(parse(text))
    except InvalidHloError:
        return False


@pytest.mark.parametrize("seed", [1, 2])
def test_random_instructions_are_judged_as_xla_judges_them(seed: int, oracle: Oracle) -> None:
    verdicts = Counter[str]()
    for text in drawn_texts(seed, COUNT):
        verdict = oracle.verify(text)
        verdicts[verdict.status] += 1
        if verdict.status == "unavailable":
            pytest.skip(verdict.message)
        if verdict.status in ("accepted", "refused", "unparsed"):
            agree = _accepted(text) is verdict.accepted
            forgiven = verdict.accepted and any(words in text for words in UNCHECKED)
            assert agree or forgiven, f"{text}\n{verdict}"
    assert verdicts["accepted"] > COUNT / 3
    assert verdicts["refused"] + verdicts["unparsed"] > COUNT / 10
