"""Exchanges on tile memories."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.codelets.core.straight import copying
from hloipu_runtime.program.mapping import Sizes, Span
from hloipu_runtime.program.program import Array
from hloipu_runtime.program.steps import Transfer
from hloipu_runtime.simulate.exact.storage import TileStorage
from hloipu_runtime.simulate.run.faults import TileFault

Pick = slice | NDArray[np.int64]


def prepare_transfer(
    transfer: Transfer, source: TileStorage, destination: TileStorage, name: str
) -> Callable[[], object]:
    """Return the action of one transfer; raises TileFault where it leaves its variables."""
    views = views_of(transfer, source, destination, name)
    if not isinstance(views, tuple):
        return views
    return _copy(*views, source, destination) if views[0].size else _nothing


def views_of(
    transfer: Transfer, source: TileStorage, destination: TileStorage, name: str
) -> tuple[Array, Array] | Callable[[], None]:
    """Return the views of memories that a transfer copies to and from; what copies, of others."""
    if transfer.tiles != destination.mapping.tiles or transfer.spans != destination.mapping.spans:
        message = f"variable {transfer.destination} does not lie where the parts of a transfer go"
        raise TileFault(name, message)
    replicated = destination.mapping.replicated_axes
    lead = [
        slice(0, 1) if destination.merged.shape[i] == 1 else slice(*transfer.receivers[axis])
        for i, axis in enumerate(replicated)
    ]
    targets: list[Pick] = []
    origins: list[Pick] = []
    for dimension, span in enumerate(transfer.spans):
        target, origin = _picks(transfer, dimension, span, destination.shape[dimension], name)
        if _count(target) == 0:
            return destination.merged[:0], source.merged[:0]
        targets.append(target)
        origins.append(origin)
    into = _selector(targets, lead, destination.merged.shape)
    here: Array = source.whole() if source.value is None or source.moving is None else source.value
    taken = _taken(_viewed(here, transfer.view), origins)
    # A value whose parts overlap is put together anew for each run.
    memory = source.merged if source.value is None else source.value
    if all(isinstance(x, slice) for x in into) and np.may_share_memory(taken, memory):
        return destination.merged[(*into, ...)], taken

    def run() -> None:
        to = destination.merged
        if destination.moving is not None:
            to = destination.moving.seen(to)
        to[into] = _taken(_viewed(source.whole(), transfer.view), origins)

    return run


def _copy(
    to: Array, taken: Array, source: TileStorage, destination: TileStorage
) -> Callable[[], object]:
    """Return the action that copies between views of memories, which may move."""
    if source.moving is None and destination.moving is None:
        return copying(to, taken)
    arrays = [to, taken]
    for at, storage in enumerate((destination, source)):
        if storage.moving is not None:
            storage.moving.follow(arrays, at)
    return lambda: np.copyto(arrays[0], arrays[1])


def _taken(value: Array, origins: list[Pick]) -> Array:
    """Return the product of picks of a value: a view, unless one is an index."""
    for dimension, origin in enumerate(origins):
        if isinstance(origin, slice):
            value = value[(slice(None),) * dimension + (origin,)]
        else:
            value = value.take(origin, dimension)
    return value


def _nothing() -> None:
    pass


def _viewed(value: Array, view: Sizes) -> Array:
    return value if value.shape == view else value.reshape(view)


def _count(pick: Pick) -> int:
    return pick.stop - pick.start if isinstance(pick, slice) else len(pick)


def _picks(
    transfer: Transfer, dimension: int, span: Span, size: int, name: str
) -> tuple[Pick, Pick]:
    """Return where elements of a dimension go in the row of parts, and where they come from."""
    low, high = transfer.receivers[span.axis] if span.axis >= 0 else (0, 1)
    box_low, box_high = transfer.box[dimension]
    coordinates = np.arange(low, high, dtype=np.int64)[:, None]
    elements = coordinates * span.step + span.offset + np.arange(span.size)
    there = (elements >= max(0, box_low)) & (elements < min(size, box_high))
    target = (coordinates * span.size + np.arange(span.size))[there]
    origin = elements[there] + transfer.shift[dimension]
    extent = transfer.view[dimension]
    if len(origin) and not (origin.min() >= 0 and origin.max() < extent):
        message = f"takes elements {origin.min()} to {origin.max()} of a dimension of {extent}"
        raise TileFault(name, f"dimension {dimension}: {message}")
    return _as_slice(target), _as_slice(origin)


def _as_slice(index: NDArray[np.int64]) -> Pick:
    if not len(index):
        return slice(0, 0)
    first, last = int(index[0]), int(index[-1])
    if last - first + 1 == len(index) and bool((np.diff(index) == 1).all()):
        return slice(first, last + 1)
    return index


def _selector(
    picks: list[Pick], lead: list[slice], shape: Sizes
) -> tuple[slice | NDArray[np.int64], ...]:
    if all(isinstance(pick, slice) for pick in picks):
        return (*lead, *picks)
    every = [
        np.arange(pick.start, pick.stop) if isinstance(pick, slice) else pick
        for pick in ([slice(*x.indices(n)) for x, n in zip(lead, shape, strict=False)] + picks)
    ]
    return np.ix_(*every)
