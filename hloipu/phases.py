"""Time of the phases that a command goes through."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter


class Phases:
    """Wall-clock seconds by phase, in the order in which phases began; one may come again."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Add the time that the block takes to a phase."""
        self.seconds.setdefault(name, 0.0)
        start = perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += perf_counter() - start
