"""Match arrays of a file with a queue's leaves."""

from collections.abc import Iterator
from pathlib import Path

from hloipu.training.datasets import batched
from hloipu_runtime.errors import StreamError
from hloipu_runtime.kernels.core.storage import user_dtype
from hloipu_runtime.plain_text import printable
from hloipu_runtime.program.program import Queue
from hloipu_runtime.session.queues import spec_of_queue
from hloipu_runtime.streams.arrays import from_file
from hloipu_runtime.streams.binding import keys_of
from hloipu_runtime.streams.element import ElementSpec, LeafSpec
from hloipu_runtime.streams.files import ArrayFile, Stored, array_file
from hloipu_runtime.streams.source import Source


def source_of(queue: Queue, file_and_arrays: str) -> Source:
    """Return a queue's source; rows are put together to batches where elements are batches.

    `file_and_arrays` is FILE, or FILE:ARRAY,… for some of its arrays in that order. Else arrays are
    taken by name: `in_N`, those of the queue's streams, or those of the parameters. Where a
    file has none of these, all its arrays are taken, and the queue tells them by type and shape.
    Raises StreamError E2032 where the file cannot be read or an array is not in it, E2031 where
    rows are not equally many, E2023 where arrays are not those of the queue.
    """
    path, mark, chosen = file_and_arrays.rpartition(":")
    names: tuple[str, ...] = ()
    if mark and chosen and not Path(file_and_arrays).exists() and Path(path).exists():
        file_and_arrays, names = path, tuple(chosen.split(","))
    spec = spec_of_queue(queue)
    with array_file(file_and_arrays) as file:
        names = names or _named_for(queue, file)
        if frozenset(names) <= frozenset(file.names):  # any other is refused by name
            _require_rows(file, queue.name, names, spec)
    return batched(from_file(file_and_arrays, names), spec)


def _named_for(queue: Queue, file: ArrayFile) -> tuple[str, ...]:
    """Return the names under which a file has what the queue takes; none where it has others."""
    if not file.is_archive:
        return ()
    names = [[port.stream] for port in queue.streams]
    for number, place in enumerate(queue.places):
        names[number].append(f"in_{place}")
    exact = {name for several in names for name in several}
    for number, path in enumerate(queue.names):
        names[number].append(path)
    keys = keys_of(names, file.names)
    if None not in keys:
        return tuple(key for key in keys if key is not None)
    if exact.isdisjoint(file.names):
        return ()
    raise _not_the_feed(
        queue.name,
        printable(", ".join(several[-1] for several in names)),
        printable(", ".join(sorted(file.names)[:8])),
    )


def _require_rows(file: ArrayFile, queue: str, names: tuple[str, ...], spec: ElementSpec) -> None:
    """Raise StreamError E2023 where headers say that rows of a file are not such elements."""
    stored = {name: file.stored(name) for name in names or file.names}
    if not _fits(list(stored.values()), spec, in_order=bool(names)):
        stored_text = ", ".join(
            f"{name} {array.dtype}{list(array.shape)}".strip() for name, array in stored.items()
        )
        raise _not_the_feed(queue, ", ".join(_leaf_texts(spec)), stored_text)


def _leaf_texts(spec: ElementSpec) -> Iterator[str]:
    for number, leaf in enumerate(spec.leaves):
        yield f"{spec.names[number]} {leaf}" if spec.names else str(leaf)


def _fits(stored: list[Stored], spec: ElementSpec, *, in_order: bool) -> bool:
    """Whether rows, or batches of them, may be the leaves of elements, in some order."""
    if len(stored) != len(spec.leaves):
        return False
    if in_order:
        return all(map(_is_row, stored, spec.leaves))
    return all(any(_is_row(array, leaf) for leaf in spec.leaves) for array in stored)


def _is_row(stored: Stored, leaf: LeafSpec) -> bool:
    row = stored.shape[1:]
    is_alike = row == leaf.shape or (bool(leaf.shape) and row == leaf.shape[1:])
    width = user_dtype(leaf.element_type).itemsize
    return bool(stored.shape) and is_alike and stored.dtype.itemsize == width


def _not_the_feed(queue: str, expected: str, found: str) -> StreamError:
    return StreamError(
        "E2023",
        f"stream {queue!r}: arrays of the file are not what the program takes: "
        f"expected rows of {printable(expected)}, found {printable(found)}",
        queue=queue,
        expected=expected,
        found=found,
        hint="name them as the parameters are named or in_N, or say which and in which order: "
        "--infeed NAME=FILE:ARRAY,…",
    )
