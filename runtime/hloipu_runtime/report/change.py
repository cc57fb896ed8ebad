"""Findings: what keeps a program slow or large; changes that cure it, and what they gain."""

from collections.abc import Mapping
from typing import Any, NamedTuple

_MORE = "hloipu advise takes more time to look"


class Change(NamedTuple):
    """One change, tried by compiling with it."""

    kind: str
    """`ipus`: more IPUs; `flag`: another option; `edit`: of the model's source; `machine`: one that
    does not exist; `count`: what is counted."""
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
    device_cycles: int
    """Of the same, what the device takes on its own."""
    device_cycles_before: int
    ipus: int = 1
    """That the program takes, its replicas counted."""

    def record(self) -> dict[str, Any]:
        """Return the change as JSON data."""
        return {**self._asdict(), "settings": dict(self.settings)}

    def line(self) -> str:
        """Return the change, the memory that it takes and its cost on one line."""
        return f"{self.text}: {self.cost()}"

    def cost(self) -> str:
        """Return the memory that it takes and its cycles: the device's own, and with its host."""
        code = ""
        if self.code_bytes > self.executable_bytes:
            code = f"{self.code_bytes:,} of {self.executable_bytes:,} bytes for code, "
        device = _with_percent(self.device_cycles, self.device_cycles_before)
        return (
            f"{self.peak_bytes:,} of {self.available_bytes:,} bytes, {code}device {device}, "
            f"with its host {_with_percent(self.cycles, self.cycles_before)}"
        )


def _with_percent(cycles: int, before: int) -> str:
    """Return cycles, and how many percent more they are than before; fewer are negative."""
    percent = 100 * (cycles / before - 1) if before else 0.0
    return f"{cycles:,} cycles ({percent:+.1f} %)"


class Fitting(NamedTuple):
    """Changes tried to make a program fit, each by compiling."""

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
    spread: tuple[str, ...] = ()
    """Options for more IPUs that were tried."""

    def record(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return {
            "found": [change.record() for change in self.found],
            "failed": [change.record() for change in self.failed],
            "needed_bytes": self.needed_bytes,
            "capacity_bytes": self.capacity_bytes,
            "is_complete": self.is_complete,
            "spread": list(self.spread),
        }

    def lines(self) -> list[str]:
        """Return for people what makes it fit, how many IPUs first; or how much is missing."""
        spread = [change for change in self.found if change.kind == "ipus"]
        lines = [f"needs {change.ipus} IPUs: it fits with {change.line()}" for change in spread]
        if self.spread and not spread:
            lines.append(f"more IPUs alone are not enough: tried {', '.join(self.spread)}")
        lines += [
            _LEADS[change.kind] + change.line() for change in self.found if change.kind != "ipus"
        ]
        if not self.found:
            return [*lines, self._missing()]
        return lines if self.is_complete else [*lines, f"there may be more that fits: {_MORE}"]

    def _missing(self) -> str:
        """Return how much is missing where no change makes it fit, and the nearest one."""
        text = f"none of {len(self.failed)} changes tried makes it fit"
        if not self.is_complete:
            text += f" in the time for that ({_MORE})"
        if self.failed:
            nearest = min(self.failed, key=lambda change: change.peak_bytes)
            text += f"; nearest comes {nearest.line()}"
        text += f"; all tiles together need {self.needed_bytes:,} bytes of {self.capacity_bytes:,}"
        if self.needed_bytes > self.capacity_bytes:
            return f"{text}, {self.needed_bytes / self.capacity_bytes:.1f} times what there is"
        return f"{text}, so that it is the fullest ones that lack"


_LEADS = {
    "flag": "would fit with ",
    "edit": "would fit if you ",
    "machine": "would fit on a machine that does not exist, ",
    "count": "would fit without its code, ",
}
"""How a line begins, by kind of change."""


Setting = tuple[str, Any]
"""An option and its value."""


CODE_CURE = (
    "run equal layers in one loop (a scan) or as functions (--outline on), or cut the step over "
    "more IPUs (--stages N)"
)
"""What makes code smaller, in words."""


class Finding(NamedTuple):
    """One thing that costs cycles or bytes, and what it would cost no more."""

    kind: str
    """One of `docs/findings.md`."""
    name: str
    """The instruction that it is about; empty: the whole program."""
    source: str
    """Where the dump says that the instruction comes from, or nothing."""
    statement: str
    """What was found, with its numbers."""
    cure: str
    """The option or the edit of the model's source that would change it."""
    gain_cycles: int
    """Cycles that a cure saves at most."""
    gain_bytes: int
    """Bytes of the fullest tile that a cure saves at most."""
    evidence: Mapping[str, Any]
    """The numbers that the statement rests on."""
    settings: tuple[Setting, ...] = ()
    """Options that are the cure, so that compiling with them measures the gain; none: an edit."""
    is_of_host: bool = False
    """Whether the cycles are of waiting for the host, not the device's own."""
    measured: Change | None = None
    """What came of compiling with them, where that was done."""

    @property
    def placed_statement(self) -> str:
        """The statement, with the place in the user's program behind the instruction's name."""
        if not self.source:
            return self.statement
        if self.name and self.name in self.statement:
            return self.statement.replace(self.name, f"{self.name} ({self.source})", 1)
        return f"{self.statement} ({self.source})"

    def record(self) -> dict[str, Any]:
        """Return the finding as JSON data."""
        return {
            **self._asdict(),
            "evidence": dict(self.evidence),
            "settings": dict(self.settings),
            "measured": None if self.measured is None else self.measured.record(),
        }
