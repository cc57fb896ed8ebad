"""Did-you-mean hints: the names nearest to one that does not exist."""

import re
from collections.abc import Iterable
from itertools import islice

_LONGEST_WORD = 64
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_MOST_CANDIDATES = 2_000
"""Comparing takes some 10 us each, and there may be hundred thousands that came from outside."""


def nearest(word: str, candidates: Iterable[str], most: int = 1) -> list[str]:
    """Return up to `most` of the first 2,000 candidates that are like `word`, the nearest first.

    Case does not count, nor whether words are parted by `-`, `_` or humps (`outOfMemory`). Words of
    more than 64 characters are near to nothing.
    """
    if len(word) > _LONGEST_WORD:
        return []
    from difflib import get_close_matches  # few runs need it

    names_by_folded: dict[str, list[str]] = {}
    for name in islice(candidates, _MOST_CANDIDATES):
        if len(name) <= _LONGEST_WORD:
            names_by_folded.setdefault(_folded(name), []).append(name)
    folded = _folded(word)
    close = (
        [folded] if folded in names_by_folded else get_close_matches(folded, names_by_folded, most)
    )
    return [name for near in close for name in names_by_folded[near]][:most]


def did_you_mean(
    word: str,
    candidates: Iterable[str],
    otherwise: str = "",
    *,
    most: int = 1,
    ending: str = "",
) -> str:
    """Return `did you mean …?` with the nearest candidates, or `otherwise` where none is near."""
    close = [name + ending for name in nearest(word, candidates, most)]
    return f"did you mean {' or '.join(close)}?" if close else otherwise


def _folded(name: str) -> str:
    return _HUMP.sub("-", name).casefold().replace("_", "-")


class Suggestions:
    """Makes hints for the first wrong words of one text, which may hold thousands of them."""

    def __init__(self) -> None:
        self._left = 20

    def hint(self, word: str, candidates: Iterable[str], ending: str = "") -> str:
        """Return what `did_you_mean` does, or '' after twenty words."""
        if self._left <= 0:
            return ""
        self._left -= 1
        return did_you_mean(word, candidates, ending=ending)
