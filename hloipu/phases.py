"""Time of the phases that a command goes through."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from hloipu_runtime.watching import doing


class Phases:
    """Wall-clock seconds by phase, in the order in which phases began; one may come again.

    Whoever listens is told of each.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Add the time that the block takes to a phase."""
        self.seconds.setdefault(name, 0.0)
        start = perf_counter()
        try:
            with doing(name):
                yield
        finally:
            self.seconds[name] += perf_counter() - start
