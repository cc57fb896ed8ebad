"""XLA's parser as the judge: what it accepts and refuses, but for the exceptions named here."""

from hloipu_compiler.hlo.parse import parse
from hloipu_runtime.errors import HloipuError
from tests.support.texts_invalid import UNPARSABLE
from tests.support.texts_valid import CURRENT
from tests.support.xla_oracle import Oracle

ACCEPTED_BY_US = (
    "foo=1", "value=2", "has_side_effect=true", "x=1",  # unknown attributes are kept
    "%f32 =", "%s1 =", "ROOT f32 =", "ROOT true =",  # words that were names in older dumps
    "sort(p), dimensions={0}\n",  # before comparators
)  # fmt: skip
REFUSED_BY_US = (
    "negate(p,)",  # XLA drops malformed operands
    "{0:T}", "{0:T(}", "<=[3]", "->b01\n", "b02f_",  # XLA reads past contradictions
    "9223372036854775807,9223372036854775807",  # overflows in XLA
)  # fmt: skip


def _accepts(text: str) -> bool:
    try:
        parse(text)
    except HloipuError:
        return False
    return True


def test_valid(oracle: Oracle) -> None:
    """What XLA reads, we read."""
    for text in CURRENT[:150]:
        if oracle.parse(text).accepted and not any(part in text for part in REFUSED_BY_US):
            assert _accepts(text), text


def test_refused(oracle: Oracle) -> None:
    """What XLA refuses, or dies of, we refuse."""
    for text in UNPARSABLE:
        verdict = oracle.parse(text)
        if verdict.accepted:
            assert _accepts(text) or any(part in text for part in REFUSED_BY_US), text
        elif _accepts(text):
            assert any(part in text for part in ACCEPTED_BY_US), f"{text}\n{verdict.message}"
