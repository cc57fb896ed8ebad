"""Kinds of option values: how each is read from text, checked, and written back.

`read` takes text, as it stands on a command line; `check` takes a Python or TOML value and returns
it in the one form that `Options` holds. Both return None for what is not of the kind, and the
caller says so with `expected`. `read(write(value)) == value` for every value of a kind.
"""

import os
import re
from fractions import Fraction
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar

from hloipu_runtime.frozen import dataclass

MOST_CHARACTERS = 65_536
"""The longest text of one value."""

_INTEGER = re.compile(r"[+-]?[0-9](?:_?[0-9]){0,40}", re.ASCII)
_REAL = re.compile(r"[0-9]{0,20}\.?[0-9]{1,20}(?:[eE][+-]?[0-9]{1,2})?", re.ASCII)
_SIZE = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)\s{0,4}([A-Za-z]{0,3})", re.ASCII)
_TRUTHS = {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}
_BINARY = {"TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "B": 1}
_DECIMAL = {"TB": 10**12, "GB": 10**9, "MB": 10**6, "kB": 10**3, "KB": 10**3, "": 1}
_UNITS = _BINARY | _DECIMAL


class Kind:
    """A kind of value; this one is any printable text that is not empty."""

    __slots__ = ()

    repeatable: ClassVar[bool] = False
    """Whether the option may be given several times, each time for a part of the value."""
    merges: ClassVar[bool] = False
    """Whether values from several sources are put together, key by key."""

    metavar_text: ClassVar[str] = "TEXT"
    expected_text: ClassVar[str] = "a text that is not empty"
    """Both may name fields of the kind: `an integer from {0.least}`."""

    @property
    def metavar(self) -> str:
        """What stands for the value in a help text."""
        return self.metavar_text.format(self)

    @property
    def expected(self) -> str:
        """Description of a value for messages: `ipus is …`."""
        return self.expected_text.format(self)

    def read(self, text: str) -> object:
        """Return the value that `text` stands for, or None."""
        return self.check(text)

    def check(self, value: object) -> object:
        """Return `value` in the form that `Options` holds, or None."""
        if isinstance(value, str) and value.strip() and len(value) <= MOST_CHARACTERS:
            return value if value.isprintable() else None
        return None

    def write(self, value: object) -> str:
        """Return the text that `read` takes for `value`."""
        return str(value)

    def names_file(self, value: object) -> bool:
        """Say whether `value` is the path of a file or folder: no module may name one."""
        return False

    def rebased(self, value: object, folder: Path) -> object:
        """Return `value` with a relative path in it taken from `folder`."""
        return value


def moved(path: str, folder: Path) -> str:
    """Return a path, taken from `folder` where it is relative; `~` is the user's home."""
    return str(folder / os.path.expanduser(path))


class Location(Kind):
    """The path of a file or folder."""

    __slots__ = ()
    metavar_text: ClassVar[str] = "PATH"
    expected_text: ClassVar[str] = "a path"

    def check(self, value: object) -> object:
        """Return a path as text."""
        return Kind.check(self, str(value) if isinstance(value, Path) else value)

    def names_file(self, value: object) -> bool:
        """Say that it does."""
        return True

    def rebased(self, value: object, folder: Path) -> object:
        """Return the path, taken from `folder` where it is relative."""
        return moved(str(value), folder) if self.names_file(value) else value


class Target(Location):
    """The name of a machine, or the path of a file that describes one."""

    __slots__ = ()
    metavar_text: ClassVar[str] = "MACHINE"
    expected_text: ClassVar[str] = "the name of a machine or the path of a .toml file"

    def names_file(self, value: object) -> bool:
        """Say whether it is a path rather than a name."""
        return str(value).endswith(".toml") or "/" in str(value)


@dataclass(frozen=True, slots=True)
class Choice(Kind):
    """One of some words."""

    words: tuple[str, ...]

    @property
    def metavar(self) -> str:
        """What stands for the value in a help text."""
        return "|".join(self.words)

    @property
    def expected(self) -> str:
        """What a value is."""
        return f"one of {', '.join(self.words)}"

    def check(self, value: object) -> object:
        """Return the word."""
        return value if isinstance(value, str) and value in self.words else None


@dataclass(frozen=True, slots=True)
class Integer(Kind):
    """An integer of a range, both ends included."""

    metavar_text: ClassVar[str] = "N"
    expected_text: ClassVar[str] = "an integer from {0.least} to {0.most}"

    least: int
    most: int

    def read(self, text: str) -> object:
        """Return the integer that `text` writes in decimal."""
        return self.check(int(text)) if _INTEGER.fullmatch(text) else None

    def check(self, value: object) -> object:
        """Return an integer of Python or numpy; True is none."""
        if isinstance(value, Integral) and not isinstance(value, bool):
            return int(value) if self.least <= int(value) <= self.most else None
        return None


@dataclass(frozen=True, slots=True)
class CountOrWord(Kind):
    """An integer of a range, or one word in its place."""

    metavar_text: ClassVar[str] = "{0.count.metavar}|{0.word}"
    expected_text: ClassVar[str] = "{0.count.expected}, or {0.word}"

    count: Integer
    word: str

    def read(self, text: str) -> object:
        """Return the word or the integer."""
        return text if text == self.word else self.count.read(text)

    def check(self, value: object) -> object:
        """Return the word or an integer."""
        is_word = isinstance(value, str) and value == self.word
        return value if is_word else self.count.check(value)


class Seconds(Kind):
    """A number above 0."""

    __slots__ = ()
    metavar_text: ClassVar[str] = "SECONDS"
    expected_text: ClassVar[str] = "a number above 0"
    most: ClassVar[int] = 10**9
    """Thirty years: nobody waits longer, and clocks take it."""

    def read(self, text: str) -> object:
        """Return the number that `text` writes in decimal."""
        return self.check(float(text)) if _REAL.fullmatch(text) else None

    def check(self, value: object) -> object:
        """Return a finite number of Python or numpy."""
        if isinstance(value, Real) and not isinstance(value, bool):
            number: Any = value  # numbers.Real has no order for mypy; float() overflows
            return float(number) if 0 < number <= self.most else None
        return None


class Proportion(Seconds):
    """A number above 0 and up to 1."""

    __slots__ = ()
    metavar_text: ClassVar[str] = "X"
    expected_text: ClassVar[str] = "a number above 0 and up to 1"
    most: ClassVar[int] = 1


class Flag(Kind):
    """True or false."""

    __slots__ = ()
    metavar_text: ClassVar[str] = "true|false"
    expected_text: ClassVar[str] = "true or false"

    def read(self, text: str) -> object:
        """Return what `text` says: true, 1, on, false, 0, off, in any case."""
        return _TRUTHS.get(text.lower()) if len(text) < 6 else None

    def check(self, value: object) -> object:
        """Return a truth value of Python."""
        return value if isinstance(value, bool) else None

    def write(self, value: object) -> str:
        """Return `true` or `false`."""
        return "true" if value else "false"


@dataclass(frozen=True, slots=True)
class Size(Kind):
    """A number of bytes: an integer, or a text such as 64MiB, 1.5GiB or 2GB."""

    metavar_text: ClassVar[str] = "SIZE"

    most: int

    @property
    def expected(self) -> str:
        """What a value is."""
        return f"a number of bytes up to {self.write(self.most)}, such as 67108864 or 64MiB"

    def read(self, text: str) -> object:
        """Return the bytes that a number with or without a unit writes."""
        match = _SIZE.fullmatch(text.strip()) if len(text) < 64 else None
        if not match or match[2] not in _UNITS:
            return None
        count = Fraction(match[1]) * _UNITS[match[2]]
        return self.check(count.numerator) if count.denominator == 1 else None

    def check(self, value: object) -> object:
        """Return a number of bytes, from an integer or from a text with a unit."""
        if isinstance(value, str):
            return self.read(value)
        return Integer(0, self.most).check(value)

    def write(self, value: object) -> str:
        """Return the count in the largest binary unit that leaves no rest."""
        count = int(str(value))
        for unit, size in _BINARY.items():
            if count and count % size == 0:
                return f"{count // size}{unit}"
        return "0B"
