"""Shared parts of LAPACK calls: attributes, and loops over a batch."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hloipu_runtime.errors import UsageError
from hloipu_runtime.kernels.core.blocks import Array


def letter(attributes: Mapping[str, object], name: str) -> str:
    """Return an attribute that is one letter, given as its code or as a string."""
    value = attributes.get(name)
    if isinstance(value, str) and len(value) == 1:
        return value
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 128:
        return chr(value)
    raise _bad(name, value, "a letter, as in `uplo = 76 : ui8`")


def integer(attributes: Mapping[str, object], name: str) -> int:
    """Return an integer attribute."""
    value = attributes.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise _bad(name, value, "an integer")


def flag(attributes: Mapping[str, object], name: str) -> bool:
    """Return a boolean attribute."""
    value = attributes.get(name)
    if isinstance(value, (bool, int)):
        return bool(value)
    raise _bad(name, value, "true or false")


def _bad(name: str, value: object, expected: str) -> UsageError:
    problem = "is missing" if value is None else f"is {value!r}"
    return UsageError(
        "E0458",
        f"attribute {name} of a LAPACK custom call {problem}; expected {expected}",
        hint="the attributes come from backend_config; compare with a program printed by JAX",
    )


def info_of(batch: Sequence[int]) -> Array:
    """Return LAPACK's success for every matrix of the batch."""
    return np.zeros(tuple(batch), np.int32)


INT32: np.dtype[Any] = np.dtype(np.int32)
