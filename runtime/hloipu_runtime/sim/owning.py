"""Whether an array is held by its last user alone, who may then write into it or give it away.

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


def _view_references() -> int:
    view = np.empty(2)[:1]
    base = view.base
    return sys.getrefcount(base)


_VIEW_REFERENCES = _view_references()
"""The view's, the name, and the argument."""
