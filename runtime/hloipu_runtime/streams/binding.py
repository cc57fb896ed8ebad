"""Binds a dictionary's arrays to parameters by name.

JAX names a parameter by the path of an argument's leaf, `batch['input_ids']`, or, in a dump without
metadata, `input_ids.1` after the argument.
"""

import re
from collections.abc import Collection, Sequence

_WORDS = re.compile(r"\w+")
_NUMBER = re.compile(r"[.#][0-9]+$")
_Words = tuple[str, ...]
_NO_FIT = (0, 0)


def partly_bound(paths: Sequence[_Words], names: Sequence[str]) -> dict[int, int]:
    """Return the number of the path of each name that has one, by the name's number.

    A path is a name's if one ends with the words of the other; words before those count where
    paths differ in them, unless they are positions. Of several, the one with most of the name's
    words and fewest beside them; it must be the only one, no other name's, and where it is not all
    of the name no path may be left over that is the name's as well.
    """
    keys = [tuple(word for key in path for word in _WORDS.findall(key)) for path in paths]
    shared = _shared_words(keys)
    fits = [
        [max(_fit(words, key, shared) for words in _spellings(name)) for key in keys]
        for name in names
    ]
    best = [max(row, default=_NO_FIT) for row in fits]
    path_by_name = {
        number: row.index(best[number])
        for number, row in enumerate(fits)
        if best[number] != _NO_FIT and row.count(best[number]) == 1
    }
    taken = list(path_by_name.values())
    return {
        number: path
        for number, path in path_by_name.items()
        if taken.count(path) == 1
        and (
            keys[path] in _spellings(names[number])
            or all(fit == _NO_FIT or at in taken for at, fit in enumerate(fits[number]))
        )
    }


def keys_of(names: Sequence[Sequence[str]], keys: Collection[str]) -> list[str | None]:
    """Return which key of a file each array is stored under; None: under none, or it is not clear.

    `names`: for each array what it may be called, which a key must be, and the last of them its
    path, of which a key may be the end. A name that several arrays have is none, and an array that
    is there under two of its names, or spellings of its path, is under none.
    """
    known = [name for several in names for name in dict.fromkeys(several)]
    own = [[name for name in dict.fromkeys(several) if known.count(name) == 1] for several in names]
    there = [[name for name in several if name in keys] for several in own]
    chosen = [several[0] if len(several) == 1 else None for several in there]
    taken = [key for key in chosen if key is not None]
    open_ones = [number for number, several in enumerate(there) if not several]
    left = [key for key in keys if key not in taken]
    paths = partly_bound([(key,) for key in left], [names[number][-1] for number in open_ones])
    for at, path in paths.items():
        chosen[open_ones[at]] = left[path]
    spare = [tuple(_WORDS.findall(key)) for key in keys if key not in chosen]
    return [
        None if any(words in spare for words in _spellings(several[-1])) else key
        for several, key in zip(names, chosen, strict=True)
    ]


def _spellings(name: str) -> list[_Words]:
    """Return the words of a name, and those without the number that makes it unique."""
    return [
        tuple(_WORDS.findall(spelling)) for spelling in dict.fromkeys((name, _NUMBER.sub("", name)))
    ]


def _shared_words(keys: Sequence[_Words]) -> int:
    """Return how many first words all paths have, the last one of each not counted."""
    shared = 0
    for words in zip(*(key[:-1] for key in keys), strict=False):
        if len(frozenset(words)) > 1:
            break
        shared += 1
    return shared


def _fit(words: _Words, key: _Words, shared: int) -> tuple[int, int]:
    """Return how many of the last words are the same, and minus the words of the key beside."""
    same = 0
    for a, b in zip(reversed(words), reversed(key), strict=False):
        if a != b:
            break
        same += 1
    other_words = key[shared : len(key) - same]
    if same < len(words) and not all(map(str.isdecimal, other_words)):
        return _NO_FIT
    return same, same - len(key)
