"""The errors of option values, worded in one place."""

from collections.abc import Iterable

from hloipu_runtime.arguments import shown
from hloipu_runtime.errors import UsageError


def fault(code: str, message: str, *, place: str = "", hint: str = "") -> UsageError:
    """Return a UsageError that begins with the place of what is wrong."""
    return UsageError(code, f"{place}: {message}" if place else message, hint=hint)


def wrong_value(name: str, expected: str, value: object, *, place: str = "") -> UsageError:
    """Return the error of a value that is not of its option's kind."""
    return fault("E3011", f"{name} is {expected}, not {shown(value)}", place=place)


def unknown(name: str, candidates: Iterable[str], *, place: str = "") -> UsageError:
    """Return the error of a name that no option has, with what it is here, or the nearest ones."""
    from hloipu.options.poplar_keys import option_hint  # few runs need it, and it reads the table

    return fault(
        "E3010",
        f"there is no option {shown(name)}",
        place=place,
        hint=option_hint(name, candidates, "hloipu compile --print-config lists the options"),
    )
