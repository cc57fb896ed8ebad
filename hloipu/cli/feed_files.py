"""Which arrays of a file feed a queue, and in which order."""

from pathlib import Path

from hloipu.datasets import batched
from hloipu_runtime.program.program import Queue
from hloipu_runtime.session_inputs import spec_of_queue
from hloipu_runtime.streams.arrays import from_file
from hloipu_runtime.streams.files import array_file
from hloipu_runtime.streams.source import Source


def source_of(queue: Queue, given: str) -> Source:
    """Return a queue's source; rows are put together to batches where elements are batches.

    `given` is a file, or FILE:ARRAY,… for some of its arrays in that order. Without that, arrays
    stored as `in_N` or under the names of the queue's streams are taken by those names, and others
    in the order of their names. Raises StreamError E2032 where the file cannot be read or an array
    is not in it, E2031 where rows are not equally many.
    """
    path, mark, names = given.rpartition(":")
    if mark and names and not Path(given).exists() and Path(path).exists():
        return batched(from_file(path, tuple(names.split(","))), spec_of_queue(queue))
    return batched(from_file(given, _named_for(queue, given)), spec_of_queue(queue))


def _named_for(queue: Queue, path: str) -> tuple[str, ...]:
    """Return the names under which a file has what the queue takes; none where it has others."""
    with array_file(path) as file:
        arrays = frozenset(file.names if file.is_archive else ())
    found = []
    for port, place in zip(queue.streams, queue.places, strict=False):
        key = next((key for key in (port.stream, f"in_{place}") if key in arrays), None)
        if key is None:
            return ()
        found.append(key)
    return tuple(found) if len(found) == len(queue.streams) else ()
