"""Texts kept beside the tests: a result is compared with a file, and the file can be rewritten."""

from pathlib import Path


class GoldenText:
    """Equal to a text when the file holds exactly that text; with `update`, writes it first."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, path: Path, *, update: bool) -> None:
        self._path = path
        self._update = update

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, str):
            return NotImplemented
        if self._update:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(other, encoding="utf-8")
        return self._text() == other

    def __repr__(self) -> str:
        return self._text()

    def _text(self) -> str:
        if not self._path.exists():
            return f"<no file {self._path}; --update-golden writes it>"
        return self._path.read_text(encoding="utf-8")
