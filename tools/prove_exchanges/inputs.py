"""What programs are run on: arrays drawn port by port, the same everywhere, or a step's own."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from zlib import crc32

import numpy as np

from hloipu_runtime.element_types import ELEMENT_TYPES, Kind
from hloipu_runtime.kernels.core.storage import to_storage, user_dtype
from hloipu_runtime.program.program import Array, Port

Streams = dict[str, tuple[Array, ...]]
"""What each stream to the device carries, element after element, in storage form."""


@dataclass(frozen=True)
class Given:
    """What one run begins with."""

    streams: tuple[Streams, ...]
    """Of each participant."""
    states: tuple[dict[str, Array], ...] = ()
    """Of each participant, by name; none for a program without state."""


@dataclass
class Fed:
    """A host that hands out elements in order, the last one again and again."""

    streams: Streams
    given: dict[str, list[Array]] = field(default_factory=dict)
    """What the device gave, by stream."""
    taken: dict[str, int] = field(default_factory=dict)

    def take(self, stream: str) -> Array:
        """Return the next element of a stream to the device."""
        number = self.taken[stream] = self.taken.get(stream, -1) + 1
        elements = self.streams[stream]
        return elements[min(number, len(elements) - 1)]

    def give(self, stream: str, value: Array) -> None:
        """Keep an element from the device."""
        self.given.setdefault(stream, []).append(np.array(value))


def of_one(arrays: dict[str, Array]) -> Given:
    """Return what a program without state takes once."""
    return Given(({stream: (array,) for stream, array in arrays.items()},))


def inputs_for(name: str, ports: tuple[Port, ...], number: int) -> Given:
    """Draw arrays in storage form; a program's are the same on every machine and in every run."""
    return of_one(
        {
            port.stream: _array(port, _source(name, number, n), number)
            for n, port in enumerate(ports)
        }
    )


def varied(name: str, given: Given, number: int) -> Given:
    """Return other inputs of a step's own kind: floats up to half larger or smaller, no zeros.

    Whole numbers stay, which may be indices or counts. All participants have the same weights.
    """
    places: Iterator[int] = iter(range(1 << 30))

    def other(array: Array, place: int) -> Array:
        if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
            return array
        unit = _units(_source(name, number, place), array.shape)
        moved = np.where(array == 0, unit * 0.25 + 0.01, array.astype(np.float64) * (0.5 + unit))
        return moved.astype(array.dtype)

    states = tuple(
        {port: other(array, n) for n, (port, array) in enumerate(state.items())}
        for state in given.states
    )
    streams = tuple(
        {
            stream: tuple(other(array, 1000 + next(places)) for array in elements)
            for stream, elements in each.items()
        }
        for each in given.streams
    )
    return Given(streams, states)


def _source(name: str, number: int, place: int) -> np.random.PCG64:
    return np.random.PCG64(crc32(f"{name}#{number}#{place}".encode()))


def _units(source: np.random.PCG64, shape: tuple[int, ...]) -> Array:
    """Draw numbers from 0 to 1."""
    count = int(np.prod(shape, dtype=np.int64))
    words = np.asarray(source.random_raw(count), np.uint64).reshape(shape) >> np.uint64(40)
    return words.astype(np.float64) / 2**24


def _array(port: Port, source: np.random.PCG64, number: int) -> Array:
    """Draw numbers between -1 and 1, or between 1/2 and 2; small whole ones, or large ones."""
    count = int(np.prod(port.shape, dtype=np.int64))
    words = np.asarray(source.random_raw(count), np.uint64).reshape(port.shape) >> np.uint64(40)
    kind = ELEMENT_TYPES[port.element_type]
    if kind.kind is Kind.PREDICATE:
        drawn = words % np.uint64(2) == 1
    elif kind.is_integer:
        most = min((1, 3, 9, 100)[number % 4], 2 ** (kind.bits - 1) - 1)
        drawn = (words % np.uint64(most + 1)).astype(np.int64)
    else:
        unit = words.astype(np.float64) / 2**24
        drawn = unit * 2 - 1 if number % 2 == 0 else unit * 1.5 + 0.5
        if kind.is_complex:
            drawn = drawn + 1j * unit[::-1] if unit.ndim else drawn + 0.5j
    return to_storage(drawn.astype(user_dtype(port.element_type)), port.element_type)
