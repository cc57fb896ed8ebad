"""Codelets on whole tensors as straight-line calls, for engines that write Python."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hloipu_runtime.kernels.core.blocks import aligned_empty, put
from hloipu_runtime.kernels.core.quiet import quietly

Array = np.ndarray[Any, Any]
Sizes = tuple[int, ...]


Take = Callable[[Sizes, np.dtype[Any]], Array]
"""Returns an array for what stands between calls."""

Prepare = Callable[[Sequence[Array], Array, Take], list[Callable[[], object]] | None]


class Call(NamedTuple):
    """One call on arrays, positional: it returns an array, or a list that calls after it read."""

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
    """Whether it may be given a row-major array as `out` to write the result to.

    A ufunc has to be, where the shape is (): it returns no array else.
    """
    in_place: bool
    """Whether that array may be an argument of the result's shape."""
    is_view: bool = False
    """Whether it sees its argument in another form, the same one in each run, or copies it so."""
    back: Callable[[Array], Array | None] | None = None
    """Of such a call: what sees a place for its result as one for its argument, if it can."""
    on_arrays: Prepare | None = None
    """What makes, of the arrays of arguments and result, calls that do the same."""


class Straight(NamedTuple):
    """Calls one after another; values have numbers, operands come first."""

    constants: Mapping[int, Any]
    """Arrays, and whatever else a call takes."""
    calls: tuple[Call, ...]
    results: tuple[int, ...]
    """Numbers of values: of calls, constants or operands."""
    needs_row_major: bool = False
    """Whether operands of the results' shape must lie row-major; other ones ask for `bound`."""


def row_major(array: Array) -> Array:
    """Return an array that lies row-major, or a copy that does."""
    return np.asarray(array, order="C")


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
        on_arrays=getattr(function, "on_arrays", None),
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
                given = [values[number] for number in arguments]
                if takes_out:
                    values[number] = function(*given, out=np.empty(shape, dtype))
                else:
                    values[number] = function(*given)
        return [values[number] for number in results]

    return run


def calls_in_buffers(straight: Straight, operands: int) -> Callable[..., list[Array]]:
    """Return the calls as one function of all operands' arrays and places for results.

    For calls on one block after another, one at a time: values between calls stand in buffers that
    are kept, so that they stay in cache. A result is written to its place where no call after that
    reads what lies there; if it stands elsewhere, it does so until the next block.
    """
    last = _last_reads(straight)
    places = {number: at for at, number in enumerate(straight.results)}
    free: dict[tuple[Sizes, np.dtype[Any]], list[Array]] = {}
    buffer_of: dict[int, Array] = {}
    calls: list[tuple[Any, tuple[int, ...], int, int, Array | None, tuple[int, ...]]] = []
    for position, call in enumerate(straight.calls):
        out: Array | None = None
        place, read_later = -1, tuple[int, ...]()
        dying = [x for x in buffer_of if last[x] == position and x in call.arguments]
        if call.takes_out and call.dtype is not None:
            key = (call.shape, call.dtype)
            if call.number in places:
                place = places[call.number]
                read_later = tuple(k for k in range(operands) if last.get(k, -1) > position)
            if call.in_place:
                _give_back(dying, buffer_of, free)
            out = free[key].pop() if free.get(key) else aligned_empty(*key)
            buffer_of[call.number] = out
        _give_back([x for x in dying if x in buffer_of], buffer_of, free)
        calls.append((call.function, call.arguments, call.number, place, out, read_later))
    results, constants = straight.results, straight.constants
    count = 1 + max((operands - 1, *constants, *results, *(call.number for call in straight.calls)))
    rest = [constants.get(number) for number in range(operands, count)]

    def run(arrays: Sequence[Array], outs: Sequence[Array | None]) -> list[Array]:
        values: list[Any] = [*arrays, *rest]
        with quietly():
            for function, arguments, number, place, out, read_later in calls:
                target = out
                if place >= 0:
                    given = outs[place]
                    if _takes(given, out, [arrays[k] for k in read_later]):
                        target = given
                if target is None:
                    values[number] = function(*[values[number] for number in arguments])
                else:
                    values[number] = function(*[values[number] for number in arguments], out=target)
        return [values[number] for number in results]

    return run


