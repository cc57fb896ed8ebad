"""Limit on the iterations of a loop each time it is entered; off unless asked for."""

from collections.abc import Callable, Iterable, Iterator
from itertools import repeat

from hloipu_runtime.errors import LimitError


def limited_iterations(
    most: int | None, fault: Callable[[int], LimitError], count: int | None = None
) -> Iterable[object]:
    """Return what a loop goes through: `count` iterations, or without end.

    Where `most` iterations are allowed, raises what `fault` returns for them before a known count
    that is higher, or when an iteration after those is over and the loop still goes on.
    """
    if most is None:
        return repeat(None) if count is None else range(count)
    if count is None:
        return _limited(most, fault)
    if count > most:
        raise fault(most)
    return range(count)


def _limited(most: int, fault: Callable[[int], LimitError]) -> Iterator[object]:
    # Once more: only the condition of the iteration after the last tells that there is none.
    yield from repeat(None, most + 1)
    raise fault(most)


def too_many_iterations(name: str, most: int, place: str = "") -> LimitError:
    """Return LimitError E5031 for a loop that takes more than so many iterations."""
    where = f" ({place})" if place else ""
    return LimitError(
        "E5031",
        f"loop {name!r}{where} is not at its end after {most:,} iterations",
        limit="max_iterations",
        allowed=most,
        found=most + 1,
        hint="see whether its condition can become false; if it is right, raise --max-iterations "
        "(max_iterations= in Python), or leave it out",
    )
