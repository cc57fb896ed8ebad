"""Sources of arrays in memory or mapped from files: element i is row i of every leaf."""

import os
from collections.abc import Iterator
from mmap import mmap
from typing import Any, Literal, NamedTuple

import numpy as np

from hloipu_runtime.arguments import Number, checked
from hloipu_runtime.errors import StreamError
from hloipu_runtime.streams.files import mapped_arrays, unreadable
from hloipu_runtime.streams.source import Element, Source, positive
from hloipu_runtime.streams.structure import Structure, flatten, rebuild

Array = np.ndarray[Any, Any]
_COPIED_BYTES = 1 << 16
"""Of a mapped file at once. Assumed: a part of the cache of any host, and many small rows."""


class Rows(Source):
    """Rows of arrays, as views; shuffled ones and small ones of files are gathered."""

    quick = True

    def __init__(
        self, leaves: list[Array], structure: Structure, seed: int | None = None, number: int = 0
    ) -> None:
        self.leaves = leaves
        self.structure = structure
        self.seed = seed
        self.number = number
        self._maps = tuple(mapped for leaf in leaves if (mapped := _map_of(leaf)) is not None)
        # Plain views of mapped files: each slice of a memmap object costs ten times a view's.
        self._views = [np.asarray(leaf).view(np.ndarray) for leaf in leaves]

    def __reduce__(self) -> tuple[Any, ...]:
        """Go to other processes: whole files that are mapped by their names, all else as it is."""
        leaves = [_File.of(leaf) or np.array(leaf) for leaf in self.leaves]
        return _rows_from, (leaves, self.structure, self.seed, self.number)

    @property
    def count(self) -> int:
        """Rows."""
        return len(self.leaves[0])

    def elements(self, skip: int = 0) -> Iterator[Element]:
        """Return row after row."""
        for parts in self._parts(skip, self.count, 1):
            for row in range(len(parts[0])):
                yield self._element([part[row] for part in parts])

    def batches(self, size: int, drop_remainder: bool, skip: int) -> Iterator[Element]:
        """Return views of neighbouring rows, or rows gathered where they are shuffled."""
        last = self.count - self.count % size if drop_remainder else self.count
        for parts in self._parts(skip * size, last, size):
            for at in range(0, len(parts[0]), size):
                yield self._element([part[at : at + size] for part in parts])

    def _parts(self, first: int, last: int, size: int) -> Iterator[list[Array]]:
        """Return rows of all arrays, many at once, in whole batches of a size.

        Those of mapped files are copied, right after it is sure that they are still there, unless
        a batch is larger than what is copied at once.
        """
        order = self._order()
        row_bytes = sum(leaf.nbytes for leaf in self.leaves) // max(1, self.count)
        step = size * max(1, _COPIED_BYTES // max(1, row_bytes * size))
        if order is None and not self._maps:
            step = max(1, last - first)
        for at in range(first, last, step):
            self._require_whole()
            rows = slice(at, min(at + step, last))
            if order is not None:
                yield [leaf[order[rows]] for leaf in self._views]
            elif self._maps and step > size:
                yield [np.array(leaf[rows]) for leaf in self._views]
            else:
                yield [leaf[rows] for leaf in self._views]

    @checked
    def shuffle(self, seed: Number, buffer: int = 1024) -> Source:
        """Return the rows in an order drawn from `seed`; every order is equally likely."""
        if self.seed is not None:
            return super().shuffle(seed, buffer)
        positive(buffer, "shuffle")
        return Rows(self.leaves, self.structure, seed)

    def with_pass(self, number: int) -> Source:
        """Return the rows in the order of another pass."""
        return self if self.seed is None else Rows(self.leaves, self.structure, self.seed, number)

    def _order(self) -> Array | None:
        if self.seed is None:
            return None
        return np.random.default_rng((self.seed, self.number)).permutation(self.count)

    def _require_whole(self) -> None:
        """Raise StreamError E2032 where a file is shorter than it was: reading ends the process."""
        for mapped, end, path in self._maps:
            if mapped.size() < end:
                raise unreadable(path, "it has become shorter since it was opened")

    def _element(self, leaves: list[Array]) -> Element:
        return leaves[0] if self.structure.kind == "leaf" else rebuild(self.structure, leaves)


class _File(NamedTuple):
    """An array that is mapped from a file, for a process that has the file, too."""

    path: str
    dtype: np.dtype[Any]
    offset: int
    shape: tuple[int, ...]
    order: Literal["C", "F"]

    @classmethod
    def of(cls, array: Array) -> "_File | None":
        """Return where an array is mapped from; None for one in memory, or a part of a map."""
        if not isinstance(array, np.memmap) or not isinstance(array.base, mmap):
            return None
        order: Literal["C", "F"] = "C" if array.flags.c_contiguous else "F"
        path = os.path.abspath(str(array.filename))
        return cls(path, array.dtype, array.offset, array.shape, order)

    def mapped(self) -> Array:
        """Return the array here; StreamError E2032 where the file is not, or is too short."""
        try:
            array: Array = np.memmap(
                self.path, self.dtype, "r", self.offset, self.shape, self.order
            )
        except (OSError, ValueError) as error:
            raise unreadable(self.path, str(error)) from error
        return array


def _rows_from(leaves: list[Any], structure: Structure, seed: int | None, number: int) -> Rows:
    there = [leaf.mapped() if isinstance(leaf, _File) else leaf for leaf in leaves]
    return Rows(there, structure, seed, number)


def _map_of(array: Array) -> tuple[mmap, int, str] | None:
    """Return an array's map of a file, where it ends in the file at least, and the file's path."""
    if not isinstance(array, np.memmap):
        return None
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if not isinstance(base, mmap):  # a copy
        return None
    return base, array.offset + array.nbytes, str(array.filename)


@checked
def from_arrays(arrays: Any) -> Rows:
    """Return the source of the rows of one array, or of nested arrays of equal length.

    Raises StreamError E2031 where there is no array, one is a scalar, or lengths differ.
    """
    leaves, structure = flatten(arrays)
    leaves = [leaf if isinstance(leaf, np.memmap) else np.asarray(leaf) for leaf in leaves]
    if not leaves:
        raise StreamError("E2031", "a source of arrays is given none", expected="an array")
    lengths = {leaf.shape[0] if leaf.ndim else None for leaf in leaves}
    if len(lengths) != 1 or None in lengths:
        shapes = ", ".join(str(leaf.shape) for leaf in leaves)
        raise StreamError(
            "E2031",
            f"arrays of one source must have as many rows as each other; shapes: {shapes}",
            expected="equal first sizes",
            found=shapes,
            hint="choose arrays of a file: from_file(path, names), --infeed NAME=FILE:ARRAY,…, "
            "or feed-bench --arrays",
        )
    return Rows(leaves, structure)


@checked
def from_file(path: str, names: tuple[str, ...] = ()) -> Rows:
    """Return the source of the rows in an .npy or .npz file, mapped where it is not compressed.

    Elements of an .npz file are dictionaries by array name, or tuples of `names` in that order.
    Raises StreamError E2032 where the file cannot be read or a name is not in it.
    """
    arrays = mapped_arrays(path, names)
    if not names or not isinstance(arrays, dict):
        return from_arrays(arrays)
    columns = tuple(arrays[name] for name in names)
    return from_arrays(columns[0] if len(columns) == 1 else columns)
