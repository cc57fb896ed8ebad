"""Bounded memo tables.

What a module keeps while the program runs is a `Memo` or `functools.lru_cache` with a bound, and
nothing else (`tests/test_house.py` looks). Either may be emptied at any time: nothing but time is
lost.
"""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Memo(Generic[T]):
    """Answers by key; the oldest one goes when there are too many."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.known: dict[Hashable, tuple[T]] = {}

    def of(self, key: Hashable, find: Callable[[], T]) -> T:
        """Return what is known for a key, or else what `find` returns, which is kept."""
        if (known := self.known.get(key)) is not None:
            return known[0]
        answer = find()
        while len(self.known) >= self.most:
            self.known.pop(next(iter(self.known)), None)
        self.known[key] = (answer,)
        return answer


class Same:
    """A key that equals no other object's, however alike: large records are not compared.

    It keeps the object, so that no other one takes its identity.
    """

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)
