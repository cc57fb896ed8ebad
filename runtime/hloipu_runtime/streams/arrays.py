"""Sources of arrays in memory or mapped from files: element i is row i of every leaf."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from hloipu_runtime.arguments import Number, checked
from hloipu_runtime.errors import StreamError
from hloipu_runtime.streams.files import mapped_arrays
from hloipu_runtime.streams.source import Element, Source, positive
from hloipu_runtime.streams.structure import Structure, flatten, rebuild

Array = np.ndarray[Any, Any]


class Rows(Source):
    """Rows of arrays, as views; shuffled ones and their batches are gathered."""

    quick = True

    def __init__(
        self,
        leaves: list[Array],
        structure: Structure,
        seed: int | None = None,
        number: int = 0,
    ) -> None:
        self.leaves = leaves
        self.structure = structure
        self.seed = seed
        self.number = number

    @property
    def count(self) -> int:
        """Rows."""
        return len(self.leaves[0])

    def elements(self, skip: int = 0) -> Iterator[Element]:
        """Return row after row."""
        order = self._order()
        for at in range(skip, self.count):
            row = at if order is None else order[at]
            yield self._element([leaf[row] for leaf in self.leaves])

    def batches(self, size: int, drop_remainder: bool, skip: int) -> Iterator[Element]:
        """Return views of neighbouring rows, or rows gathered where they are shuffled."""
        order = self._order()
        last = self.count - self.count % size if drop_remainder else self.count
        for at in range(skip * size, last, size):
            if order is None:
                yield self._element([leaf[at : at + size] for leaf in self.leaves])
            else:
                rows = order[at : at + size]
                yield self._element([leaf[rows] for leaf in self.leaves])

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

    def _element(self, leaves: list[Array]) -> Element:
        return leaves[0] if self.structure.kind == "leaf" else rebuild(self.structure, leaves)


@checked
def from_arrays(arrays: Any) -> Rows:
    """Return the source of the rows of one array, or of nested arrays of equal length.

    Raises StreamError E2031 where there is no array, one is a scalar, or lengths differ.
    """
    leaves, structure = flatten(arrays)
    # A plain view of a mapped file: each slice of a memmap object costs ten times a view's.
    leaves = [np.asarray(leaf).view(np.ndarray) for leaf in leaves]
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
    found = tuple(arrays[name] for name in names)
    return from_arrays(found[0] if len(found) == 1 else found)
