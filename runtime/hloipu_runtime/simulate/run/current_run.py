"""The run at hand, as steps see it that were prepared in an earlier one."""

from collections.abc import Iterable

from hloipu_runtime.program.program import Array
from hloipu_runtime.simulate.run.host import Counts, Host


class CurrentRun(Counts):
    """The host and the counts of the run at hand, for steps that were prepared in another one."""

    host: Host | None = None
    counts: Counts

    def __init__(self) -> None:
        self.counts = Counts()

    def ran(self, place: str) -> None:
        """Count one run of a block."""
        self.counts.ran(place)

    def iterations(self, name: str, path: str, count: int | None = None) -> Iterable[object]:
        """Return what a loop goes through that is entered."""
        return self.counts.iterations(name, path, count)

    def take(self, stream: str) -> Array:
        """Return the next element of a stream to the device."""
        assert self.host is not None
        return self.host.take(stream)

    def give(self, stream: str, value: Array) -> None:
        """Hand an element over to the host."""
        assert self.host is not None
        self.host.give(stream, value)
