"""`parse` and `verify` accept what XLA accepts, but for the documented exceptions."""

from collections.abc import Callable

import pytest

from tests.support.texts_invalid import invalid_texts
from tests.support.texts_valid import OLD_DIALECTS, valid_texts
from tests.support.xla_oracle import Oracle, Verdict
from tools.dialect import exceptions
from tools.dialect.judge import ACCEPTED, DIED, REFUSED, Answer, Pair, pairs
from tools.parse_conformance import compare

EVERY = 60
"""Of some 8,600 invalid texts this test takes every 60th; `make parse-conformance` takes all."""


@pytest.mark.large
@pytest.mark.parametrize(
    ("group", "texts"),
    [
        ("valid", valid_texts),
        ("old dialects", lambda: OLD_DIALECTS),
        ("invalid", lambda: invalid_texts()[::EVERY]),
    ],
    ids=["valid", "old", "invalid"],
)
def test_every_difference_from_xla_is_documented(
    group: str, texts: Callable[[], list[str]], oracle: Oracle
) -> None:
    written = texts()
    report = compare(group, written, oracle, exceptions.read())

    assert report.unexplained == []
    assert sum(report.counts.values()) >= len(written)


def test_there_are_enough_texts() -> None:
    assert len(set(valid_texts())) >= 500
    assert len(set(invalid_texts())) >= 500


def test_every_exception_has_a_reason() -> None:
    table = exceptions.read()
    assert len({e.name for e in table}) == len(table)
    assert all(e.reason and e.we in ("accept", "refuse") for e in table)


@pytest.mark.parametrize(
    ("ours", "status", "agree"),
    [
        (Answer(ACCEPTED), "accepted", True),
        (Answer(ACCEPTED), "unparsed", False),
        (Answer(REFUSED), "accepted", False),
        (Answer(REFUSED), "unparsed", True),
        (Answer(REFUSED), "crashed", True),
        (Answer(ACCEPTED), "crashed", False),
        (Answer(DIED), "unparsed", False),
    ],
)
def test_agreement_at_the_parser(ours: Answer, status: str, agree: bool) -> None:
    verify = Answer(ACCEPTED) if ours.outcome == ACCEPTED else None
    (first, *_) = pairs(ours, verify, Verdict(status), crashed_in_parser=True)
    assert first.agree is agree


def test_a_death_of_ours_is_never_an_exception() -> None:
    died = Pair("parse", Answer(DIED, "[E0131]"), Answer(ACCEPTED))
    assert not any(e.covers(died, "") for e in exceptions.read())
