"""How tests of the verifier state a case: a wrong text with its place marked, or a right text."""

from hloipu_compiler.errors import Fault
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.verify.verifier import faults_of
from tests.support.marked_text import marked


def faults_in(text: str) -> list[Fault]:
    """Parse a text, which must succeed, and return what the verifier finds."""
    return faults_of(parse(text))


def check_refused(text: str, code: str, *more: str) -> list[Fault]:
    """Check that the verifier finds these codes, the first one exactly at the marked place."""
    wrong = marked(text)
    found = faults_in(wrong.text)
    listing = "\n".join(map(str, found))
    assert [fault.code for fault in found] == [code, *more], listing or "accepted"
    span = found[0].span
    assert span is not None
    assert (span.line, span.column, span.end - span.start) == wrong.place, listing
    return found


def check_accepted(text: str) -> None:
    """Check that the verifier finds nothing."""
    found = faults_in(text)
    assert not found, "\n".join(map(str, found))
