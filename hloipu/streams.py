"""Sources, queues and their rates, for users.

    import hloipu.streams as streams

    source = streams.from_arrays({"x": x, "y": y}).shuffle(seed=0).batch(32).repeat(3)
    with program.session(infeeds={"data": source}) as session: …

    streams.dataset_benchmark(source, number_of_epochs=2, elements_per_epochs=1000)

A session takes sources, and arrays, files, generators and functions of the element's number, which
it makes sources of. Elements are arrays, or tuples and dictionaries of them, which stay what they
are on their way in and out.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from hloipu_runtime.arguments import checked
from hloipu_runtime.errors import StreamError
from hloipu_runtime.streams.arrays import from_arrays, from_file
from hloipu_runtime.streams.element import ElementSpec, LeafSpec, spec_of
from hloipu_runtime.streams.infeed import InfeedQueue
from hloipu_runtime.streams.made import (
    from_callable,
    from_iterable,
    null_feed,
    source_of,
    synthetic,
)
from hloipu_runtime.streams.outfeed import OutfeedQueue
from hloipu_runtime.streams.per_host import PerHost
from hloipu_runtime.streams.rate import measure
from hloipu_runtime.streams.source import Source

__all__ = [
    "ElementSpec",
    "InfeedQueue",
    "LeafSpec",
    "OutfeedQueue",
    "PerHost",
    "Source",
    "dataset_benchmark",
    "from_arrays",
    "from_callable",
    "from_file",
    "from_generator",
    "null_feed",
    "synthetic",
]


class _Generated:
    """Values of a generator function, restarted for each pass."""

    def __init__(self, function: Callable[[], Iterator[Any]]) -> None:
        self._function = function

    def __iter__(self) -> Iterator[Any]:
        return self._function()


@checked
def from_generator(generator: Callable[[], Iterator[Any]] | Iterable[Any]) -> Source:
    """Return a source of what a generator function yields, or an iterable.

    A function is called anew for each pass, an iterable that is used up gives one. Raises
    StreamError E2010 for what is neither.
    """
    return from_iterable(_Generated(generator) if callable(generator) else generator)


@checked
def dataset_benchmark(
    dataset: Any, number_of_epochs: int, elements_per_epochs: int, *, copy: bool = True
) -> str:
    """Return as JSON how fast elements come: `epochs`, a list with an object for each.

    Its keys are those of Graphcore's `ipu.dataset_benchmark`: `elements_processed`,
    `total_bytes_processed`, `time_elapsed` (s), `elements_per_second`, `bandwidth` (GB/s).
    `dataset`: whatever a session takes for an infeed; it begins anew where it ends. Without `copy`
    elements are taken and let go. Raises StreamError E2030 for a dataset without elements, and what
    the dataset raises.
    """
    source = source_of(dataset)
    first = next(source.elements(), None)
    if first is None:
        raise StreamError("E2030", "the dataset has no elements", hint="give one with elements")
    with InfeedQueue("dataset", spec_of(first), source.wrap()) as queue:
        rates = measure(queue, number_of_epochs, elements_per_epochs, copy=copy)
    return json.dumps({"epochs": [rate._asdict() for rate in rates]})
