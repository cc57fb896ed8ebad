"""Codelets on whole tensors as straight-line calls, for engines that write Python."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hloipu_runtime.kernels.core.quiet import quietly

Array = np.ndarray[Any, Any]
Sizes = tuple[int, ...]


class Call(NamedTuple):
    """One call on arrays, positional, that returns an array."""

    function: Callable[..., Any]
    arguments: tuple[int, ...]
    """Numbers of values."""
    number: int
    """Of the value that it makes."""
    shape: Sizes
    dtype: np.dtype[Any] | None
    """Of an array to write to; None where none is taken."""
    is_fresh: bool
    """Whether the result shares no memory with an argument, if none is given as `out`."""
    takes_out: bool
    """Whether it may be given a row-major array as `out` to write the result to."""
    in_place: bool
    """Whether that array may be an argument of the result's shape."""


class Straight(NamedTuple):
    """Calls one after another; values have numbers, operands come first."""

    constants: Mapping[int, Any]
    """Arrays, and whatever else a call takes."""
    calls: tuple[Call, ...]
    results: tuple[int, ...]
    """Numbers of values: of calls, constants or operands."""
    needs_row_major: bool = False
    """Whether operands of the results' shape must lie row-major; other ones ask for `bound`."""


def one_call(
    function: Callable[..., Any],
    operands: int,
    shape: Sizes,
    dtype: np.dtype[Any] | None = None,
    *,
    is_fresh: bool = False,
) -> Straight:
    """Return a function of all operands as the only call; with a dtype it takes `out`."""
    call = Call(
        function,
        tuple(range(operands)),
        operands,
        shape,
        dtype,
        is_fresh=is_fresh,
        takes_out=dtype is not None,
        in_place=False,
    )
    return Straight({}, (call,), (operands,))


def run_calls(straight: Straight, operands: int) -> Callable[..., list[Array]]:
    """Return the calls as one function of all operands' arrays and places for results.

    No place is written to. Between calls arrays lie row-major, however operands do, where a call
    lets one choose: the order of sums is then that of whole tensors.
    """
    numbers = [*straight.constants, *straight.results, *(call.number for call in straight.calls)]
    rest: list[Any] = [None] * (max((operands - 1, *numbers)) + 1 - operands)
    for number, value in straight.constants.items():
        rest[number - operands] = value
    calls = [
        (call.function, call.arguments, call.number, call.shape, call.dtype, call.takes_out)
        for call in straight.calls
    ]
    results = straight.results

    def run(arrays: Sequence[Array], outs: Sequence[Array | None]) -> list[Array]:
        values = [*arrays, *rest]
        with quietly():
            for function, arguments, number, shape, dtype, takes_out in calls:
                given = [values[x] for x in arguments]
                if takes_out:
                    values[number] = function(*given, out=np.empty(shape, dtype))
                else:
                    values[number] = function(*given)
        return [values[x] for x in results]

    return run
