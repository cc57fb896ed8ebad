"""Comparisons of arrays that compare shapes and types, too; `conftest` puts them in numpy's place.

`numpy.testing` compares a scalar with all elements of an array, and numbers whatever their type.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

_LITERALS = (bool, int, float, complex, list, tuple)
_DEFAULTS = tuple(map(np.dtype, ("i8", "f8", "c16")))
"""Types in which references are computed, and of which numbers in a test's text are."""


def require_alike(found: Any, wanted: Any, said: str = "arrays") -> None:
    """Expect one shape, and one type unless a reference is wider than what is compared with it.

    A reference in numpy's own default types stands for narrower ones of its kind, numbers in a
    test's text for every type that holds them.
    """
    a, b = np.asarray(found), np.asarray(wanted)
    assert a.shape == b.shape, f"{said}: shapes {a.shape} and {b.shape} differ"
    if isinstance(wanted, _LITERALS) or a.dtype == b.dtype:
        return
    is_wider = b.dtype in _DEFAULTS and np.can_cast(a.dtype, b.dtype)
    is_reference = is_wider and a.dtype.kind in _KINDS[b.dtype.kind]
    assert is_reference, f"{said}: {a.dtype} is not {b.dtype}"


_KINDS = {"i": "iu", "f": "fV", "c": "c"}
"""By the kind of a reference, the kinds that it stands for; V: floats that numpy has not."""


def strict(compare: Callable[..., None]) -> Callable[..., None]:
    """Return a comparison of `numpy.testing` that takes only what is alike."""

    @wraps(compare)
    def compared(actual: Any, desired: Any, *arguments: Any, **settings: Any) -> None:
        __tracebackhide__ = True
        require_alike(actual, desired)
        compare(actual, desired, *arguments, **settings)

    return compared


def assert_close(ours: Sequence[Any], theirs: Any) -> None:
    """Expect as many arrays, of the same shapes, near those of a reference in float32."""
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert np.shape(a) == np.shape(b)
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5 * max(1.0, float(np.abs(b).max())))
