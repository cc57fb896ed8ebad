"""Walks over graphs: all that is reached, each member once."""

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

Member = TypeVar("Member", bound=Hashable)


def reached(
    starts: Iterable[Member], following: Callable[[Member], Iterable[Member]]
) -> Iterator[Member]:
    """Yield all that is reached from some starts, themselves included; depth first, last one first.

    What follows a member is asked for after it was yielded.
    """
    waiting = list(dict.fromkeys(starts))
    seen = set(waiting)
    while waiting:
        member = waiting.pop()
        yield member
        for other in following(member):
            if other not in seen:
                seen.add(other)
                waiting.append(other)
