"""What long work tells of how far it is, and searches that end early with the best so far.

Whoever waits listens within `listening`; work tells by `telling`, `doing` and `each`, which cost
one look at a context variable where nobody listens.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from math import inf
from time import monotonic, process_time
from typing import TypeVar

T = TypeVar("T")

Listener = Callable[[tuple[str, ...], int, int], None]
"""Hears what is being done, the outermost part first, how many of its parts are done, and of how
many; 0 of 0: nobody knows. It is to return at once."""

_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)
_SEARCH: ContextVar["Search | None"] = ContextVar("search", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Have a listener hear what work in the block tells, in place of those around it."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


@contextmanager
def unheard() -> Iterator[None]:
    """Let nobody hear what small work in the block tells."""
    token = _LISTENER.set(None)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def is_heard() -> bool:
    """Whether anybody listens."""
    return _LISTENER.get() is not None


def telling(what: str, done: int = 0, count: int = 0) -> None:
    """Tell what is being done, and how far it is."""
    listener = _LISTENER.get()
    if listener is not None:
        listener((what,), done, count)


def doing(what: str) -> AbstractContextManager[None]:
    """Report an activity until the block ends; activities that the block reports are part of it."""
    outer = _LISTENER.get()
    if outer is None:
        return nullcontext()
    outer((what,), 0, 0)
    return listening(lambda parts, done, count: outer((what, *parts), done, count))


def each(what: str, some: Iterable[T], count: int) -> Iterable[T]:
    """Return `some`; before each of them it is told how many of `count` are done."""
    listener = _LISTENER.get()
    return some if listener is None else _told(listener, what, some, count)


def _told(listener: Listener, what: str, some: Iterable[T], count: int) -> Iterator[T]:
    parts = (what,)
    for done, one in enumerate(some):
        listener(parts, done, count)
        yield one


class _EndedError(BaseException):
    """Work of a search is to end; like an interrupt, no handler of errors may keep it."""


class Search:
    """How long one may look for something better than what is there, and why looking ended early.

    Work is ended where it tells how far it is. `clock` gives seconds; without a limit parts of the
    search go by those of the processor, which `work_clock` gives, however busy the machine is.
    """

    def __init__(
        self,
        seconds: float | None = None,
        clock: Callable[[], float] = monotonic,
        work_clock: Callable[[], float] = process_time,
    ) -> None:
        self.ended: str = ""
        """Why: `interrupted`, say; empty as long as it was not."""
        self._clock = clock
        self._work_clock = work_clock
        self._start, self._work_start = clock(), work_clock()
        self._seconds = seconds
        self._part: float | None = None
        self._is_over = False
        self._improving = 0

    @property
    def improves(self) -> bool:
        """Whether something is there already, and better is looked for."""
        return self._improving > 0

    @contextmanager
    def improving(self) -> Iterator[None]:
        """Look for better in the block: it may end at any time."""
        self._improving += 1
        try:
            yield
        finally:
            self._improving -= 1

    def part(self, share: float) -> AbstractContextManager[None]:
        """Have looking in the block end when that share of the time is over that is left."""
        limit = self._seconds if self._part is None else self._part
        return nullcontext() if limit is None else self.within(share * (limit - self._gone()))

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Have looking in the block end in so many seconds, if not before."""
        outer = self._part
        end = self._gone() + seconds
        self._part = end if outer is None else min(end, outer)
        try:
            yield
        finally:
            self._part = outer

    @contextmanager
    def unhurried(self) -> Iterator[None]:
        """Have work in the block end with the whole search only, whatever part of it is around."""
        outer, self._part = self._part, None
        try:
            yield
        finally:
            self._part = outer

    def left(self) -> float:
        """Return the seconds that are left of all of its time; infinite where it has no limit."""
        return inf if self._seconds is None else self._seconds - self._gone()

    def is_over(self) -> bool:
        """Whether looking is to end."""
        if self._is_over:
            return True
        gone = self._gone()
        self._is_over = self._seconds is not None and gone >= self._seconds
        if not self._is_over and (self._part is None or gone < self._part):
            return False
        limit = self._part if self._seconds is None else self._seconds
        self.ended = self.ended or f"its time of {limit or 0:.3g} s was up"
        return True

    def _gone(self) -> float:
        if self._seconds is None:
            return self._work_clock() - self._work_start
        return self._clock() - self._start

    def limit(self, seconds: float | None) -> None:
        """Let it take so many seconds from its start; None: as long as it takes."""
        self._seconds = seconds

    def end(self, why: str) -> None:
        """Have it end as soon as work tells how far it is."""
        self._is_over = True
        if not self.ended:
            self.ended = why

    def tried(self, work: Callable[[], T]) -> T | None:
        """Return what work gives; None where looking is over before it is through."""
        outer = _LISTENER.get()

        def heard(parts: tuple[str, ...], done: int, count: int) -> None:
            if self.is_over():
                raise _EndedError
            if outer is not None:
                outer(parts, done, count)

        if self.is_over():
            return None
        try:
            with listening(heard):
                return work()
        except _EndedError:
            return None


@contextmanager
def searching(search: Search) -> Iterator[Search]:
    """Have searches in the block go by `search`."""
    token = _SEARCH.set(search)
    try:
        yield search
    finally:
        _SEARCH.reset(token)


def current_search() -> Search:
    """Return the search that this point is within; one without an end where there is none."""
    return _SEARCH.get() or Search()
