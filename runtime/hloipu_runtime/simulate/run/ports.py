"""Checks users' arrays at ports, and converts them to storage form and back."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hloipu_runtime.arguments import ArgumentError, shown
from hloipu_runtime.errors import UsageError
from hloipu_runtime.kernels.core.storage import cast_scalar, from_storage, to_storage, user_dtype
from hloipu_runtime.program.program import Array, Port


def given_arrays(ports: Sequence[Port], arguments: Sequence[Any]) -> dict[str, Array]:
    """Return the arguments by stream, in storage form; UsageError where one does not fit."""
    return {
        port.stream: _checked(port, number, array)
        for number, (port, array) in enumerate(
            zip(ports, flat_arrays(ports, arguments), strict=True)
        )
    }


def flat_arrays(ports: Sequence[Port], arguments: Sequence[Any]) -> list[Any]:
    """Return arguments without their nesting, one for each port; UsageError E3141: more or less."""
    flat = list(_flat(arguments))
    if len(flat) != len(ports):
        raise UsageError(
            "E3141",
            f"the program takes {len(ports)} arrays, {len(flat)} were given",
            hint="pass one array for each leaf of the entry's parameters, in order",
        )
    return flat


def in_order(
    ports: Sequence[Port], names: Sequence[str], arguments: Sequence[Any]
) -> Sequence[Any]:
    """Return arguments in the order of the parameters; one dictionary has them by name or number.

    Raises UsageError E3154 for names that are unknown, stand for several, are given twice or are
    missing.
    """
    if len(arguments) != 1 or not isinstance(arguments[0], Mapping):
        return arguments
    numbers = [int(port.stream.rpartition(".")[2]) for port in ports]
    known: dict[object, list[int]] = {}
    for at, number in enumerate(numbers):
        known.setdefault(number, []).append(at)
        known.setdefault(f"parameter.{number}", []).append(at)
        if number < len(names) and names[number] != f"parameter.{number}":
            known.setdefault(names[number], []).append(at)
    array_by_place: dict[int, Any] = {}
    for key, array in arguments[0].items():
        places = known.get(key, []) if isinstance(key, str | int) else []
        if len(places) != 1 or places[0] in array_by_place:
            wrong = "twice" if len(places) == 1 else f"for {len(places)} parameters"
            raise UsageError(
                "E3154",
                f"an array is given {wrong}: {shown(key)}",
                hint=f"the program takes {', '.join(_called(names, n) for n in numbers[:8])}",
            )
        array_by_place[places[0]] = array
    missing = [_called(names, n) for at, n in enumerate(numbers) if at not in array_by_place]
    if missing:
        raise UsageError(
            "E3154",
            f"{missing[0]} is not given, one of {len(missing)}",
            hint="give an array for each of `inputs`",
        )
    return [array_by_place[at] for at in range(len(ports))]


def _called(names: Sequence[str], number: int) -> str:
    return shown(names[number] if number < len(names) else f"parameter.{number}")


MOST_NESTED = 64
"""Levels of lists in an argument. Real tuple parameters have a handful."""


def _flat(arguments: Sequence[Any], depth: int = 0) -> Iterator[Any]:
    if depth > MOST_NESTED:
        raise ArgumentError(
            "run",
            "arguments",
            f"arrays in at most {MOST_NESTED} levels of lists",
            "lists nested deeper, or a list that holds itself",
        )
    for each in arguments:
        if isinstance(each, list | tuple):
            yield from _flat(each, depth + 1)
        else:
            yield each


def _checked(port: Port, number: int, argument: Any) -> Array:
    array = np.asarray(argument)
    wanted = user_dtype(port.element_type)
    if array.shape != port.shape:
        raise UsageError(
            "E3142",
            f"argument {number} has shape {array.shape}, parameter has {port.shape}",
            hint="pass arrays in the order of the entry's parameters",
        )
    if array.dtype != wanted and not (
        isinstance(argument, bool | int | float | complex)
        and np.can_cast(array.dtype, wanted, "same_kind")
    ):
        raise UsageError(
            "E3142",
            f"argument {number} has type {array.dtype}, parameter has {port.element_type}",
            hint=f"convert it with .astype({wanted.name!r})",
        )
    cast = cast_scalar(array, wanted) if array.ndim == 0 else array.astype(wanted, copy=False)
    if cast is None:
        raise UsageError(
            "E3142",
            f"argument {number} is {shown(argument)}, which {port.element_type} cannot hold",
            hint="give a number within the type's range",
        )
    return to_storage(cast, port.element_type)


def taken_arrays(ports: Sequence[Port], outputs: Mapping[str, Array]) -> list[Any]:
    """Return the results in order, in the user's types."""
    return [from_storage(outputs[port.stream], port.element_type) for port in ports]
