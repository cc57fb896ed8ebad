"""Arguments of a module, from files or at random."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from hloipu_compiler.interpret.planning.site import array_leaves
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.plan.entry_arrays import parameter_arrays
from hloipu_runtime.atomic_file import replacing
from hloipu_runtime.errors import StreamError, UsageError
from hloipu_runtime.kernels.core.storage import bits_dtype, user_dtype
from hloipu_runtime.plain_text import printable
from hloipu_runtime.streams.binding import keys_of
from hloipu_runtime.streams.files import ArrayFile, array_file, unreadable

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
    """Read argument leaves from an .npz file: by parameter name or path, or as in_0, in_1, ….

    bf16, f8 and other types that numpy cannot name may be stored as unsigned integers of their
    width. Raises UsageError where an array is missing or does not fit.
    """
    wanted = parameter_leaves(module)
    shapes = [shape for _, shape in wanted]
    paths = iter(parameter_arrays(module))
    names = [
        [name, f"in_{number}", name if shape.element_type.name == "token" else next(paths).name]
        for number, (name, shape) in enumerate(wanted)
    ]
    with stored_arrays(path) as stored:
        return [
            stored.leaf(key, shape, f"parameter {number}")
            for number, (key, shape) in enumerate(
                zip(stored.keys_of(names, shapes), shapes, strict=True)
            )
        ]


class StoredArrays:
    """Arrays of an open .npz file; each is compared with what is wanted before it is unpacked."""

    def __init__(self, file: ArrayFile) -> None:
        self._file = file
        self.names: frozenset[str] = frozenset(file.names)

    def keys_of(
        self,
        names: Sequence[Sequence[str]],
        shapes: Sequence[ArrayShape],
        numbers: Sequence[int] | None = None,
    ) -> list[str]:
        """Return the name in the file of each parameter, as `streams.binding.keys_of` does.

        Raises UsageError E3107 where one has none, or it is not clear which.
        """
        chosen = []
        for at, key in enumerate(keys_of(names, self.names)):
            if key is None:
                keys = " or ".join(map(repr, dict.fromkeys(names[at])))
                number = at if numbers is None else numbers[at]
                raise UsageError(
                    "E3107",
                    f"{printable(self._file.path)}: no array for parameter {number} "
                    f"{names[at][0]!r} ({shapes[at]}), or it is not clear which",
                    hint=f"store it under {keys}; there are {sorted(self.names)[:8]}",
                )
            chosen.append(key)
        return chosen

    def shape(self, key: str) -> tuple[int, ...]:
        """Return an array's shape."""
        return tuple(self._file.stored(key).shape)

    def leaf(self, key: str, shape: ArrayShape, described: str, code: str = "") -> Array:
        """Return an array that is to be of some shape, raw bits read as the type they stand for.

        Raises UsageError E3102 where its header says another shape, E3103 where it says another
        type. `code`: that of both errors.
        """
        stored = self._file.stored(key)
        if stored.shape != shape.dimensions:
            raise UsageError(
                code or "E3102",
                f"{described} is {shape.without_layout()}, an array of shape "
                f"{list(stored.shape)} was given",
                hint="give an array of exactly that shape",
            )
        dtype = user_dtype(shape.element_type.name)
        if not _stands_for(stored.dtype, shape.element_type.name):
            raise UsageError(
                code or "E3103",
                f"{described} is {shape.without_layout()}, an array of {stored.dtype} was given",
                hint=f"convert it first: x.astype({dtype.name!r})",
            )
        array = self._file.read(key)
        # A copy: the file may change, or be written, while its values are in use.
        return as_user_dtype(
            np.array(array) if isinstance(array, np.memmap) else array, shape.element_type.name
        )


@contextmanager
def stored_arrays(path: str) -> Iterator[StoredArrays]:
    """Open an .npz file; whatever goes wrong while it is read is a UsageError naming it."""
    try:
        with array_file(path) as file:
            if not file.is_archive:
                raise unreadable(path, "it is no .npz file")
            yield StoredArrays(file)
    except StreamError as error:
        raise UsageError(
            "E3108", error.message, hint="give a file that numpy.savez wrote"
        ) from error


def as_user_dtype(array: Array, element_type: str) -> Array:
    """View stored raw bits as the type they stand for; anything else is returned unchanged."""
    dtype = user_dtype(element_type)
    return array.view(dtype) if _stands_for(array.dtype, element_type) else array


def _stands_for(stored: np.dtype[Any], element_type: str) -> bool:
    """Whether stored elements are of a type, or the raw bits of such."""
    dtype = user_dtype(element_type)
    if stored == dtype:
        return True
    if stored.kind == "V":
        return stored.itemsize == dtype.itemsize and stored.fields is None and not stored.subdtype
    return stored.kind == "u" and stored == bits_dtype(element_type)


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


def save_arrays(
    path: str, arrays: Sequence[Array] | Mapping[int, Array], prefix: str = "out"
) -> None:
    """Write arrays as out_0, out_1, … or by their numbers to an .npz file, whole or not at all.

    Types that numpy cannot name are stored as unsigned integers of their width. Raises UsageError
    where the file cannot be written.
    """
    numbered = arrays.items() if isinstance(arrays, Mapping) else enumerate(arrays)
    named = {f"{prefix}_{number}": _storable(array) for number, array in numbered}
    with replacing(path) as stream:
        np.savez(stream, **named)  # type: ignore[arg-type]


def _storable(array: Array) -> Array:
    if array.dtype.isbuiltin == 1:
        return array
    return array.view(f"u{array.dtype.itemsize}")
