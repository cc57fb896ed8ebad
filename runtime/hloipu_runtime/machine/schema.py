"""Every key of a machine, with unit, range and short name."""

from collections.abc import Iterator
from dataclasses import fields
from typing import get_type_hints

from hloipu_runtime.errors import MachineError
from hloipu_runtime.machine.sections import SECTIONS, Quantity
from hloipu_runtime.nearest import did_you_mean

_LONGEST_WORD = 64


def _quantities() -> Iterator[tuple[str, Quantity]]:
    for section, record in SECTIONS.items():
        hints = get_type_hints(record, include_extras=True)
        for field in fields(record):
            yield f"{section}.{field.name}", hints[field.name].__metadata__[0]


SCHEMA: dict[str, Quantity] = dict(_quantities())
"""Dotted key -> unit and range."""

_SHORT: dict[str, str] = {key.partition(".")[2]: key for key in SCHEMA}


def full_key(name: str, *, place: str = "") -> str:
    """Return the dotted key that a name stands for; a key's last part is enough.

    Raises MachineError E3203, with the nearest key, where there is none.
    """
    if name in SCHEMA:
        return name
    if name in _SHORT:
        return _SHORT[name]
    raise unknown_key(name, place=place)


def unknown_key(name: str, *, place: str = "") -> MachineError:
    """Return the error that says a machine has no such key, and which it may have been."""
    return MachineError(
        "E3203",
        f"a machine has no number {shown(name)}",
        key=name[:_LONGEST_WORD],
        place=place,
        hint=did_you_mean(name, [*_SHORT, *SCHEMA], "`hloipu targets gc200` shows every key"),
    )


def shown(text: str) -> str:
    """Return a stranger's text quoted, without control characters and not too long."""
    return repr(text if len(text) <= _LONGEST_WORD else text[:_LONGEST_WORD] + "…")
