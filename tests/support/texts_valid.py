"""Valid module texts; what is expected of each comes from XLA when they are used, not from here."""

from tests.support.texts_ops import all_rows
from tests.support.texts_rows import TEXTS

SEPARATOR = "\n// -----\n"


def sections(name: str) -> list[str]:
    """Return the texts of a file, which stand between separators; the first says what they are."""
    return (TEXTS / name).read_text(encoding="utf-8").split(SEPARATOR)[1:]


CURRENT = sections("current.hlo")
"""Every syntactic form, header attribute and sugar."""
OLD_DIALECTS = sections("old_dialects.hlo")
"""What XLA's parser accepted once."""


def valid_texts() -> list[str]:
    """Return the texts that are written to be valid, old dialects left out."""
    return CURRENT + [row.text() for row in all_rows()]
