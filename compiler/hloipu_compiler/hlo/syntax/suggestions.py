"""Did-you-mean hints, at a bounded price: hostile texts hold thousands of long wrong names."""

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice

_LONGEST_WORD = 64
_MOST_CANDIDATES = 2_000
_MOST_HINTS = 20


class Suggestions:
    """Makes hints for the first wrong words of one text; the rest go without."""

    def __init__(self) -> None:
        self._left = _MOST_HINTS

    def hint(self, word: str, candidates: Iterable[str], ending: str = "") -> str:
        """Return `did you mean …?` for the candidate nearest to `word`, or ''."""
        if self._left <= 0 or len(word) > _LONGEST_WORD:
            return ""
        self._left -= 1
        short = (c for c in islice(candidates, _MOST_CANDIDATES) if len(c) <= _LONGEST_WORD)
        close = get_close_matches(word, list(short), 1)
        return f"did you mean {close[0]}{ending}?" if close else ""
