"""A change of options or of the model, and the result of compiling with it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

_MORE = "hloipu advise takes more time to look"


class Change(NamedTuple):
    """One change that was tried by compiling anew."""

    kind: str
    """`flag`: an option; `edit`: of the model's source; `machine`: another machine."""
    text: str
    """What to do: the flags, or the edit in words."""
    settings: Mapping[str, Any]
    """The options with which it was compiled, beside those that were given."""
    fits: bool
    peak_bytes: int
    """Of the fullest tile."""
    available_bytes: int
    """Of each tile, on the machine of the change."""
    code_bytes: int
    """Code of the tile that has most of it."""
    executable_bytes: int
    """What these may take of each tile."""
    cycles: int
    """Of one run; where data decides, at least. Of a wrapped step, of one step."""
    cycles_before: int
    """The same without the change."""

    @property
    def cycles_percent(self) -> float:
        """How many percent more cycles it takes; fewer are negative."""
        return 100 * (self.cycles / self.cycles_before - 1) if self.cycles_before else 0.0

    def record(self) -> dict[str, Any]:
        """Return the change as JSON data."""
        return {**self._asdict(), "settings": dict(self.settings)}

    def line(self) -> str:
        """Return the change and its cost on one line."""
        code = ""
        if self.code_bytes > self.executable_bytes:
            code = f"{self.code_bytes:,} of {self.executable_bytes:,} bytes for code, "
        return (
            f"{self.text}: {self.peak_bytes:,} of {self.available_bytes:,} bytes, {code}"
            f"{self.cycles:,} cycles ({self.cycles_percent:+.1f} %)"
        )


class Fitting(NamedTuple):
    """What was tried to make a program fit, each by compiling anew."""

    found: tuple[Change, ...]
    """Changes with which it fits."""
    failed: tuple[Change, ...]
    """Changes with which it does not."""
    needed_bytes: int
    """Of all tiles together."""
    capacity_bytes: int
    """Of all tiles together."""
    is_complete: bool = True
    """Whether all that there is to try was tried, or enough was found, before time was up."""

    def record(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return {
            "found": [change.record() for change in self.found],
            "failed": [change.record() for change in self.failed],
            "needed_bytes": self.needed_bytes,
            "capacity_bytes": self.capacity_bytes,
            "is_complete": self.is_complete,
        }

    def lines(self) -> list[str]:
        """Return for people what makes it fit, or how much is missing."""
        if self.found:
            more = [] if self.is_complete else [f"there may be more that fits: {_MORE}"]
            return [f"would fit with {change.line()}" for change in self.found] + more
        tried = f"none of {len(self.failed)} changes tried makes it fit"
        if not self.is_complete:
            tried += f" in the time for that ({_MORE})"
        if self.failed:
            nearest = min(self.failed, key=lambda change: change.peak_bytes)
            tried += f"; nearest comes {nearest.line()}"
        if self.needed_bytes > self.capacity_bytes:
            times = self.needed_bytes / self.capacity_bytes
            return [
                f"{tried}; all tiles together need {self.needed_bytes:,} bytes of "
                f"{self.capacity_bytes:,}, {times:.1f} times what there is"
            ]
        return [
            f"{tried}; all tiles together need {self.needed_bytes:,} bytes of "
            f"{self.capacity_bytes:,}, so that it is the fullest ones that lack"
        ]
