"""Wrong texts with the place of the fault marked as «…», for tests of messages and places."""

from typing import NamedTuple

OPEN, CLOSE = "«", "»"


class Marked(NamedTuple):
    """A text without its marks, and where the marks were."""

    text: str
    start: int
    end: int

    @property
    def place(self) -> tuple[int, int, int]:
        """Line and column of the marked characters, from 1, and how many they are."""
        before = self.text[: self.start]
        return before.count("\n") + 1, self.start - before.rfind("\n"), self.end - self.start


def marked(text: str) -> Marked:
    """Return the text without its one pair of marks, and where they stood."""
    assert text.count(OPEN) == text.count(CLOSE) == 1, "one «marked» place is needed"
    before, rest = text.split(OPEN)
    inside, after = rest.split(CLOSE)
    return Marked(before + inside + after, len(before), len(before) + len(inside))
