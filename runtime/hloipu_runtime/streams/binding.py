"""Which array of a dictionary is which parameter: by names, as dumps and pytrees write them.

JAX names a parameter by the path of an argument's leaf, `batch['input_ids']`, or, in a dump without
metadata, `input_ids.1` after the argument.
"""

import re
from collections.abc import Sequence

_WORDS = re.compile(r"\w+")
_NUMBER = re.compile(r"[.#][0-9]+$")
_Words = tuple[str, ...]


def bound(paths: Sequence[_Words], names: Sequence[str]) -> tuple[int, ...] | None:
    """Return the number of the path that is each name's, or None where names do not tell.

    A path is a name's that has most of its last words, and fewest beside them. Every name has to
    have one such path, and another than the others have.

    >>> bound([("mask",), ("ids",)], ["batch['ids']", "batch['mask']"])
    (1, 0)
    """
    keys = [tuple(word for key in path for word in _WORDS.findall(key)) for path in paths]
    found = []
    for name in names:
        spellings = _spellings(name)
        fits = [max(_fit(words, key) for words in spellings) for key in keys]
        best = max(fits, default=(0, 0))
        if best[0] == 0 or fits.count(best) > 1:
            return None
        found.append(fits.index(best))
    return tuple(found) if len(frozenset(found)) == len(found) else None


def _spellings(name: str) -> list[_Words]:
    """Return the words of a name, and those without the number that makes it unique."""
    return [tuple(_WORDS.findall(x)) for x in dict.fromkeys((name, _NUMBER.sub("", name)))]


def _fit(words: _Words, key: _Words) -> tuple[int, int]:
    """Return how many of the last words are the same, and minus the words of the key beside."""
    same = 0
    for a, b in zip(reversed(words), reversed(key), strict=False):
        if a != b:
            break
        same += 1
    return same, same - len(key)
