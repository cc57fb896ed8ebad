"""Sources from iterables, functions and generated data."""

from collections.abc import Callable, Iterable, Iterator
from itertools import count, repeat
from typing import Any

import numpy as np

from hloipu_runtime.arguments import Seed, checked
from hloipu_runtime.element_types import ELEMENT_TYPES, Kind
from hloipu_runtime.errors import StreamError
from hloipu_runtime.kernels.core.storage import user_dtype
from hloipu_runtime.streams.arrays import from_arrays
from hloipu_runtime.streams.element import ElementSpec, LeafSpec
from hloipu_runtime.streams.source import Element, Source, discard
from hloipu_runtime.streams.structure import rebuild

Array = np.ndarray[Any, Any]


class Iterated(Source):
    """The elements of an iterable; iterators and generators have one pass only."""

    def __init__(self, iterable: Iterable[Element]) -> None:
        self.iterable = iterable

    def elements(self, skip: int = 0) -> Iterator[Element]:
        """Return what the iterable gives."""
        return discard(iter(self.iterable), skip) if skip else iter(self.iterable)


class Called(Source):
    """Element i is a function of i; it never ends unless the function raises StopIteration."""

    def __init__(self, function: Callable[[int], Element]) -> None:
        self.function = function

    def elements(self, skip: int = 0) -> Iterator[Element]:
        """Call for each element."""
        for number in count(skip):
            try:
                element = self.function(number)
            except StopIteration:
                return
            yield element


class Drawn(Source):
    """Made-up data: element i depends on the seed and on i alone."""

    quick = True

    def __init__(self, spec: ElementSpec, seed: int) -> None:
        self.spec = spec
        self.seed = seed

    def elements(self, skip: int = 0) -> Iterator[Element]:
        """Draw floats from the normal distribution, integers from 0 or 1."""
        for number in count(skip):
            rng = np.random.default_rng((self.seed, number))
            yield _nested(self.spec, [_drawn(leaf, rng) for leaf in self.spec.leaves])


class Same(Source):
    """The same element for ever."""

    quick = True

    def __init__(self, element: Element) -> None:
        self.element = element

    def elements(self, skip: int = 0) -> Iterator[Element]:
        """Return it for ever."""
        return repeat(self.element)


@checked
def from_iterable(iterable: Iterable[Element]) -> Source:
    """Return the source of an iterable's elements.

    Elements are handed on without copies: an iterable that fills one buffer again and again must
    copy it first, for instance by `.map(numpy.copy)`.
    """
    return Iterated(iterable)


@checked
def from_callable(function: Callable[[int], Element]) -> Source:
    """Return the source whose element i is `function(i)`."""
    return Called(function)


@checked
def synthetic(spec: ElementSpec, seed: Seed = 0) -> Source:
    """Return a source of made-up values for performance runs."""
    return Drawn(spec, seed)


@checked
def null_feed(spec: ElementSpec) -> Source:
    """Return a source of zeros, which costs the host nothing."""
    arrays = []
    for leaf in spec.leaves:
        array = np.zeros(leaf.shape, user_dtype(leaf.element_type))
        array.flags.writeable = False
        arrays.append(array)
    return Same(_nested(spec, arrays))


@checked
def source_of(data: Any) -> Source:
    """Return a source of whatever is given: source, arrays, function, iterable.

    An array, or a tuple or dictionary of arrays, is one source of rows. A list, an iterator or any
    other iterable gives its own elements. Raises StreamError E2031 for anything else.
    """
    if isinstance(data, Source):
        return data
    if isinstance(data, np.ndarray) or (isinstance(data, tuple | dict) and _all_arrays(data)):
        return from_arrays(data)
    if isinstance(data, str | bytes | dict):
        raise _no_source(data)
    if isinstance(data, Iterable):
        return Iterated(data)
    if callable(data):
        return Called(data)
    raise _no_source(data)


def _all_arrays(data: tuple[Any, ...] | dict[Any, Any]) -> bool:
    parts = data.values() if isinstance(data, dict) else data
    return bool(parts) and all(isinstance(part, np.ndarray) for part in parts)


def _no_source(data: Any) -> StreamError:
    return StreamError(
        "E2031",
        f"a {type(data).__name__} is not a source of elements",
        expected="arrays, an iterable, a function of the element's number, or a Source",
        found=type(data).__name__,
        hint="files are opened by from_file(path)",
    )


def _nested(spec: ElementSpec, arrays: list[Array]) -> Element:
    return tuple(arrays) if spec.structure is None else rebuild(spec.structure, arrays)


def _drawn(leaf: LeafSpec, rng: np.random.Generator) -> Array:
    kind = ELEMENT_TYPES[leaf.element_type].kind
    dtype = user_dtype(leaf.element_type)
    if kind in (Kind.FLOAT, Kind.COMPLEX):
        values = rng.standard_normal(leaf.shape, np.float32)
        # The one float without a sign.
        return (np.abs(values) if leaf.element_type == "f8e8m0fnu" else values).astype(dtype)
    # 0 and 1 are values of every integer type, of classes and of truth.
    bits = rng.integers(0, 2, leaf.shape, np.uint8)
    return (-bits.view(np.int8) if leaf.element_type == "s1" else bits).astype(dtype)
