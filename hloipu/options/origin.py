"""Origin of a value, and the assignment of a value to an option."""

from enum import IntEnum

from hloipu.options.faults import fault, wrong_value
from hloipu.options.table import Option
from hloipu_runtime.frozen import dataclass


class Level(IntEnum):
    """The sources of values; a higher one overrides a lower one."""

    DEFAULT = 0
    MODULE = 1
    FILE = 2
    FLAGS = 3
    GIVEN = 4


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of a value, the place in it, and the foreign key that stands for the option."""

    level: Level
    place: str = ""
    """Such as `hloipu.toml:3`, `HLOIPU_FLAGS` or `--ipus`."""
    key: str = ""
    """An IPUConfig key, where one was given in place of the option's own name."""

    def __str__(self) -> str:
        return f"{self.place} ({self.key})" if self.key else self.place


DEFAULT = Origin(Level.DEFAULT, "default")


@dataclass(frozen=True, slots=True)
class Assignment:
    """A value of the option's kind, given to it by some source."""

    option: Option
    value: object
    origin: Origin


def assign(option: Option, value: object, origin: Origin) -> Assignment:
    """Return the assignment of a value given in Python or TOML.

    Raises UsageError: E3011 for a value that is not of the option's kind.
    """
    return _checked(option, value, option.kind.check(value), origin)


def assign_text(option: Option, text: str, origin: Origin) -> Assignment:
    """Return the assignment of a value given as text; raises as `assign` does."""
    return _checked(option, text, option.kind.read(text), origin)


def _checked(option: Option, original: object, value: object, origin: Origin) -> Assignment:
    if value is None:
        raise wrong_value(
            origin.key or option.name, option.kind.expected, original, place=origin.place
        )
    if origin.level is Level.MODULE and option.kind.names_file(value):
        raise fault(
            "E3014", f"a module may not name a file as its {option.name}", place=origin.place
        )
    return Assignment(option, value, origin)
