"""Names that nothing else has, in constant time each."""

from collections.abc import Iterable


class Names:
    """The names in use in one computation or module."""

    __slots__ = ("_next", "_used")

    def __init__(self, used: Iterable[str]) -> None:
        self._used = set(used)
        self._next: dict[str, int] = {}

    def fresh(self, stem: str) -> str:
        """Return `stem`, or `stem.1`, `stem.2`… where that is taken, and take it."""
        used = self._used
        if stem not in used:
            used.add(stem)
            return stem
        number = self._next.get(stem, 0)
        while True:
            number += 1
            name = f"{stem}.{number}"
            if name not in used:
                break
        self._next[stem] = number
        used.add(name)
        return name