def calls_on_arrays(
    straight: Straight,
    operands: Sequence[Array],
    places: Sequence[Array],
    take: Take,
) -> list[Callable[[], object]]:
    """Return the calls on these very arrays, from the operands to the places of the results.

    Views are made once, and so is what stands between calls, in arrays from `take`. Calls that
    take no `out` are tried on the values at hand; floating-point warnings are to be off.
    """
    values: dict[int, Any] = {**dict(enumerate(operands)), **straight.constants}
    last = _last_reads(straight)
    place_of = dict(zip(straight.results, places, strict=True))
    seen_through: dict[int, int] = {}
    for call in straight.calls:
        place = place_of.get(call.number)
        back = None if place is None or call.back is None else call.back(place)
        if back is not None and call.arguments[0] not in place_of:  # one place for each value
            place_of[call.arguments[0]] = back
            seen_through[call.number] = call.arguments[0]
    calls: list[Callable[[], object]] = []
    for position, call in enumerate(straight.calls):
        function, arguments = call.function, [values[number] for number in call.arguments]
        place = place_of.get(call.number)
        if place is not None and not _may_write(call, place, position, last, operands):
            place = None
        if call.on_arrays is not None:
            out = place
            if out is None:
                out = take(call.shape, call.dtype or arguments[0].dtype)
            several_calls = call.on_arrays(arguments, out, take)
            if several_calls is not None:
                calls += several_calls
                values[call.number] = out
                continue
        if call.takes_out and call.dtype is not None:
            out = take(call.shape, call.dtype) if place is None else place
            if function in NAMED_OUT:
                calls.append(partial(function, *arguments, out=out))
            elif isinstance(function, np.ufunc) and function.signature is None:
                calls += _elementwise(function, arguments, out)
            elif isinstance(function, np.ufunc):
                calls.append(partial(function, *arguments, out))
            else:
                calls.append(partial(_write, out, partial(function, *arguments, out=out)))
        else:
            with quietly():
                computed = function(*arguments)
            if isinstance(computed, tuple | list):  # several results, which later calls pick
                several = [take(x.shape, x.dtype) for x in computed]
                calls.append(partial(_write_each, several, partial(function, *arguments)))
                values[call.number] = several
                continue
            computed = np.asarray(computed)
            picks = bool(arguments) and isinstance(arguments[0], list)
            if picks or (call.is_view and np.may_share_memory(computed, arguments[0])):
                values[call.number] = computed
                continue
            out = take(computed.shape, computed.dtype) if place is None else place
            if function is row_major:
                calls.append(copying(out, *arguments))
            else:
                calls.append(partial(_write, out, partial(function, *arguments)))
        values[call.number] = out

    def is_there(number: int) -> bool:
        source = seen_through.get(number)
        return source is not None and values[source] is place_of[source]

    left = [
        (place, values[number])
        for number, place in zip(straight.results, places, strict=True)
        if values[number] is not place and not (place is place_of[number] and is_there(number))
    ]
    if len(left) == 1:
        calls.append(copying(*left[0]))
    elif left:
        calls.append(partial(put, *zip(*left, strict=True)))
    return calls


def copying(target: Array, source: Array) -> Callable[[], object]:
    """Return a copy as a call, which takes half as long as one of `np.copyto`."""
    source, target = _seen_simply(source, target)
    return partial(target.__setitem__, ... if target.ndim else (), source)


def _elementwise(
    function: np.ufunc, arguments: Sequence[Any], out: Array
) -> list[Callable[[], object]]:
    """Return a ufunc as calls; a named argument would take almost as long as a call."""
    *operands, target = _seen_simply(*arguments, out)
    if target.ndim or not any(np.may_share_memory(x, target) for x in operands):
        return [partial(function, *operands, target)]
    # Of one element in place numpy takes three times as long as elsewhere.
    made = np.empty_like(target)
    return [partial(function, *operands, made), copying(target, made)]


