"""Where the checks put what they find: a bounded list of faults, handed out in text order."""

from collections.abc import Sequence

from hloipu_compiler.errors import Fault, Note
from hloipu_compiler.source import Span

MOST_FAULTS = 1000
"""Faults kept of one module: what a hostile text can make us build is bounded by this."""


class Report:
    """Collects faults; once `most` are there, further ones are dropped."""

    __slots__ = ("_faults", "_most")

    def __init__(self, most: int = MOST_FAULTS) -> None:
        self._most = most
        self._faults: list[Fault] = []

    def __len__(self) -> int:
        return len(self._faults)

    @property
    def is_full(self) -> bool:
        """Whether no further fault is kept, so that a check may as well stop."""
        return len(self._faults) >= self._most

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
        """Add one fault, unless the report is full."""
        if not self.is_full:
            self._faults.append(Fault(code, message, at, expected, hint, tuple(notes)))

    def in_text_order(self) -> list[Fault]:
        """Return the faults by position; those without a place in the text come last."""
        far = max((f.span.start for f in self._faults if f.span), default=0) + 1
        return sorted(self._faults, key=lambda f: f.span.start if f.span else far)
