"""A finding: what keeps a program slow or large, its evidence and its cure."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from hloipu_runtime.report.change import Change

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
