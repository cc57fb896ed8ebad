"""Arguments for a module from files or at random, as the command line gives them."""

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from hloipu_compiler.evaluate.site import array_leaves
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_runtime.atomic_file import replacing
from hloipu_runtime.errors import UsageError
from hloipu_runtime.kernels.storage import bits_dtype, user_dtype

Array = np.ndarray[Any, Any]


def parameter_leaves(module: Module) -> list[tuple[str, ArrayShape]]:
    """Return (parameter name, shape) of every leaf of the entry's parameters, in order."""
    entry = module.entry
    return [
        (entry.instructions[position].name, leaf)
        for position in entry.parameters
        for leaf in array_leaves(entry.instructions[position].shape)
    ]


def load_arguments(path: str, module: Module) -> list[Array]:
    """Read argument leaves from an .npz file: by parameter name, or as in_0, in_1, ….

    bf16, f8 and other types that numpy cannot name may be stored as unsigned integers of their
    width. Raises UsageError where an array is missing or does not fit.
    """
    wanted = parameter_leaves(module)
    with stored_arrays(path) as given:
        names = set(given.files)
        leaves = []
        for number, (name, shape) in enumerate(wanted):
            key = name if name in names else f"in_{number}"
            if key not in names:
                raise UsageError(
                    "E3107",
                    f"{path}: no array for parameter {number} {name!r} ({shape})",
                    hint=f"store it under {name!r} or {key!r}; there are {sorted(names)[:8]}",
                )
            leaves.append(as_user_dtype(given[key], shape.element_type.name))
        return leaves


@contextmanager
def stored_arrays(path: str) -> Iterator[np.lib.npyio.NpzFile]:
    """Open an .npz file; whatever goes wrong while it is read is a UsageError naming it."""
    try:
        with open(path, "rb") as file, np.lib.npyio.NpzFile(file, allow_pickle=False) as given:
            yield given
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UsageError(
            "E3108",
            f"cannot read arrays from {path!r}: {error}",
            hint="give a file that numpy.savez wrote",
        ) from error


def as_user_dtype(array: Array, element_type: str) -> Array:
    """Read stored raw bits as the type they stand for; anything else is returned as it is."""
    array = np.asarray(array)  # members of a zip file that are no arrays come as bytes
    dtype = user_dtype(element_type)
    if (
        array.dtype != dtype and array.dtype == bits_dtype(element_type)
    ) or array.dtype.kind == "V":
        return array.view(dtype)
    return array


def grouped(module: Module, leaves: Sequence[Array]) -> list[Any]:
    """Group argument leaves by entry parameter; tuples become lists."""
    arguments: list[Any] = []
    at = 0
    for shape in module.entry.program_shape.parameters:
        count = len(array_leaves(shape))
        mine = list(leaves[at : at + count])
        arguments.append(mine[0] if isinstance(shape, ArrayShape) else mine)
        at += count
    return arguments


def flat(arguments: Sequence[Any]) -> list[Array]:
    """Return the leaves of arguments, tuples opened."""
    leaves: list[Array] = []
    for argument in arguments:
        leaves += argument if isinstance(argument, list) else [argument]
    return leaves


def save_arrays(path: str, arrays: Sequence[Array], prefix: str = "out") -> None:
    """Write arrays as out_0, out_1, … to an .npz file, whole or not at all.

    Types that numpy cannot name are stored as unsigned integers of their width. Raises UsageError
    where the file cannot be written.
    """
    named = {f"{prefix}_{i}": _storable(x) for i, x in enumerate(arrays)}
    with replacing(path) as stream:
        np.savez(stream, **named)  # type: ignore[arg-type]


def _storable(array: Array) -> Array:
    if array.dtype.isbuiltin == 1:
        return array
    return array.view(f"u{array.dtype.itemsize}")
