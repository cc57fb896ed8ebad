"""Whether an array has one owner, who may overwrite it or give it away.

Writing into a transposed view would make later steps walk memory across, so it counts as held.
"""

import sys

import numpy as np

from hloipu_runtime.program.program import Array


def is_held_alone(array: Array, references: int) -> bool:
    """Whether an array, or the one that it is a row-major view of, is held by nobody else.

    `references` is what `references_here` counts of an array that is held as this one would be.
    """
    if sys.getrefcount(array) > references or not array.flags.writeable:
        return False
    base = array.base
    if base is None:
        return True
    if type(base) is not np.ndarray or base.base is not None or not array.flags.c_contiguous:
        return False
    return sys.getrefcount(base) <= _VIEW_REFERENCES


def references_here(array: Array) -> int:
    """Count the references to an array as `is_held_alone` does."""
    return sys.getrefcount(array)


def first_held_alone(*arrays: Array) -> Array | None:
    """Return the first of some arrays that is held by nobody but the name that it was given by."""
    for array in arrays:
        if is_held_alone(array, _NAMED_REFERENCES):
            return array
    return None


def _named_references() -> int:
    def count(*arrays: Array) -> int:
        for array in arrays:
            references = references_here(array)
        return references

    named = np.empty(1)
    return count(named)


_NAMED_REFERENCES = _named_references()
"""Of an array that only the caller's name holds."""


def _view_references() -> int:
    view = np.empty(2)[:1]
    base = view.base
    return sys.getrefcount(base)


_VIEW_REFERENCES = _view_references()
"""The view's, the name, and the argument."""
