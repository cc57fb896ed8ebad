"""Bounded list of faults, handed out in text order."""

from collections.abc import Sequence

from hloipu_compiler.errors import Fault, Note
from hloipu_compiler.source import Span

MOST_FAULTS = 1000
"""Faults kept of one module: what a hostile text can make us build is bounded by this."""


class ReportFullError(Exception):
    """The report has as many faults as it may hold; the checks stop, and so does their cost."""


class Report:
    """Collects up to `most` faults; the last of them ends the checks by ReportFullError."""

    __slots__ = ("_faults", "_most")

    def __init__(self, most: int = MOST_FAULTS) -> None:
        self._most = most
        self._faults: list[Fault] = []

    def __len__(self) -> int:
        return len(self._faults)

    def add(
        self,
        code: str,
        message: str,
        at: Span | None,
        *,
        expected: str = "",
        hint: str = "",
        notes: Sequence[Note] = (),
    ) -> None:
        """Add one fault; raises ReportFullError when it was the last that fits."""
        self._faults.append(Fault(code, message, at, expected, hint, tuple(notes)))
        if len(self._faults) >= self._most:
            raise ReportFullError

    def in_text_order(self) -> list[Fault]:
        """Return the faults by position; those without a place in the text come last."""
        far = max((f.span.start for f in self._faults if f.span), default=0) + 1
        return sorted(self._faults, key=lambda f: f.span.start if f.span else far)
