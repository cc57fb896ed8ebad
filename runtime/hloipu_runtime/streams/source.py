"""Sources of elements, with repeat, shuffle, batch, map and take."""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from hloipu_runtime.arguments import Number, checked
from hloipu_runtime.errors import StreamError
from hloipu_runtime.streams.structure import flatten, rebuild

Element = Any
"""An array, or tuples, lists and dictionaries of arrays."""


class Source:
    """Gives the elements of one pass, in order; a new pass gives them again.

    `elements(skip)` must leave out exactly the first `skip` elements that it would give, so that a
    run can be resumed where it was left.
    """

    quick: bool = False
    """Whether elements are made at once and without code of the user's: no thread pays for it."""

    @property
    def count(self) -> int | None:
        """Elements of one pass; None: not known before, or no end."""
        return None

    def elements(self, skip: int = 0) -> Iterator[Element]:
        """Return one pass over the elements from number `skip` on."""
        raise NotImplementedError

    @checked
    def repeat(self, times: int) -> "Source":
        """Return `times` passes, one after the other."""
        return Repeated(self, positive(times, "repeat"))

    def wrap(self) -> "Source":
        """Return a source without an end: after the last element comes the first."""
        return Repeated(self, None)

    @checked
    def shuffle(self, seed: Number, buffer: int = 1024) -> "Source":
        """Return the elements in an order drawn from `seed`, another one in each pass.

        Elements in memory are permuted as a whole; of others, `buffer` are held to draw from.
        """
        return Shuffled(self, seed, positive(buffer, "shuffle"))

    @checked
    def batch(self, size: int, *, drop_remainder: bool = True) -> "Source":
        """Return `size` elements at a time, stacked along a new first axis."""
        return Batched(self, positive(size, "batch"), drop_remainder)

    @checked
    def map(self, function: Callable[[Element], Element]) -> "Source":
        """Return `function` of each element."""
        return Mapped(self, function)

    @checked
    def take(self, count: Number) -> "Source":
        """Return the first `count` elements of each pass."""
        return First(self, count)

    def batches(self, size: int, drop_remainder: bool, skip: int) -> Iterator[Element]:
        """Return one pass in batches, without the first `skip` of them."""
        rows = self.elements(skip * size)
        while group := list(islice(rows, size)):
            if len(group) == size or not drop_remainder:
                yield stacked(group)

    def with_pass(self, number: int) -> "Source":
        """Return what gives pass `number`; differs for what is shuffled."""
        return self


class Repeated(Source):
    """Passes one after the other."""

    def __init__(self, inner: Source, times: int | None, first: int = 0) -> None:
        self.inner = inner
        self.times = times
        self.first = first
        """Number of the first pass: repeated again, passes go on being different."""
        self.quick = inner.quick

    @property
    def count(self) -> int | None:
        """Elements of all passes."""
        inner = self.inner.count
        return None if inner is None or self.times is None else inner * self.times

    def elements(self, skip: int = 0) -> Iterator[Element]:
        """Go through the passes; a pass without elements ends them all."""
        number, length = 0, self.inner.count
        if length:
            number, skip = divmod(skip, length)
        while self.times is None or number < self.times:
            seen = 0
            # Passes of unknown length are gone through to be skipped.
            for element in self._pass(number).elements(skip if length else 0):
                seen += 1
                if length or seen > skip:
                    yield element
            skip = 0 if length else max(0, skip - seen)
            if not seen:
                return
            number += 1

    def with_pass(self, number: int) -> Source:
        """Return the passes that follow those of earlier passes."""
        return self if self.times is None else Repeated(self.inner, self.times, number * self.times)

    def _pass(self, number: int) -> Source:
        return self.inner.with_pass(self.first + number)