def _seen_simply(*given: Any) -> list[Array]:
    """Return arrays as views of the fewest dimensions, in the order of the last one's memory.

    All broadcast to that one; what is stored once becomes an array without dimensions. Numpy's loop
    over one dimension, or over row-major arrays, starts three times as fast as over several.
    """
    arrays = [np.asarray(x) for x in given]
    shape = arrays[-1].shape
    if arrays[-1].size == 1 and all(x.size == 1 for x in arrays):
        return [x.reshape(()) for x in arrays]
    if all(not x.ndim or (x.shape == shape and x.flags.c_contiguous) for x in arrays):
        return arrays
    if not arrays[-1].size or any(x.ndim > len(shape) for x in arrays):
        return arrays
    spread = [*(np.broadcast_to(x, shape) for x in arrays[:-1]), arrays[-1]]
    kept = [d for d, n in enumerate(shape) if n > 1]
    sizes: list[int] = []
    steps: list[list[int]] = []
    """Of each dimension that is left: the strides of all arrays."""
    for d in sorted(kept, key=lambda d: -abs(arrays[-1].strides[d])):
        here = [x.strides[d] for x in spread]
        if steps and all(a == b * shape[d] for a, b in zip(steps[-1], here, strict=True)):
            sizes[-1] *= shape[d]
            steps[-1] = here
        else:
            sizes.append(shape[d])
            steps.append(here)
    strides = [*zip(*steps, strict=True)]
    return [
        as_strided(x, sizes, each) if any(each) else as_strided(x, (), ())
        for x, each in zip(spread, strides, strict=True)
    ]


NAMED_OUT = (np.maximum, np.minimum)
"""Ufuncs that are to be told by name where to write (numpy 2 deprecates the other way)."""


def _may_write(
    call: Call, place: Array, position: int, last: Mapping[int, int], operands: Sequence[Array]
) -> bool:
    """Whether a result's place takes it, before later calls read operands that may lie there."""
    if place.shape != call.shape or (call.dtype is not None and place.dtype != call.dtype):
        return False
    if call.takes_out and not (place.flags.c_contiguous or isinstance(call.function, np.ufunc)):
        return False
    until = position if call.in_place or not call.takes_out else position - 1
    read = (x for k, x in enumerate(operands) if last.get(k, -1) > until)
    return not any(np.may_share_memory(place, x) for x in read)


def _write(out: Array, compute: Callable[[], Any]) -> None:
    computed = compute()
    if computed is not out:
        out[...] = computed


def _write_each(outs: Sequence[Array], compute: Callable[[], Sequence[Array]]) -> None:
    put(outs, compute())


def _last_reads(straight: Straight) -> dict[int, int]:
    """Return the last call that reads each value, or a view of it; results are read at the end."""
    end = len(straight.calls)
    last = dict.fromkeys(straight.results, end)
    for position, call in reversed([*enumerate(straight.calls)]):
        reads = position if call.is_fresh else max(position, last.get(call.number, position))
        for x in call.arguments:
            last[x] = max(last.get(x, -1), reads)
    return last


def _give_back(
    numbers: Sequence[int],
    buffer_of: dict[int, Array],
    free: dict[tuple[Sizes, np.dtype[Any]], list[Array]],
) -> None:
    for number in numbers:
        buffer = buffer_of.pop(number)
        free.setdefault((buffer.shape, buffer.dtype), []).append(buffer)


def _takes(place: Array | None, buffer: Array | None, read_later: Sequence[Array]) -> bool:
    """Whether a place for a result takes what would go to a buffer."""
    return (
        place is not None
        and buffer is not None
        and place.shape == buffer.shape
        and place.dtype == buffer.dtype
        and place.flags.c_contiguous
        and not any(np.may_share_memory(place, x) for x in read_later)
    )
