"""Datasets as sources of the elements that a program's queues take."""

from collections.abc import Mapping, Sized
from operator import itemgetter
from typing import Any

import numpy as np

from hloipu_runtime.errors import UsageError
from hloipu_runtime.streams.arrays import Rows
from hloipu_runtime.streams.element import ElementSpec
from hloipu_runtime.streams.made import Iterated, source_of
from hloipu_runtime.streams.per_host import PerHost
from hloipu_runtime.streams.source import Source

Fed = Source | PerHost
"""What feeds a queue."""


class _Listed(Iterated):
    """The elements of a list, a data loader or the like, which tells how many it has."""

    @property
    def count(self) -> int | None:
        return len(self.iterable) if isinstance(self.iterable, Sized) else None


def sources_for(
    dataset: Any, feeds: Mapping[str, ElementSpec], shuffle: int | None = None
) -> dict[str, Fed]:
    """Return a source for each feed.

    `dataset` is anything that `source_of` takes; for several feeds, such by name; where each host
    has data of its own, such in a `PerHost`. Rows of arrays are put together to batches where the
    program takes batches of them, in an order drawn from the seed `shuffle`, another one in each
    pass. Raises UsageError E3170 where the names are not those of the feeds, StreamError E2031 for
    data that is no source.
    """
    if isinstance(dataset, PerHost):
        by_host = dataset.map(lambda host_data: sources_for(host_data, feeds, shuffle))
        return {name: by_host.map(itemgetter(name)) for name in feeds}
    if len(feeds) == 1:
        dataset = dict.fromkeys(feeds, dataset)
    elif not isinstance(dataset, Mapping) or dataset.keys() != feeds.keys():
        names = ", ".join(map(str, dataset)) if isinstance(dataset, Mapping) else "one dataset"
        raise UsageError(
            "E3170",
            f"the step is fed by {', '.join(feeds) or 'no queue'}; {names} is given",
            hint="give a dataset for each feed: {name: dataset, …}",
        )
    return {name: _batches(dataset[name], feeds[name], shuffle) for name in feeds}


def again_and_again(fed: Fed) -> Fed:
    """Return a source that restarts at its end."""
    return fed.map(Source.wrap) if isinstance(fed, PerHost) else fed.wrap()


def _batches(data: Any, spec: ElementSpec, shuffle: int | None) -> Fed:
    if isinstance(data, PerHost):
        return data.map(lambda host_data: batched(_source(host_data), spec, shuffle))
    return batched(_source(data), spec, shuffle)


def steps_of_pass(sources: Mapping[str, Fed], asked: int | None, elements: int = 1) -> int:
    """Return the steps of one pass: those asked for, or as many as the shortest source has.

    A step takes so many `elements` of each source. Raises UsageError E3170 where their number is
    not known, or none.
    """
    counts = [asked] if asked is not None else [source.count for source in sources.values()]
    per_step = elements if asked is None else 1
    known = [count // per_step for count in counts if count is not None]
    if not known:
        raise UsageError(
            "E3170",
            "it is not known how many elements the dataset has",
            hint="give steps_per_epoch= (fit) or steps= (evaluate, predict)",
        )
    if min(known) < 1:
        raise UsageError(
            "E3170",
            f"the dataset is good for {min(known)} steps"
            + (f": a step takes {per_step:,} batches" if per_step > 1 else ""),
            hint="give at least as many rows as "
            + ("these have" if per_step > 1 else "a batch of the step has"),
        )
    return min(known)


def batch_size(spec: ElementSpec) -> int:
    """Return how many samples an element holds: the first size that all its arrays have."""
    sizes = {leaf.shape[0] if leaf.shape else 0 for leaf in spec.leaves}
    return max(1, sizes.pop()) if len(sizes) == 1 else 1


def padded_rows(dataset: Any, spec: ElementSpec) -> tuple[Any, int | None]:
    """Return rows of arrays with the last one repeated until batches are whole, and their number.

    Other data comes back as it is, with None.
    """
    rows = source_of(dataset)
    size = _rows_in_element(rows, spec)
    if not isinstance(rows, Rows) or not size:
        return dataset, None
    missing = -rows.count % size
    leaves = [np.concatenate((leaf, np.repeat(leaf[-1:], missing, 0))) for leaf in rows.leaves]
    return Rows(leaves, rows.structure), rows.count


def _source(data: Any) -> Source:
    source = source_of(data)
    if type(source) is Iterated and isinstance(data, Sized):
        return _Listed(source.iterable)
    return source


def batched(source: Source, spec: ElementSpec, shuffle: int | None = None) -> Source:
    """Return a source with rows put together to batches where elements are batches of them."""
    size = _rows_in_element(source, spec)
    if shuffle is not None:
        source = source.shuffle(shuffle)
    return source.batch(size) if size else source


def _rows_in_element(source: Source, spec: ElementSpec) -> int:
    """Return how many rows make an element; 0: a row is one, or the source has no rows."""
    shapes = [leaf.shape for leaf in spec.leaves]
    if not isinstance(source, Rows) or len(shapes) != len(source.leaves) or not all(shapes):
        return 0
    sizes = {shape[0] for shape in shapes}
    # Arrays of a dictionary are in the order of its keys, which is not the program's.
    rows = sorted(array.shape[1:] for array in source.leaves)
    alike = rows == sorted(shape[1:] for shape in shapes)
    return sizes.pop() if alike and len(sizes) == 1 else 0