class Shuffled(Source):
    """Elements drawn from a buffer; the same seed and pass give the same order."""

    def __init__(self, inner: Source, seed: int, buffer: int, number: int = 0) -> None:
        self.inner = inner
        self.seed = seed
        self.buffer = buffer
        self.number = number

    @property
    def count(self) -> int | None:
        """As many as are shuffled."""
        return self.inner.count

    def elements(self, skip: int = 0) -> Iterator[Element]:
        """Draw; elements that are left out are drawn too."""
        rng = np.random.default_rng((self.seed, self.number))
        rows = self.inner.elements()
        buffered = list(islice(rows, self.buffer))
        drawn = 0
        while buffered:
            at = int(rng.integers(len(buffered)))
            element = buffered[at]
            try:
                buffered[at] = next(rows)
            except StopIteration:
                buffered[at] = buffered[-1]
                buffered.pop()
            if drawn >= skip:
                yield element
            drawn += 1

    def with_pass(self, number: int) -> Source:
        """Return the order of another pass."""
        return Shuffled(self.inner.with_pass(number), self.seed, self.buffer, number)


class Batched(Source):
    """Elements stacked along a new first axis."""

    def __init__(self, inner: Source, size: int, drop_remainder: bool) -> None:
        self.inner = inner
        self.size = size
        self.drop_remainder = drop_remainder
        self.quick = inner.quick

    @property
    def count(self) -> int | None:
        """Whole batches, and the rest where it is kept."""
        rows = self.inner.count
        if rows is None:
            return None
        return rows // self.size if self.drop_remainder else -(-rows // self.size)

    def elements(self, skip: int = 0) -> Iterator[Element]:
        """Return the batches."""
        return self.inner.batches(self.size, self.drop_remainder, skip)

    def with_pass(self, number: int) -> Source:
        """Return the batches of another pass."""
        return Batched(self.inner.with_pass(number), self.size, self.drop_remainder)


class Mapped(Source):
    """A function of each element."""

    def __init__(self, inner: Source, function: Callable[[Element], Element]) -> None:
        self.inner = inner
        self.function = function

    @property
    def count(self) -> int | None:
        """As many as are mapped."""
        return self.inner.count

    def elements(self, skip: int = 0) -> Iterator[Element]:
        """Compute each element when it is asked for."""
        return map(self.function, self.inner.elements(skip))

    def with_pass(self, number: int) -> Source:
        """Return the function of another pass."""
        return Mapped(self.inner.with_pass(number), self.function)


class First(Source):
    """The first elements of each pass."""

    def __init__(self, inner: Source, limit: int) -> None:
        self.inner = inner
        self.limit = limit
        self.quick = inner.quick

    @property
    def count(self) -> int | None:
        """The limit, or less where the source is shorter."""
        inner = self.inner.count
        return None if inner is None else min(inner, self.limit)

    def elements(self, skip: int = 0) -> Iterator[Element]:
        """Stop at the limit."""
        return islice(self.inner.elements(skip), max(0, self.limit - skip))

    def with_pass(self, number: int) -> Source:
        """Return the first of another pass."""
        return First(self.inner.with_pass(number), self.limit)


def stacked(group: list[Element]) -> Element:
    """Return elements of equal structure as one whose leaves have them along the first axis."""
    if isinstance(group[0], np.ndarray):
        return np.stack(group)
    columns, structure = flatten(group[0])
    rows = [columns]
    for element in group[1:]:
        leaves, other = flatten(element)
        if other != structure:
            raise StreamError(
                "E2023",
                f"elements of one batch are nested differently: {structure} and {other}",
                expected=str(structure),
                found=str(other),
            )
        rows.append(leaves)
    return rebuild(structure, [np.stack(column) for column in zip(*rows, strict=True)])


def discard(rows: Iterator[Element], count: int) -> Iterator[Element]:
    """Return `rows` without the next `count` elements."""
    deque(islice(rows, count), maxlen=0)
    return rows


def positive(value: int, what: str) -> int:
    """Return a count that is at least 1; StreamError E2031 for any other."""
    if value < 1:
        raise StreamError(
            "E2031", f"{what}: {value} is given where at least 1 is needed", found=str(value)
        )
    return value
